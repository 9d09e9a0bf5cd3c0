"""The front door: every client connection of the gateway. HTTP/1.1, parsed by llhttp (httptools), with limits.

    idle ── first byte ──> head ── all headers ──> body ── complete ──> answering ── answered ──> idle
      hot routes (POST of a chat) are answered by an Exchange; all else by the ASGI application, through uvicorn's
      own protocol (`cold`), which gets each request whole. A WebSocket leaves with its connection to uvicorn.

The limits hold for both: size and number of headers, slow heads, slow bodies, size of bodies, requests in advance.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final

import httptools

from svc.dialects.base import Dialect
from svc.errors import AuthenticationFailed, InvalidRequest, MethodNotAllowed, SvcError
from svc.gateway import reply
from svc.gateway.access_log import log_end, peer_of
from svc.gateway.bounded import Free
from svc.gateway.cold import Cold
from svc.gateway.exchange import Exchange
from svc.gateway.plane import Plane
from svc.gateway.reader import Reader
from svc.gateway.reply import SIZE_LINES, SMALL
from svc.gateway.request import Request
from svc.gateway.writer import Writer

LINGER_SECONDS: Final = 5.0
"""After an early refusal: so long what the client still sends is thrown away, so that it can read the answer."""
LAST_CALL_SECONDS: Final = 1.0
"""When the server stops, an unused connection is closed only after so long."""
TAKEN: Final = "GET, HEAD, POST"
"""The methods that some path of the gateway takes: what is asked to be a proxy has no path to tell of."""
HIGH_WATER: Final = 64 * 1024
"""Bytes that wait for a client before the upstream is no longer read."""


class FrontDoor(Reader):
    """One client connection: an asyncio.Protocol by its methods. `options` are uvicorn's."""

    __slots__ = ("_chunked", "_cold", "_exchange", "_held", "_options", "_paused", "_shutting", "_taking", "_unsent")

    def __init__(self, plane: Plane, hot: Mapping[bytes, Dialect], **options: Any) -> None:
        super().__init__(plane, hot)
        self._options = options
        self._exchange: Exchange | None = None
        self._cold: Cold | None = None
        self._held = b""
        """The head of a stream, until its first piece is there."""
        self._chunked = False
        self._paused = False
        self._shutting = False
        self._taking = False
        """Requests are being taken, one after the other."""
        self._unsent = 0
        """Bytes that waited for a client that does not read, when they were last looked at."""

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.writer = Writer(self.transport)
        self._free = Free(self, self.transport)
        self.log_end = log_end(peer_of(transport))
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        self._plane.doors.add(self)
        self._options["server_state"].connections.add(self)
        self._wait("idle", self._plane.bounds.keep_alive)

    def eof_received(self) -> None:
        """The client has gone: `connection_lost` follows, once it has taken what waits for it, or took too long."""
        self._wait("closing", self._plane.bounds.write_timeout)
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writer.close()
        self._leave()
        del self._parser, self._free  # which hold this: no garbage collector is needed
        self._gone()
        if self._cold is not None:
            self._cold.connection_lost(exc)
            self._cold = None  # each held the other
        self._queue.clear()

    def pause_writing(self) -> None:
        self._paused = True
        self._unsent = self.transport.get_write_buffer_size()
        self._deadline = self._plane.now() + self._plane.bounds.write_timeout
        if self._exchange is not None:
            self._exchange.pause()
        elif self._cold is not None:
            self._cold.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        if self._state == "unread":
            self._resume_reading()
            self._next()
        elif self._busy is not None and self._state != "closing":
            self._deadline = math.inf
        if self._exchange is not None:
            self._exchange.resume()
        if self._cold is not None:
            self._cold.resume_writing()

    # uvicorn

    def shutdown(self) -> None:
        """The server stops: what runs is finished, then the connection is closed."""
        self._shutting = True
        if self._busy is None and self._state == "idle":  # a request may be on its way: it gets the last answer here
            self._wait("idle", LAST_CALL_SECONDS)
        elif self._busy is not None and self._cold is not None and self._exchange is None:
            self._cold.shutdown()

    # time

    def tick(self, now: float) -> None:
        """Looks whether the client is too slow."""
        if self._paused and (unsent := self.transport.get_write_buffer_size()) < self._unsent:
            self._unsent = unsent  # it does read, if slowly
            self._deadline = now + self._plane.bounds.write_timeout
        if now < self._deadline:
            return
        if self._state in ("head", "body") and not self._paused:
            self._reject(InvalidRequest("The request took too long to arrive."), 408)
        elif self._state == "idle" and self._busy is None and not self._paused:
            self._close()
        else:  # it does not read, lingers, or does not let itself be closed
            self.transport.abort()

    def _close(self) -> None:
        self._wait("closing", self._plane.bounds.write_timeout)
        self.transport.close()

    def _leave(self) -> None:
        self._plane.doors.discard(self)
        self._options["server_state"].connections.discard(self)

    def _gone(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.gone()

    # answering

    def _loaded(self, request: Request) -> None:
        """The database has been asked about the request's key."""
        if self._busy is request and request.dialect is not None and not self.transport.is_closing():
            self._answer_hot(request, request.dialect)

    def _next(self) -> None:
        """Takes what has come whole, in a loop: what is answered at once calls this again, from within."""
        if self._taking:
            return
        self._taking = True
        try:
            while self._busy is None and self._may_take():
                self._take(self._queue.popleft())
        finally:
            self._taking = False

    def _may_take(self) -> bool:
        """A request waits, and its answer would be read; else it waits for what has to come first."""
        if self._paused:  # what it has been sent is to be read first; `_deadline` is that of `pause_writing`
            if self._state != "unread" and not self.transport.is_closing():
                self._state = "unread"
                self.transport.pause_reading()
            return False
        if self._queue:
            return not self.transport.is_closing()
        if self._shutting:
            self._close()
        elif self._unreadable is not None:
            self._reject(*self._unreadable)
        elif self._request is None:
            self._wait("idle", self._plane.bounds.keep_alive)
        else:
            self._go_on(self._request)
        return False

    def _take(self, request: Request) -> None:
        """Answers it."""
        self._busy = request
        self._state, self._deadline = "answering", math.inf
        if request.dialect is not None:
            self._answer_hot(request, request.dialect)
        else:
            self._answer_cold(request)

    def _answer_hot(self, request: Request, dialect: Dialect) -> None:
        if request.waiting:
            return
        request_id = self._plane.new_request_id()
        if request.key is None:
            error = request.refusal or AuthenticationFailed("There is no API key.")
            self._plane.refused(request_id, request, error, error.status, self.log_end)
            headers = reply.ids(request_id, request, dialect) + reply.lines(error.headers)
            self.answer(error.status, headers, dialect.write_error(error, request_id))
            return
        exchange = self._exchange = Exchange(
            self._plane, self, dialect, request.key, request_id=request_id, client_request_id=request.client_request_id
        )
        exchange.forwarded = request.forwarded
        if request.refusal is not None:
            exchange.refuse(request.refusal)
        else:
            exchange.start(request.take_body())

    def _answer_cold(self, request: Request) -> None:
        if self._cold is None:
            self._cold = Cold(self._answered, **self._options)
            self._cold.connection_made(self.transport)
            self._options["server_state"].connections.discard(self._cold)
        self.writer.doubt()
        self._cold.data_received(request.serialised())

    def _upgrade(self, rest: bytes) -> None:
        """A WebSocket goes to uvicorn with its connection; others are ignored, as HTTP allows."""
        request = self._request
        if request is None or request.method == b"CONNECT":  # an upgrade whatever its headers say
            self._reject(MethodNotAllowed("This server is no proxy.", allow=TAKEN))
        elif not request.websocket:
            self._request, self._parser = None, httptools.HttpRequestParser(self)
            self.data_received(request.without_upgrade() + rest)
        elif self._busy is not None:
            self._reject(InvalidRequest("An upgrade cannot be asked for in advance."))
        else:
            self._hand_over(request, rest)

    def _hand_over(self, request: Request, rest: bytes) -> None:
        try:
            head = request.for_websocket()
        except SvcError as error:
            self._reject(error)
            return
        self._leave()
        self.writer.close()  # whatever happens to this: no word of its own may come between the WebSocket's
        Cold(self._answered, **self._options).take(self.transport, head, rest)

    def _answered(self) -> None:
        """The answer to `_busy` is written; what came in the meantime is next."""
        request, self._busy, self._exchange = self._busy, None, None
        if self._state == "lingering" or request is None:
            return
        if self._throttled:
            self._throttled = False
            self._resume_reading()
        if request.keep_alive:
            self._next()
        else:
            self._close()

    def _reject(self, error: SvcError, status: int | None = None) -> None:
        """Refuses what cannot be read any further. The client gets a moment to read the answer."""
        if self._busy is not None:  # an answer is under way: no other may be mixed into it
            self._unreadable = (error, status)
            return
        if self.transport.is_closing():  # the last answer has been given
            return
        status, request_id = status or error.status, self._plane.new_request_id()
        self._plane.refused(request_id, self._request, error, status, self.log_end)
        self.writer.write(reply.last(error, status, self._plane.date, request_id, self._request))
        self._queue.clear()
        self._wait("lingering", LINGER_SECONDS)
        end = self.transport.write_eof if self.transport.can_write_eof() else self._close
        end()

    # exchange.Client

    def answer(self, status: int, headers: str, body: bytes) -> None:
        request = self._busy
        if request is None or self.transport.is_closing():
            return
        request.keep_alive = request.keep_alive and not self._shutting
        headers = reply.headers(headers, request, self._plane.bounds.cors_origins)
        self.writer.write(reply.whole(status, self._plane.date, headers, body))
        self._answered()

    def begin(self, headers: str) -> None:
        request = self._busy
        if request is not None:
            request.keep_alive = request.keep_alive and request.chunkable and not self._shutting
            headers = reply.headers(headers, request, self._plane.bounds.cors_origins)
            self._chunked = request.chunkable
            self._held = reply.stream_head(self._plane.date, headers, chunked=request.chunkable)

    def chunks_to(self) -> Writer | None:
        return self.writer if self._chunked and not self._held else None

    def write(self, data: bytes, end: bool) -> None:
        if self.transport.is_closing():
            return
        size = len(data)
        if self._chunked and not self._held and not end and 0 < size < SMALL:
            self.writer.write(SIZE_LINES[size] + data + b"\r\n")  # as `reply.chunk`, for nearly every piece
            return
        data = reply.chunk(self._held, data, end) if self._chunked else self._held + data
        self._held = b""
        if data:
            self.writer.write(data)
        if end:
            self._answered()
