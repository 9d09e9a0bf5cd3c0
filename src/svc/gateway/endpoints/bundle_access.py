"""The store of bundles in threads, the check of a key for it, and JSON responses, for the endpoints of bundles."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from svc.errors import CommandFailed, PermissionDenied, RegistryFailed, UsageError
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response
from svc.gateway.endpoints.bundle_views import BundleViews
from svc.gateway.proxy.context import GatewayContext
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.resumable_upload import ResumableUploads
from svc.wire.bundle import BundleEntry
from svc.wire.key import ApiKey

log = logging.getLogger("svc.gateway")

READ_SCOPES: Final = ("registry:read", "registry:write", "admin")
WRITE_SCOPES: Final = ("registry:write", "admin")
BUNDLE_THREADS: Final = 4
EXPIRY_CHECK_SECONDS: Final = 600.0
"""Interval at which expired uploads are removed."""

Result = TypeVar("Result")
BundleHandler = Callable[[Request, ApiKey], Awaitable[Response]]


class BundleAccess:
    """The store of bundles, opened on first use, in its own threads. Close it."""

    def __init__(
        self,
        open_store: Callable[[], AbstractContextManager[BundleStore]],
        trusted_keys: Collection[str] = (),
        registry_url: str | None = None,
    ) -> None:
        self._open_store = open_store
        self._trusted_keys = trusted_keys
        self._registry_url = registry_url
        self._threads = ThreadPoolExecutor(BUNDLE_THREADS, "bundles")
        self._stack = contextlib.ExitStack()
        self._opening = asyncio.Lock()
        self._expiry_task: asyncio.Task[None] | None = None
        self._summary_task: asyncio.Task[None] | None = None
        self._store: BundleStore | None = None

    @property
    def trusted_key_count(self) -> int:
        """Return the number of trusted public keys."""
        return len(self._trusted_keys)

    async def run(self, function: Callable[[BundleStore], Result]) -> Result:
        """Run a function with the store in a thread. Raises RegistryFailed if the store cannot be used."""
        try:
            store = self._store or await self._open()
            return await self._in_thread(function, store)
        except (OSError, sqlite3.Error, CommandFailed, UsageError) as error:
            log.error("the store of bundles failed: %s", error)
            raise RegistryFailed("The store of bundles does not work. The log of the gateway says why.") from None

    def load_summaries(self, entries: list[BundleEntry]) -> None:
        """Read the metadata of bundles in the background, for later lists."""
        if entries and (self._summary_task is None or self._summary_task.done()):
            self._summary_task = asyncio.create_task(self._load_summaries(entries), name="bundle summaries")

    async def _load_summaries(self, entries: list[BundleEntry]) -> None:
        for entry in entries:
            await self._in_thread(self.views.load_summary, entry)

    async def aclose(self) -> None:
        """Close the store after the running functions."""
        tasks = [task for task in (self._expiry_task, self._summary_task) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._stack.close)

    async def _open(self) -> BundleStore:
        async with self._opening:
            if self._store is not None:
                return self._store
            store = await self._in_thread(lambda: self._stack.enter_context(self._open_store()))
            self.views = BundleViews(store, self._trusted_keys, self._registry_url)
            self.uploads = ResumableUploads(store)
            self._expiry_task = asyncio.create_task(self._remove_expired(), name="expired uploads")
            self._store = store
            return store

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *arguments))

    async def _remove_expired(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            try:
                await self._in_thread(self.uploads.remove_expired)
            except OSError:
                log.exception("expired uploads could not be removed")


def bundle_route(context: GatewayContext, path: str, **handlers: BundleHandler) -> Route:
    """Return a route with a handler for each method. A key that may only read gets no other method, and no upload."""

    async def handle(request: Request) -> Response:
        key = await authenticate_request(context, request)
        method = "GET" if request.method == "HEAD" else request.method
        is_read = method == "GET" and path.startswith("/v1/admin/bundles")
        _require_any_scope(key, READ_SCOPES if is_read else WRITE_SCOPES)
        return await handlers[method](request, key)

    return Route(path, handle, methods=list(handlers))


async def published_response(access: BundleAccess, entry: BundleEntry, is_new: bool) -> Response:
    """Return the state of a bundle that has been published, or was published before with the same bytes."""
    state = await access.run(lambda _: access.views.list_states([entry])[0])
    return json_response(state, 201 if is_new else 200)


def _require_any_scope(key: ApiKey, scopes: tuple[str, ...]) -> None:
    if not key.scopes.intersection(scopes):
        raise PermissionDenied(f"This API key needs one of the scopes {', '.join(map(repr, scopes))}.")
