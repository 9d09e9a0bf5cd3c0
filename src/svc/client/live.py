"""Live speech over a WebSocket: send PCM audio, receive partials and finals. For both transports.

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

from svc.client.http_session import HttpSession, error_from_code, error_from_response
from svc.client.transport import TransportConnection
from svc.errors import GatewayFailed, InvalidRequest, SvcError
from svc.wire import speech

LIVE_SPEECH_PATH = "/audio/transcriptions/stream"
LIVE_AUDIO_FRAME_BYTES = 32000
"""The maximum size of an audio frame, in bytes: one second."""
MAX_LIVE_MESSAGE_BYTES = 4 << 20
LIVE_READY_TIMEOUT_SECONDS = 60.0
"""Seconds for the handshake and for `ready`: the server may have to load a model."""


_MESSAGE_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(speech.ServerMessage)


async def open_live(session: HttpSession, config: Mapping[str, Any]) -> LiveSession:
    """Connect, configure and wait for `ready`. Raises SvcError."""
    live = await connect_live(session)
    try:
        await live.send_config(config)
        await live.wait_until_ready()
    except BaseException:
        live.abort()
        raise
    return live


async def connect_live(session: HttpSession) -> LiveSession:
    """Connect without sending a message. Raises SvcError."""
    parts = urlsplit(session.base_url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    uri = urlunsplit((scheme, parts.netloc, parts.path + LIVE_SPEECH_PATH, "", ""))
    try:
        connection = await session.transport.connect(session.origin, session.timeouts.connect)
    except OSError as error:
        raise GatewayFailed(
            f"The gateway at {session.base_url} cannot be reached: {error.strerror or error}."
        ) from error
    live = LiveSession(connection, uri, session.headers, session.timeouts.idle)
    try:
        await live.handshake()
    except BaseException:
        live.abort()
        raise
    return live


class LiveSession:
    """A session. One thread or task may call `feed` while another calls `next`."""

    def __init__(
        self, connection: TransportConnection, uri: str, headers: Mapping[str, str], idle_timeout: float
    ) -> None:
        self._connection, self._idle_timeout, self._headers = connection, idle_timeout, headers
        self._protocol = ClientProtocol(parse_uri(uri), max_size=MAX_LIVE_MESSAGE_BYTES)
        self._lock = threading.Lock()
        self._events: deque[speech.ServerMessage] = deque()
        self._response: Response | None = None
        self._fragments: list[bytes] = []
        self._is_aborted = False
        self.session_id = ""
        self.model = ""
        self.close_reason: str | None = None
        """Why the server closed the session: `client_close`, `idle_timeout`, …"""

    async def handshake(self) -> None:
        """Do the WebSocket handshake (RFC 6455, section 4). Raises SvcError."""
        request = self._protocol.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        await self._flush_output()
        deadline = time.monotonic() + LIVE_READY_TIMEOUT_SECONDS
        while self._response is None and self._protocol.handshake_exc is None:
            await self._receive(deadline)
        self._check_handshake()

    async def wait_until_ready(self) -> None:
        """Wait for `ready`. Raises SvcError if the server rejects the configuration."""
        deadline = time.monotonic() + LIVE_READY_TIMEOUT_SECONDS
        while True:
            event = await self._next_event(deadline)
            if isinstance(event, speech.ReadyEvent):
                self.session_id, self.model = event.session_id, event.model
                return
            if event is None:
                raise GatewayFailed("The gateway closed the session before it was ready.")

    def _check_handshake(self) -> None:
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise error_from_response(response.status_code, headers, bytes(response.body or b""))
        if error is not None:
            raise GatewayFailed("The server is not a gateway with live speech.") from error

    # sending

    async def send_config(self, config: Mapping[str, Any]) -> None:
        """Send the configuration. Fields that are None use the server's defaults."""
        fields = {name: value for name, value in config.items() if value is not None}
        await self._send_message({"type": "config", **fields})

    async def feed(self, pcm: bytes) -> None:
        """Send 16-bit little-endian mono samples at 16 kHz, of any length. Raises GatewayFailed."""
        for offset in range(0, len(pcm), LIVE_AUDIO_FRAME_BYTES):
            await self._send_frame(
                lambda frame=bytes(pcm[offset : offset + LIVE_AUDIO_FRAME_BYTES]): self._protocol.send_binary(frame)
            )

    async def flush(self) -> None:
        """End the utterance. `next` returns the final."""
        await self._send_message({"type": "flush"})

    async def reset(self) -> None:
        """Discard the utterance."""
        await self._send_message({"type": "reset"})

    async def send_close(self) -> None:
        """Ask the server to close the session. `next_message` returns its event."""
        await self._send_message({"type": "close"})

    async def close(self) -> None:
        """Close the session and wait for the server. Safe to call twice."""
        try:
            if self._protocol.state is State.OPEN:
                await self.send_close()
                deadline = time.monotonic() + 10
                while self.close_reason is None and self._protocol.state is State.OPEN:
                    await self._receive(deadline)
                    self._update_close_reason()
        except (GatewayFailed, OSError):
            pass  # the session is closed in any case
        finally:
            self.abort()

    def _update_close_reason(self) -> None:
        reasons = [event.reason for event in self._events if isinstance(event, speech.ClosedEvent)]
        self.close_reason = reasons[0] if reasons else None

    def abort(self) -> None:
        """Close the connection without a message."""
        self._is_aborted = True
        self._connection.close()

    async def finish(self) -> speech.Final:
        """End the utterance and wait for its final. Raises SvcError."""
        await self.flush()
        while True:
            event = await self.next()
            if isinstance(event, speech.Final):
                return event
            if event is None:
                raise GatewayFailed("The gateway closed the session before the final.")

    # receiving

    async def next(self) -> speech.Partial | speech.Final | None:
        """Return the next partial or final, or None at the end.

        Raises an `error` event of the server as SvcError. The session may continue after it.
        """
        while True:
            event = await self._next_event(math.inf)
            if event is None or isinstance(event, speech.Partial | speech.Final):
                return event

    async def _next_event(self, deadline: float) -> speech.ServerMessage | None:
        event = await self.next_message(deadline)
        if isinstance(event, speech.ErrorEvent):
            raise _to_exception(event)
        return None if isinstance(event, speech.ClosedEvent) else event

    async def next_message(self, deadline: float = math.inf) -> speech.ServerMessage | None:
        """Return the next message of any type, or None if the connection is closed."""
        while not self._events:
            if self.close_reason is not None or self._protocol.state is State.CLOSED:
                return None
            await self._receive(deadline)
        event = self._events.popleft()
        if isinstance(event, speech.ClosedEvent):
            self.close_reason = event.reason
        return event

    async def _receive(self, deadline: float) -> None:
        try:
            data = await self._connection.read(min(self._idle_timeout, max(0.001, deadline - time.monotonic())))
        except OSError as error:
            raise GatewayFailed(f"The live session was interrupted: {_describe_os_error(error)}.") from error
        with self._lock:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            for event in self._protocol.events_received():
                self._handle_event(event)
        await self._flush_output()

    def _handle_event(self, event: Any) -> None:
        if isinstance(event, Response):
            self._response = event
        elif event.opcode in (Opcode.TEXT, Opcode.CONT):
            self._fragments.append(bytes(event.data))
            if event.fin:
                raw, self._fragments = b"".join(self._fragments), []
                self._events.append(_decode_message(raw))

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        try:
            text = msgspec.json.encode(message)
        except TypeError as error:
            raise InvalidRequest(f"The configuration cannot be encoded as JSON: {error}.") from None
        await self._send_frame(lambda: self._protocol.send_text(text))

    async def _send_frame(self, write_frame: Any) -> None:
        with self._lock:
            if self._is_aborted or self._protocol.state is not State.OPEN:
                raise GatewayFailed(f"The session is closed{f' ({self.close_reason})' if self.close_reason else ''}.")
            write_frame()
        await self._flush_output()

    async def _flush_output(self) -> None:
        """Send the protocol's output. The lock covers taking and writing it, so that the order is kept."""
        try:
            with self._lock:
                if data := b"".join(self._protocol.data_to_send()):
                    self._connection.write(data, self._idle_timeout)
            if data:
                await self._connection.drain(self._idle_timeout)
        except OSError as error:
            raise GatewayFailed(f"The live session was interrupted: {_describe_os_error(error)}.") from error


def _decode_message(raw: bytes) -> speech.ServerMessage:
    try:
        message: speech.ServerMessage = _MESSAGE_DECODER.decode(raw)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("The gateway sent a message that is not a live speech event.") from error


def _to_exception(event: speech.ErrorEvent) -> SvcError:
    return error_from_code(event.code, event.message)


def _describe_os_error(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
