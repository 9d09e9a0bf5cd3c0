"""Live speech over a WebSocket: send PCM audio, receive partials and finals. For both transports.

open_live ── config ──> ready; then in any order:  feed, flush, reset, close  /  next: Partial | Final, None at the end
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from websockets.exceptions import InvalidHandshake, InvalidProxy, InvalidStatus, ProxyError

from svc import plugins
from svc.client.http_session import HttpSession, error_from_code, error_from_response
from svc.client.transport import WebSocketConnection
from svc.errors import GatewayFailed, InvalidRequest, SvcError
from svc.outbound_http import describe_http_error, find_environment_proxy
from svc.wire import speech

LIVE_SPEECH_PATH = "/audio/transcriptions/stream"
LIVE_AUDIO_FRAME_BYTES = 32000
"""The maximum size of an audio frame, in bytes: one second."""
MAX_LIVE_MESSAGE_BYTES = 4 << 20
MAX_LIVE_QUEUED_MESSAGES = 1 << 16
"""Messages that are received ahead of their reader, so that a caller can feed hours of audio before it reads."""
LIVE_CLOSE_TIMEOUT_SECONDS = 10.0
LIVE_READY_TIMEOUT_SECONDS = 60.0
"""Seconds for the handshake and for `ready`: the server may have to load a model."""


_MESSAGE_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(speech.ServerMessage)


async def open_live(
    session: HttpSession, config: Mapping[str, Any], connection_options: Mapping[str, Any]
) -> LiveSession:
    """Connect, configure and wait for `ready`. Raises SvcError."""
    live = await connect_live(session, connection_options)
    try:
        await live.send_config(config)
        await live.wait_until_ready()
    except BaseException:
        live.abort()
        raise
    return live


async def connect_live(session: HttpSession, connection_options: Mapping[str, Any] | None = None) -> LiveSession:
    """Connect without sending a message. `connection_options` are those of `websockets`. Raises SvcError."""
    options = {
        "open_timeout": LIVE_READY_TIMEOUT_SECONDS,
        "proxy": None if session.transport.is_direct else find_environment_proxy(session.base_url),
        "compression": None,
        "ping_interval": None,  # the gateway may be busy with the audio
        "max_size": MAX_LIVE_MESSAGE_BYTES,
        "max_queue": MAX_LIVE_QUEUED_MESSAGES,
        "user_agent_header": None,
        **(connection_options or {}),
    }
    websocket_module = plugins.load("client", session.transport.websocket_module)
    url = f"ws{session.base_url.removeprefix('http')}{LIVE_SPEECH_PATH}"
    try:
        connection = await websocket_module.open_websocket(url, session.headers, **options)
    except InvalidStatus as error:
        response = error.response
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        raise error_from_response(response.status_code, headers, bytes(response.body or b"")) from error
    except InvalidProxy as error:
        # Not the error itself: it contains the URL of the proxy, with the password.
        raise GatewayFailed(
            f"The gateway at {session.base_url} cannot be reached: the proxy is not valid: {error.msg}."
        ) from None
    except (OSError, ProxyError) as error:
        raise GatewayFailed(
            f"The gateway at {session.base_url} cannot be reached: {_describe_os_error(error)}."
        ) from error
    except InvalidHandshake as error:
        raise GatewayFailed("The server is not a gateway with live speech.") from error
    return LiveSession(connection, session.timeouts.idle)


class LiveSession:
    """A session. One thread or task may call `feed` while another calls `next`."""

    def __init__(self, connection: WebSocketConnection, idle_timeout: float) -> None:
        self._connection, self._idle_timeout = connection, idle_timeout
        self._closed_by_client = False
        self.session_id = ""
        self.model = ""
        self.close_reason: str | None = None
        """Why the server closed the session: `client_close`, `idle_timeout`, …"""

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

    # sending

    async def send_config(self, config: Mapping[str, Any]) -> None:
        """Send the configuration. Fields that are None use the server's defaults."""
        fields = {name: value for name, value in config.items() if value is not None}
        await self._send_message({"type": "config", **fields})

    async def feed(self, pcm: bytes) -> None:
        """Send 16-bit little-endian mono samples at 16 kHz, of any length. Raises GatewayFailed."""
        for offset in range(0, len(pcm), LIVE_AUDIO_FRAME_BYTES):
            await self._send(bytes(pcm[offset : offset + LIVE_AUDIO_FRAME_BYTES]))

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
            if not self._closed_by_client and self.close_reason is None:
                await self.send_close()
                deadline = time.monotonic() + LIVE_CLOSE_TIMEOUT_SECONDS
                while await self.next_message(deadline) is not None:
                    pass
        except GatewayFailed:
            pass  # the session is closed in any case
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the connection without a message."""
        self._closed_by_client = True
        self._connection.abort()

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
        """Return the next message of any type, or None if the connection is closed. Raises GatewayFailed."""
        if self.close_reason is not None:
            return None
        try:
            raw = await self._connection.receive(min(self._idle_timeout, max(0.001, deadline - time.monotonic())))
        except OSError as error:
            if self._closed_by_client:
                return None
            raise GatewayFailed(f"The live session was interrupted: {_describe_os_error(error)}.") from error
        if raw is None:
            return None
        event = _decode_message(raw)
        if isinstance(event, speech.ClosedEvent):
            self.close_reason = event.reason
        return event

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        try:
            text = msgspec.json.encode(message).decode()
        except TypeError as error:
            raise InvalidRequest(f"The configuration cannot be encoded as JSON: {error}.") from None
        await self._send(text)

    async def _send(self, message: str | bytes) -> None:
        try:
            await self._connection.send(message)
        except OSError as error:
            reason = f" ({self.close_reason})" if self.close_reason else ""
            raise GatewayFailed(f"The session is closed{reason}.") from error


def _decode_message(raw: bytes) -> speech.ServerMessage:
    try:
        message: speech.ServerMessage = _MESSAGE_DECODER.decode(raw)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("The gateway sent a message that is not a live speech event.") from error


def _to_exception(event: speech.ErrorEvent) -> SvcError:
    return error_from_code(event.code, event.message)


def _describe_os_error(error: BaseException) -> str:
    return "timed out" if isinstance(error, TimeoutError) else describe_http_error(error)
