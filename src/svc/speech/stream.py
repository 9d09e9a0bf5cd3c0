"""One live session over a WebSocket: carries a Session's orders out. The protocol itself is in `session`.

two tasks: `_receive` (client -> session -> worker, in order) and `_send` (outbox -> client); the worker's messages and
the clock call in between. A client that does not read loses partials, then its connection; one that sends too fast is
not read any further.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque

from starlette.websockets import WebSocket, WebSocketDisconnect

from svc.errors import AuthenticationFailed, SvcError
from svc.speech import link, session
from svc.speech.audio import BYTES_PER_SECOND
from svc.speech.books import STREAM_PATH, Ids, Status, Visit
from svc.speech.keywatch import KeyWatch
from svc.speech.pool import SLICE, Seat
from svc.speech.service import Service
from svc.wire import speech as wire

TICK = 0.5
MAX_OUTBOX = 64
"""Messages that wait for a client that does not read; beyond it, the oldest partials that are not stable go."""
ENOUGH = 512
"""Messages that wait for a client, beyond which it is not read: whoever does not listen need not talk."""
MAX_OWED = 1024
"""Messages that may not be dropped; beyond it the client is."""
WRITE_TIMEOUT = 60.0
FINAL_PATIENCE = 90.0
"""Seconds that a flush may take until its worker is taken to hang."""


class Stream:
    """Runs one session on an accepted WebSocket."""

    def __init__(self, service: Service, websocket: WebSocket, watch: KeyWatch, ids: Ids) -> None:
        settings = service.settings
        self._service, self._socket, self._watch, self._ids = service, websocket, watch, ids
        self._loop = asyncio.get_running_loop()
        self._session = session.Session(
            f"sess_{secrets.token_hex(12)}",
            now=self._loop.time(),
            idle_timeout=settings.idle_timeout,
            max_duration=settings.max_duration,
        )
        self._orders: deque[session.Feed | session.Flush | session.Reset] = deque()
        self._outbox: deque[wire.ServerMessage | session.Close] = deque()
        self._written = asyncio.Event()
        self._moved = asyncio.Event()
        self._over = asyncio.Event()
        self._seat: Seat | None = None
        self._hearer: _Hearer | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._owed_since: float | None = None
        self._visit: Visit | None = None
        self._asked: str | None = None
        self._model: str | None = None
        self._refusal: SvcError | None = None
        self._ready: float | None = None

    async def run(self) -> None:
        """Until the session is closed, or the client has gone."""
        counts = self._service.counts
        with contextlib.ExitStack() as stack:
            try:
                stack.callback(self._service.pool.admit())
                self._visit = await self._service.visits.enter(self._watch.key, STREAM_PATH, self._ids, lasts=True)
            except SvcError as error:
                self._session.turn_away(error)
                self._carry_out()
                await self._send()
                return
            counts.began("stream")
            counts.sessions += 1
            try:
                await self._run()
            finally:
                counts.sessions -= 1
                self._note(gone=True)

    async def _run(self) -> None:
        self._service.sessions.add(self)
        ticker = self._loop.call_later(TICK, self._tick)
        self._ticker = ticker
        tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._send())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._ticker.cancel()
            if self._attaching is not None:
                tasks.append(self._attaching)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._let_go()
            self._service.sessions.discard(self)
            self._over.set()

    def shutdown(self) -> None:
        """The server stops."""
        self._session.shutdown()
        self._carry_out()

    async def ended(self) -> None:
        """Waits for the end."""
        await self._over.wait()

    def _note(self, *, gone: bool = False) -> None:
        """Into the books: what came of it. The first word counts."""
        if self._visit is None:
            return
        status: Status = "client_closed" if gone else "ok"
        http_status, code = 499 if gone else 101, None
        if self._model is None and self._refusal is not None:
            status, http_status, code = "error", self._refusal.status, self._refusal.code
        elif self._session.closed_for == "server_shutdown":
            status = "cut"
        elif self._session.closed_for == "key_revoked":
            status, code = "cut", AuthenticationFailed.code
        self._visit.end(status, http_status, asked=self._asked, model=self._model, first=self._ready, code=code)

    # client -> worker

    async def _receive(self) -> None:
        while True:
            while self._orders:
                await self._forward(self._orders.popleft())
            if not self._session.reading or len(self._outbox) > ENOUGH:
                self._moved.clear()
                await self._moved.wait()
                continue
            await asyncio.sleep(0)  # thousands may have come at once, and `receive` gives nobody else a turn
            try:
                message = await self._socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            self._session.receive(data if data is not None else message.get("text") or "", self._loop.time())
            self._carry_out()

    async def _forward(self, order: session.Feed | session.Flush | session.Reset) -> None:
        if isinstance(order, session.Feed):
            self._service.counts.seconds += len(order.data) / BYTES_PER_SECOND
            for place in range(0, len(order.data), SLICE):
                while self._seat is not None and self._seat.full:
                    self._moved.clear()
                    await self._moved.wait()
                if self._seat is not None:
                    self._seat.feed(order.data[place : place + SLICE])
        elif self._seat is None:
            return
        elif isinstance(order, session.Flush):
            self._owed_since = self._loop.time()
            self._seat.flush()
        else:
            self._seat.reset()

    # session -> everyone

    def _carry_out(self) -> None:
        for order in self._session.orders():
            match order:
                case session.Send():
                    self._put(order.message)
                case session.Close():
                    self._note()
                    self._outbox.append(order)
                case session.Attach():
                    self._let_go()
                    self._attaching = asyncio.create_task(self._attach(order))
                case session.Release():
                    self._orders.clear()
                    self._let_go()
                case _:
                    self._orders.append(order)
        self._written.set()
        self._moved.set()

    def _put(self, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.Error):
            self._service.counts.failed(message.code)
        self._outbox.append(message)
        if len(self._outbox) > MAX_OUTBOX and isinstance(message, wire.Partial):
            for waiting in self._outbox:
                if isinstance(waiting, wire.Partial) and not waiting.is_stable:
                    self._outbox.remove(waiting)
                    return

    async def _attach(self, order: session.Attach) -> None:
        hearer = _Hearer(self)
        self._asked = order.config.model or self._service.settings.default_model
        try:
            seat, name, _ = await self._service.attach(self._watch.key, order.config, hearer)
        except SvcError as error:
            self._refusal = error
            self._session.refused(order.number, error)
        else:
            self._seat, self._hearer, self._model = seat, hearer, name
            self._ready = self._ready or time.monotonic()
            self._session.opened(order.number, name)
        self._attaching = None
        self._carry_out()

    def _let_go(self) -> None:
        if self._hearer is not None:
            self._hearer.stream = None
        if self._seat is not None:
            self._seat.release()
        self._seat = self._hearer = None
        self._owed_since = None

    async def _send(self) -> None:
        while True:
            while self._outbox:
                if len(self._outbox) > MAX_OWED:
                    return
                message = self._outbox.popleft()
                self._moved.set()
                try:
                    async with asyncio.timeout(WRITE_TIMEOUT):
                        if isinstance(message, session.Close):
                            await self._socket.close(message.code)
                            return
                        await self._socket.send_text(wire.encode(message))
                except (WebSocketDisconnect, RuntimeError, OSError):  # TimeoutError is an OSError
                    return
            self._written.clear()
            await self._written.wait()

    def _tick(self) -> None:
        now = self._loop.time()
        if not self._session.waiting_since_flush:
            self._owed_since = None
        elif self._owed_since is not None and now > self._owed_since + FINAL_PATIENCE and self._seat is not None:
            self._owed_since = now
            self._seat.abandon()
        if not self._watch.is_valid(self._model):
            self._session.revoke()
        self._session.tick(now)
        self._carry_out()
        self._ticker = self._loop.call_later(TICK, self._tick)

    # the worker's messages, from the session's own seat

    def took(self, size: int) -> None:
        if self._seat is not None:
            self._seat.ahead -= size
            self._moved.set()

    def heard(self, message: link.Heard) -> None:
        self._session.heard(message.epoch, message.text, message.stable)
        self._carry_out()

    def done(self, message: link.Done) -> None:
        self._owed_since = self._loop.time()
        self._session.done(message.text, message.chunks)
        self._carry_out()

    def faulted(self, text: str) -> None:
        self._session.faulted(text)
        self._carry_out()

    def lost(self, text: str) -> None:
        self._orders.clear()
        self._let_go()
        self._session.lost(text)
        self._carry_out()


class _Hearer:
    """Listens for a stream until it lets go: what an old seat still says is not for the new one."""

    def __init__(self, stream: Stream) -> None:
        self.stream: Stream | None = stream

    def took(self, size: int) -> None:
        if self.stream is not None:
            self.stream.took(size)

    def heard(self, message: link.Heard) -> None:
        if self.stream is not None:
            self.stream.heard(message)

    def done(self, message: link.Done) -> None:
        if self.stream is not None:
            self.stream.done(message)

    def faulted(self, message: str) -> None:
        if self.stream is not None:
            self.stream.faulted(message)

    def lost(self, message: str) -> None:
        if self.stream is not None:
            self.stream.lost(message)
