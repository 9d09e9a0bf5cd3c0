"""One live session over a WebSocket: carries a Session's orders out. The protocol itself is in `session`.

two tasks: `_receive` (client -> session -> worker, in order) and `_send` (outbox -> client); the worker's messages and
the clock call in between. A client that does not read loses partials, then its connection; one that sends too fast is
not read any further.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

from starlette.websockets import WebSocket, WebSocketDisconnect

from svc.errors import SvcError
from svc.security import Key
from svc.speech import link, session
from svc.speech.pool import SLICE, Seat
from svc.speech.service import Service
from svc.wire import speech as wire

TICK = 0.5
MAX_OUTBOX = 64
"""Messages that wait for a client that does not read; beyond it, the oldest partials that are not stable go."""
MAX_OWED = 1024
"""Messages that may not be dropped; beyond it the client is."""
WRITE_TIMEOUT = 60.0
FINAL_PATIENCE = 90.0
"""Seconds that a flush may take until its worker is taken to hang."""


class Stream:
    """Runs one session on an accepted WebSocket."""

    def __init__(self, service: Service, websocket: WebSocket, key: Key) -> None:
        settings = service.settings
        self._service, self._socket, self._key = service, websocket, key
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

    async def run(self) -> None:
        """Until the session is closed, or the client has gone."""
        try:
            leave = self._service.pool.admit()
        except SvcError:
            self._session.full()
            self._carry_out()
            await self._send()
            return
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
            leave()
            self._service.sessions.discard(self)
            self._over.set()

    def shutdown(self) -> None:
        """The server stops."""
        self._session.shutdown()
        self._carry_out()

    async def ended(self) -> None:
        """Waits for the end."""
        await self._over.wait()

    # client -> worker

    async def _receive(self) -> None:
        while True:
            while self._orders:
                await self._forward(self._orders.popleft())
            if not self._session.reading:
                self._moved.clear()
                await self._moved.wait()
                continue
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
        self._outbox.append(message)
        if len(self._outbox) > MAX_OUTBOX:
            for waiting in self._outbox:
                if isinstance(waiting, wire.Partial) and not waiting.is_stable:
                    self._outbox.remove(waiting)
                    return

    async def _attach(self, order: session.Attach) -> None:
        hearer = _Hearer(self)
        try:
            seat, name, _ = await self._service.attach(self._key, order.config, hearer)
        except SvcError as error:
            self._session.refused(order.number, error)
        else:
            self._seat, self._hearer = seat, hearer
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
