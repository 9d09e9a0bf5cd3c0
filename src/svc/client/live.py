"""Live speech over a WebSocket: send PCM audio, receive partials and finals. For both transports.

open_live ── config ──> ready; then in any order:  feed, flush, reset, close  /  next: Partial | Final, None at the end

Each event that is received waits in one queue until `next` returns it. If several threads or tasks wait for events,
one of them receives for all.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidStatus, ProxyError
from websockets.http11 import Response

from svc import plugins
from svc.client.http_session import HttpSession, error_from_code, error_from_response
from svc.client.transport import WebSocketConnection
from svc.errors import GatewayFailed, InvalidRequest, SvcError, UsageError
from svc.outbound_http import describe_http_error, find_environment_proxy
from svc.tls_context import create_client_context
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
MAX_LIVE_IDLE_TIMEOUT_SECONDS = 86400.0
"""The longest timeout of a send or receive. Locks and sockets raise OverflowError for an infinite one."""
_TIMEOUT_MESSAGE = "The live session was interrupted: timed out."


T = TypeVar("T")

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
        **({"ssl": create_client_context()} if session.base_url.startswith("https:") else {}),
        **(connection_options or {}),
    }
    websocket_module = plugins.load("client", session.transport.websocket_module)
    url = f"ws{session.base_url.removeprefix('http')}{LIVE_SPEECH_PATH}"
    try:
        connection = await websocket_module.open_websocket(url, session.headers, **options)
    except InvalidStatus as error:
        raise _error_from_handshake(session.base_url, error.response) from error
    except InvalidProxy as error:
        # Not the error itself: it contains the URL of the proxy, with the password.
        raise GatewayFailed(
            f"The gateway at {session.base_url} cannot be reached: the proxy is not valid: {error.msg}."
        ) from None
    except (OSError, ProxyError) as error:
        raise GatewayFailed(
            f"The gateway at {session.base_url} cannot be reached: {_describe_os_error(error, options['proxy'])}."
        ) from error
    except InvalidHandshake as error:
        raise GatewayFailed(_describe_other_server(session.base_url, "is not that of a WebSocket")) from error
    except ImportError:
        raise UsageError(
            "The proxy is a SOCKS proxy. A live session through it needs the package python-socks[asyncio]. "
            "Install that, or set an HTTP proxy."
        ) from None
    return LiveSession(connection, session.timeouts.idle)


def _error_from_handshake(base_url: str, response: Response) -> SvcError:
    """Return the exception for a response that rejects the WebSocket."""
    status = response.status_code
    headers = {name.lower(): value for name, value in response.headers.raw_items()}
    error = error_from_response(status, headers, bytes(response.body or b""))
    is_error_of_gateway = error.message != error_from_response(status, {}, b"").message
    if is_error_of_gateway or status in (401, 403, 429) or status >= 500:
        return error
    return type(error)(_describe_other_server(base_url, f"has the status {status}"))


def _describe_other_server(base_url: str, response: str) -> str:
    return (
        f"There is no svc gateway with live speech at {base_url}: the response {response}. "
        "Check the host, the port and the path of the gateway's URL. The path usually is /v1."
    )


_ReceivedMessage = speech.ServerMessage | GatewayFailed
"""A message of the server, or the error if it is not valid."""
_FinalOutcome = speech.Final | speech.ErrorEvent | GatewayFailed


class _SessionEnd(msgspec.Struct, frozen=True):
    """How a session ended. Without a message, it ended regularly."""

    message: str | None = None
    code: str | None = None

    def to_error(self) -> SvcError | None:
        return None if self.message is None else error_from_code(self.code, self.message)


class _FinalWaiter:
    """A call of `finish` that waits for the final of its utterance."""

    def __init__(self, number: int, *, has_reader: bool) -> None:
        self.number = number
        """The number of the utterance in the session, from 1."""
        self.has_reader = has_reader
        """Whether `next` was called meanwhile. It then returns the events, too."""
        self.outcome: _FinalOutcome | None = None


class LiveSession:
    """A session. Several threads or tasks may call its methods at the same time.

    Two callers of `next` share the events: each event goes to one of them.
    """

    def __init__(self, connection: WebSocketConnection, idle_timeout: float) -> None:
        self._connection = connection
        self._idle_timeout = min(idle_timeout, MAX_LIVE_IDLE_TIMEOUT_SECONDS)
        self._unread: deque[_ReceivedMessage] = deque()
        self._last_message: _ReceivedMessage | None = None
        self._end: _SessionEnd | None = None
        self._flush_count = self._final_count = 0
        self._final_waiters: list[_FinalWaiter] = []
        self._reader_count = 0
        """Calls of `next` that wait."""
        self._iterations: weakref.WeakSet[LiveIteration] = weakref.WeakSet()
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
                raise GatewayFailed(f"The gateway closed the session before it was ready{self._describe_reason()}.")

    # sending

    async def send_config(self, config: Mapping[str, Any]) -> None:
        """Send the configuration. Fields that are None use the server's defaults. Raises SvcError."""
        fields = {name: value for name, value in config.items() if value is not None}
        await self._send_message({"type": "config", **fields})

    async def feed(self, pcm: bytes) -> None:
        """Send 16-bit little-endian mono samples at 16 kHz, of any length. Raises SvcError if the session has ended."""
        audio = _to_bytes(pcm)
        for offset in range(0, len(audio), LIVE_AUDIO_FRAME_BYTES):
            await self._send(audio[offset : offset + LIVE_AUDIO_FRAME_BYTES], self._idle_timeout)

    async def flush(self) -> None:
        """End the utterance. `next` returns the final. Raises SvcError."""
        self._connection.update(self._count_flush)
        await self._send_message({"type": "flush"})

    async def reset(self) -> None:
        """Discard the utterance. Raises SvcError."""
        await self._send_message({"type": "reset"})

    async def send_close(self) -> None:
        """Ask the server to close the session. `next_message` returns its event. Raises SvcError."""
        await self._send_message({"type": "close"})

    async def close(self) -> None:
        """Close the session, and wait for the server. Safe to call twice. `next` returns the events until the end."""
        deadline = time.monotonic() + LIVE_CLOSE_TIMEOUT_SECONDS
        try:
            if self._end is None:
                await self._send('{"type":"close"}', LIVE_CLOSE_TIMEOUT_SECONDS)
                await self._receive_until(lambda: self._end, deadline)
        except (SvcError, TimeoutError):
            pass  # the session is closed in any case
        finally:
            self._set_end("The live session was interrupted: the gateway did not confirm its end.")
            self._connection.abort()

    def abort(self) -> None:
        """Close the connection without a message. `next` returns the events that were received before."""
        self._set_end(None)
        self._connection.abort()

    async def finish(self) -> speech.Final:
        """End the utterance and wait for its final. Raises SvcError.

        `next` returns the events meanwhile, and the final, if another thread or task iterates. Else it returns neither.
        """
        waiter = _FinalWaiter(0, has_reader=False)
        self._connection.update(lambda: self._add_final_waiter(waiter))
        try:
            await self._send_message({"type": "flush"})
            outcome: _FinalOutcome | _SessionEnd = await self._receive_until(lambda: self._take_outcome(waiter))
        except TimeoutError:
            raise GatewayFailed(_TIMEOUT_MESSAGE) from None
        finally:
            self._connection.update(lambda: self._remove_final_waiter(waiter))
        match outcome:
            case speech.Final():
                return outcome
            case _SessionEnd():
                message = f"The gateway closed the session before the final{self._describe_reason()}."
                raise outcome.to_error() or GatewayFailed(message)
        raise _to_exception(outcome)

    # receiving

    async def next(self) -> speech.Partial | speech.Final | None:
        """Return the next partial or final, or None at the end.

        Raises an `error` event of the server as SvcError. The session may continue after it. Raises GatewayFailed if
        the connection ends without a `closed` event.
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
        """Return the next message of any type, or None after `closed`.

        Raises GatewayFailed if the connection ends without `closed`, or the error that the server sent before that.
        """
        self._connection.update(self._add_reader)
        try:
            message: _ReceivedMessage | _SessionEnd = await self._receive_until(self._take_message, deadline)
        except TimeoutError:
            raise GatewayFailed(_TIMEOUT_MESSAGE) from None
        finally:
            self._connection.update(self._remove_reader)
        if isinstance(message, _SessionEnd):
            if error := message.to_error():
                raise error
            return None
        if isinstance(message, GatewayFailed):
            raise message
        return message

    async def _receive_until(self, take: Callable[[], T | None], deadline: float = math.inf) -> T:
        return await self._connection.receive_until(take, self, self._idle_timeout, deadline)

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        try:
            text = msgspec.json.encode(message).decode()
        except TypeError as error:
            raise InvalidRequest(f"The configuration cannot be encoded as JSON: {error}.") from None
        await self._send(text, self._idle_timeout)

    async def _send(self, message: str | bytes, timeout: float) -> None:
        """Send a message. Raises the error that the server reported if it has ended the session."""
        if self._end is None:
            try:
                await self._connection.send(message, timeout)
                return
            except TimeoutError:
                self._set_end(_TIMEOUT_MESSAGE)
                self._connection.abort()
            except OSError as error:
                await self._receive_rest(error)
        error_of_end = self._end.to_error() if self._end is not None else None
        raise error_of_end or GatewayFailed(f"The session is closed{self._describe_reason()}.")

    async def _receive_rest(self, error: OSError) -> None:
        """Receive what the server sent before it closed the connection, so that `_end` says why."""
        try:
            await self._receive_until(lambda: self._end, time.monotonic() + LIVE_CLOSE_TIMEOUT_SECONDS)
        except TimeoutError:
            self._set_end(f"The live session was interrupted: {_describe_os_error(error)}.")

    def _describe_reason(self) -> str:
        return f" ({self.close_reason})" if self.close_reason else ""

    # called by the connection

    def on_message(self, raw: bytes) -> None:
        """Handle a message of the server."""
        message = _decode_message(raw)
        self._unread.append(message)
        self._last_message = message
        if isinstance(message, speech.ClosedEvent):
            self.close_reason = message.reason
            self._end = self._end or _SessionEnd()
        elif isinstance(message, speech.Final):
            self._final_count += 1
        for waiter in self._final_waiters:
            if waiter.outcome is not None:
                continue
            if isinstance(message, speech.ErrorEvent | GatewayFailed) or (
                isinstance(message, speech.Final) and waiter.number == self._final_count
            ):
                waiter.outcome = message

    def on_close(self, error: ConnectionClosed) -> None:
        """Handle the end of the connection. It is regular only after `closed`."""
        if self._end is not None:
            return
        last = self._last_message
        if isinstance(last, speech.ErrorEvent) and error.rcvd is not None:  # a close frame after `error` means this
            self._end = _SessionEnd(last.message, last.code)
        else:
            self._end = _SessionEnd(f"The live session was interrupted: {_describe_close(error)}.")

    # called through `update` of the connection

    def _set_end(self, message: str | None) -> None:
        def change() -> None:
            self._end = self._end or _SessionEnd(message)

        self._connection.update(change)

    def _count_flush(self) -> None:
        self._flush_count += 1

    def _add_reader(self) -> None:
        self._reader_count += 1
        for waiter in self._final_waiters:
            waiter.has_reader = True

    def _remove_reader(self) -> None:
        self._reader_count -= 1

    def _take_message(self) -> _ReceivedMessage | _SessionEnd | None:
        if self._unread:
            return self._unread.popleft()
        return self._end

    def _take_outcome(self, waiter: _FinalWaiter) -> _FinalOutcome | _SessionEnd | None:
        return waiter.outcome or self._end

    def _add_final_waiter(self, waiter: _FinalWaiter) -> None:
        self._flush_count += 1
        waiter.number = self._flush_count
        waiter.has_reader = self._has_other_reader()
        if not waiter.has_reader:
            errors = [event for event in self._unread if isinstance(event, speech.ErrorEvent | GatewayFailed)]
            waiter.outcome = errors[0] if errors else None
        self._final_waiters.append(waiter)

    def _remove_final_waiter(self, waiter: _FinalWaiter) -> None:
        """Remove the waiter, and its events unless another thread or task reads them."""
        self._final_waiters.remove(waiter)
        if waiter.outcome is None or waiter.has_reader or self._has_other_reader():
            return
        rest = []
        while self._unread and (event := self._unread.popleft()) is not waiter.outcome:
            if not isinstance(event, speech.Partial):
                rest.append(event)
        self._unread.extendleft(reversed(rest))

    def _has_other_reader(self) -> bool:
        caller_id = self._connection.caller_id()
        return self._reader_count > 0 or any(each.caller_id != caller_id for each in self._iterations)

    def iterate(self) -> LiveIteration:
        """Start a loop over the events. The session keeps events for it while it exists."""
        iteration = LiveIteration(self)
        self._connection.update(lambda: self._iterations.add(iteration))
        return iteration

    def caller_id(self) -> int:
        """Return the id of the current thread or task."""
        return self._connection.caller_id()


class LiveIteration:
    """A loop over the events of a session."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.caller_id = session.caller_id()
        """The thread or task that iterates."""

    async def next(self) -> speech.Partial | speech.Final | None:
        """Return the next partial or final, or None at the end. Raises SvcError as `LiveSession.next` does."""
        self.caller_id = self._session.caller_id()
        return await self._session.next()


def _decode_message(raw: bytes) -> _ReceivedMessage:
    try:
        message: speech.ServerMessage = _MESSAGE_DECODER.decode(raw)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return GatewayFailed("The gateway sent a message that is not a live speech event.")


def _to_exception(event: speech.ErrorEvent | GatewayFailed) -> SvcError:
    return error_from_code(event.code, event.message)


def _describe_os_error(error: BaseException, proxy: object = None) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return describe_http_error(error, proxy if isinstance(proxy, str) else None)


def _describe_close(error: ConnectionClosed) -> str:
    if error.rcvd is None:
        return describe_http_error(error.__cause__ if isinstance(error.__cause__, OSError) else error)
    if error.rcvd_then_sent is False:  # the client has closed first, such as after a message that is too large
        return str(error)
    return f"the gateway closed the connection with code {str(error.rcvd).rstrip('. ')}"


def _to_bytes(pcm: Any) -> bytes:
    """Return the bytes of any object with a buffer, such as a NumPy array of 16-bit integers. Raises InvalidRequest."""
    if isinstance(pcm, bytes):
        return pcm
    try:
        view = memoryview(pcm)
    except TypeError:
        raise InvalidRequest(f"The audio is not bytes, but {type(pcm).__name__}.", param="pcm") from None
    if view.format not in ("B", "b", "c", "h", "<h"):
        hint = " For floats: (samples * 32767).astype('<i2')." if view.format in ("f", "d", "<f", "<d") else ""
        raise InvalidRequest(f"The audio is not 16-bit integers, but {view.format!r}.{hint}", param="pcm")
    return view.tobytes()
