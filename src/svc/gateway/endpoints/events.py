"""`GET /v1/events`: requests and use as server-sent events. One poller of the database serves all listeners."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from svc.errors import AuthenticationFailed, InvalidRequest, MethodNotAllowed, RateLimited, SvcError
from svc.gateway.endpoints.event_listeners import EVENT_POLL_SECONDS, Listener, Listeners
from svc.gateway.endpoints.event_poll import NewEntries, encode_event
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.requests import authorize_reader
from svc.gateway.proxy.context import GatewayContext
from svc.keys.request_search import require_known
from svc.ledger_queries.messages import RecentUseQuery
from svc.ledger_queries.process import QueryProcess
from svc.security import secret_from_request
from svc.stores.database.base import StoreUnavailable

log = logging.getLogger("svc.gateway")

EVENT_KEEP_ALIVE_SECONDS: Final = 15.0
EVENT_PAUSE_SECONDS: Final = 0.015
"""The pause between the events of two listeners. A model request then waits for those of one at most."""
_EVENT_PARAMETERS: Final = frozenset({"only"})


class EventStream(StreamingResponse):
    """The response of a listener, which it unregisters at its end, even if its stream never began."""

    def __init__(self, listeners: Listeners, listener: Listener, events: AsyncIterator[bytes]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, 200, headers, "text/event-stream")
        self._listeners = listeners
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listeners.discard(self._listener)


class EventPublisher:
    """Polls the database while there are listeners, until `aclose`."""

    def __init__(self, context: GatewayContext, queries: QueryProcess, metrics: MetricsPublisher) -> None:
        self._context = context
        self._queries = queries
        self._metrics = metrics
        self._listeners = Listeners()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def routes(self) -> list[BaseRoute]:
        """Return `GET /v1/events`."""
        return [Route("/v1/events", self._stream, methods=["GET"])]

    def stop(self) -> None:
        """End all streams. There are no new ones after it."""
        self._is_closed = True
        self._listeners.close()

    async def aclose(self) -> None:
        """End all streams and the poller."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _stream(self, request: Request) -> Response:
        key_id = await authorize_reader(self._context, request)
        require_known(request.query_params, _EVENT_PARAMETERS)
        if (only := request.query_params.get("only")) not in (None, "stats"):
            raise InvalidRequest("only must be stats.", param="only")
        if request.method == "HEAD":  # the routing adds it to GET
            raise MethodNotAllowed("This path supports GET.", allow="GET")
        if self._is_closed:
            raise RateLimited("This gateway shuts down.", retry_after=EVENT_POLL_SECONDS)
        listener = self._listeners.register(key_id, has_requests=only is None)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="events")
        return EventStream(self._listeners, listener, self._events(request, listener))

    async def _events(self, request: Request, listener: Listener) -> AsyncIterator[bytes]:
        yield b"retry: 2000\n: connected\n\n"
        sent_at = time.monotonic()
        while not (listener.is_closed or self._is_closed):
            events = await listener.take(EVENT_POLL_SECONDS)
            if not await self._may_still_listen(request, listener):
                yield encode_event("closed", b'{"reason":"key_revoked"}')
                return
            if events or time.monotonic() - sent_at >= EVENT_KEEP_ALIVE_SECONDS:
                sent_at = time.monotonic()
                yield events or b": keep-alive\n\n"
        yield encode_event("closed", b'{"reason":"shutdown"}')

    async def _may_still_listen(self, request: Request, listener: Listener) -> bool:
        """Return whether the key is still valid for these events. While the database is down, it is."""
        try:
            key = await self._context.keyring.authenticate(secret_from_request(request.method, request.headers))
        except AuthenticationFailed:
            return False
        except SvcError:
            return True
        return "admin" in key.scopes or listener.key_id == key.id

    async def _poll(self) -> None:
        """Read new entries every EVENT_POLL_SECONDS, and give them to the listeners, as long as there are any."""
        new_entries, is_down = NewEntries(), False
        while len(self._listeners):
            next_poll_at = time.monotonic() + EVENT_POLL_SECONDS
            try:
                recent = await self._queries.run(RecentUseQuery(self._listeners.has_requests()))
                values = (await self._metrics.aggregate()).values if self._listeners.has_admin() else {}
                for _ in self._listeners.publish(new_entries.next_batch(recent), values):
                    await asyncio.sleep(EVENT_PAUSE_SECONDS)
                is_down = False
            except StoreUnavailable as error:
                if not is_down:
                    log.warning("events wait for the database: %s", error.message)
                is_down = True
            except Exception:  # a fault in one poll must not end the streams
                log.exception("error in a poll for events")
            await asyncio.sleep(max(EVENT_PAUSE_SECONDS, next_poll_at - time.monotonic()))
