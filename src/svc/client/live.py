"""Live speech over a WebSocket: feed PCM, hear partials and finals. One source for both nets; no audio processing.

open_live ── config ──> ready; then in any order:  feed, flush, reset, close  /  next: Partial | Final, None at the end
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from svc.client.session import Session, of_code, problem
from svc.client.wires import Wire
from svc.errors import GatewayFailed, InvalidRequest, SvcError
from svc.wire import speech

PATH = "/audio/transcriptions/stream"
FRAME = 32000
"""Bytes of audio in a frame: one second."""
MAX_MESSAGE = 4 << 20
READY_SECONDS = 60.0
"""Loading a model takes some."""


_MESSAGES: msgspec.json.Decoder[Any] = msgspec.json.Decoder(speech.ServerMessage)


async def open_live(session: Session, config: Mapping[str, Any]) -> LiveSession:
    """Connects, configures and waits for `ready`. Raises SvcError."""
    live = await dial(session)
    try:
        await live.configure(config)
        await live.begin()
    except BaseException:
        live.abandon()
        raise
    return live


async def dial(session: Session) -> LiveSession:
    """A connection on which nothing has been said yet. Raises SvcError."""
    parts = urlsplit(session.base)
    scheme = "wss" if parts.scheme == "https" else "ws"
    uri = urlunsplit((scheme, parts.netloc, parts.path + PATH, "", ""))
    try:
        wire = await session.net.connect(session.origin, session.times.connect)
    except OSError as error:
        raise GatewayFailed(f"The gateway at {session.base} cannot be reached: {error}.") from error
    live = LiveSession(wire, uri, session.headers, session.times.idle)
    try:
        await live.greet()
    except BaseException:
        live.abandon()
        raise
    return live


class LiveSession:
    """One session. One thread or task may feed while another takes `next`."""

    def __init__(self, wire: Wire, uri: str, headers: Mapping[str, str], idle: float) -> None:
        self._wire, self._idle, self._headers = wire, idle, headers
        self._protocol = ClientProtocol(parse_uri(uri), max_size=MAX_MESSAGE)
        self._lock = threading.Lock()
        self._events: deque[speech.ServerMessage] = deque()
        self._response: Response | None = None
        self._fragments: list[bytes] = []
        self._over = False
        self.session_id = ""
        self.model = ""
        self.closed: str | None = None
        """Why the server closed: `client_close`, `idle_timeout`, …"""

    async def greet(self) -> None:
        """The handshake. Raises SvcError."""
        request = self._protocol.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        await self._flow()
        deadline = time.monotonic() + READY_SECONDS
        while self._response is None and self._protocol.handshake_exc is None:
            await self._receive(deadline)
        self._check_handshake()

    async def begin(self) -> None:
        """Waits for `ready`. Raises SvcError: what `config` was answered with."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            event = await self._event(deadline)
            if isinstance(event, speech.Ready):
                self.session_id, self.model = event.session_id, event.model
                return
            if event is None:
                raise GatewayFailed("The gateway closed the session before it was ready.")

    def _check_handshake(self) -> None:
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise problem(response.status_code, headers, bytes(response.body or b""))
        if error is not None:
            raise GatewayFailed("What answered is no gateway with live speech.") from error

    # what is said

    async def configure(self, config: Mapping[str, Any]) -> None:
        """The first message; fields that are None are left to the server."""
        fields = {name: value for name, value in config.items() if value is not None}
        await self._say({"type": "config", **fields})

    async def feed(self, pcm: bytes) -> None:
        """Audio: 16-bit little-endian samples, 16000 per second, mono; of any length. Raises GatewayFailed."""
        for place in range(0, len(pcm), FRAME):
            await self._send(lambda piece=bytes(pcm[place : place + FRAME]): self._protocol.send_binary(piece))

    async def flush(self) -> None:
        """Asks for the final; it comes with `next`."""
        await self._say({"type": "flush"})

    async def reset(self) -> None:
        """Forgets the utterance."""
        await self._say({"type": "reset"})

    async def leave(self) -> None:
        """Asks for the end; it comes with `message`."""
        await self._say({"type": "close"})

    async def close(self) -> None:
        """Says good-bye, waits for the server's, and closes. Safe to call twice."""
        try:
            if self._protocol.state is State.OPEN:
                await self.leave()
                deadline = time.monotonic() + 10
                while self.closed is None and self._protocol.state is State.OPEN:
                    await self._receive(deadline)
                    self._take_closed()
        except (GatewayFailed, OSError):
            pass  # it is over either way
        finally:
            self.abandon()

    def _take_closed(self) -> None:
        reasons = [event.reason for event in self._events if isinstance(event, speech.Closed)]
        self.closed = reasons[0] if reasons else None

    def abandon(self) -> None:
        """Closes without a word."""
        self._over = True
        self._wire.close()

    async def finish(self) -> speech.Final:
        """Flushes and waits for the final. Raises SvcError."""
        await self.flush()
        while True:
            event = await self.next()
            if isinstance(event, speech.Final):
                return event
            if event is None:
                raise GatewayFailed("The gateway closed the session before its final.")

    # what is heard

    async def next(self) -> speech.Partial | speech.Final | None:
        """The next partial or final; None at the end. An `error` of the server is raised; the session may go on."""
        while True:
            event = await self._event(math.inf)
            if event is None or isinstance(event, speech.Partial | speech.Final):
                return event

    async def _event(self, deadline: float) -> speech.ServerMessage | None:
        event = await self.message(deadline)
        if isinstance(event, speech.Error):
            raise _failure(event)
        return None if isinstance(event, speech.Closed) else event

    async def message(self, deadline: float = math.inf) -> speech.ServerMessage | None:
        """Whatever the server says next, errors and `closed` too; None when the connection is over."""
        while not self._events:
            if self.closed is not None or self._protocol.state is State.CLOSED:
                return None
            await self._receive(deadline)
        event = self._events.popleft()
        if isinstance(event, speech.Closed):
            self.closed = event.reason
        return event

    async def _receive(self, deadline: float) -> None:
        try:
            data = await self._wire.read(min(self._idle, max(0.001, deadline - time.monotonic())))
        except OSError as error:
            raise GatewayFailed(f"Live speech broke off: {_why(error)}.") from error
        with self._lock:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            for event in self._protocol.events_received():
                self._hear(event)
        await self._flow()

    def _hear(self, event: Any) -> None:
        if isinstance(event, Response):
            self._response = event
        elif event.opcode in (Opcode.TEXT, Opcode.CONT):
            self._fragments.append(bytes(event.data))
            if event.fin:
                raw, self._fragments = b"".join(self._fragments), []
                self._events.append(_read(raw))

    async def _say(self, message: Mapping[str, Any]) -> None:
        try:
            text = msgspec.json.encode(message)
        except TypeError as error:
            raise InvalidRequest(f"The configuration cannot be written as JSON: {error}.") from None
        await self._send(lambda: self._protocol.send_text(text))

    async def _send(self, put: Any) -> None:
        with self._lock:
            if self._over or self._protocol.state is not State.OPEN:
                raise GatewayFailed(f"The session is over{f' ({self.closed})' if self.closed else ''}.")
            put()
        await self._flow()

    async def _flow(self) -> None:
        """Sends what the protocol wants to be sent; whoever takes it gives it away, so that the order stays."""
        try:
            with self._lock:
                if data := b"".join(self._protocol.data_to_send()):
                    self._wire.push(data, self._idle)
            if data:
                await self._wire.settle(self._idle)
        except OSError as error:
            raise GatewayFailed(f"Live speech broke off: {_why(error)}.") from error


def _read(raw: bytes) -> speech.ServerMessage:
    try:
        message: speech.ServerMessage = _MESSAGES.decode(raw)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("The gateway said something that is no event of live speech.") from error


def _failure(event: speech.Error) -> SvcError:
    return of_code(event.code, event.message)


def _why(error: OSError) -> str:
    return "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
