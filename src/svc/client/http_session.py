"""HTTP requests to one server: a connection pool, retries, a circuit breaker, and errors as exceptions.

open ─> breaker ─> (pooled or new connection ─> request ─> response head) × (1 + retries) ─> HttpResponse, or SvcError
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import msgspec

from svc import errors
from svc.client.http_response import HttpResponse, encode_request
from svc.client.retry import ClientCircuitBreaker, is_retryable, retry_delay
from svc.client.transport import ClientTransport, ServerOrigin, TransportConnection
from svc.errors import GatewayFailed, InvalidRequest, RateLimited, SvcError
from svc.wire.production_gateway import PRODUCTION_GATEWAY

SDK_MAX_IDLE_CONNECTIONS = 8
"""The maximum number of idle connections in the pool."""
SDK_IDLE_CONNECTION_SECONDS = 30.0
SDK_MAX_RESPONSE_BYTES = 64 << 20
SDK_MAX_ERROR_BODY_BYTES = 64 << 10


class SessionTimeouts(msgspec.Struct, frozen=True):
    """Timeouts in seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """The longest wait for a byte from the server."""
    total: float | None = None
    """The limit of the whole call, including retries."""


class HttpSession:
    """A session with one server and one key. Use it from several threads, or from one event loop."""

    def __init__(
        self,
        transport: ClientTransport,
        base_url: str,
        headers: Mapping[str, str],
        *,
        retries: int,
        timeouts: SessionTimeouts,
        server_kind: str = "gateway",
    ) -> None:
        """Create a session. `server_kind` is "gateway" or "provider", for error messages."""
        parts = urlsplit(base_url)
        tls = parts.scheme == "https"
        self.base_url, self.timeouts = base_url, timeouts
        self.transport = transport
        self.headers = {"user-agent": "svc", **headers}
        self.host = parts.netloc
        self._path = parts.path
        self.origin = ServerOrigin(parts.hostname or "", parts.port or (443 if tls else 80), tls)
        self._retries, self._server_kind = retries, server_kind
        self._breaker = ClientCircuitBreaker(server_kind=server_kind)
        self._lock = threading.Lock()
        self._idle_connections: list[tuple[float, TransportConnection]] = []
        self._is_closed = False

    async def fetch(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        total_timeout: float | None = None,
    ) -> tuple[HttpResponse, bytes]:
        """Return a successful response and its body. Raises SvcError."""
        response, deadline = await self.open(method, path, body, headers, total_timeout)
        try:
            return response, await self._read_body(response, deadline, SDK_MAX_RESPONSE_BYTES)
        except OSError as error:
            raise self._to_gateway_error(error, "was interrupted") from error
        finally:
            self.release(response)

    async def open(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        total_timeout: float | None = None,
    ) -> tuple[HttpResponse, float]:
        """Return a successful response whose body is not read yet, and its deadline. Raises SvcError.

        The caller reads the body with `read_chunk` and then calls `release`.
        """
        timeout = self.timeouts.total if total_timeout is None else total_timeout
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        request_bytes = encode_request(method, self._path + path, self.host, {**self.headers, **(headers or {})}, body)
        for attempt in range(self._retries + 1):
            self._breaker.raise_if_open()
            outcome, wait = await self._attempt(request_bytes, deadline, attempt)
            if isinstance(outcome, HttpResponse):
                return outcome, deadline
            if wait is None or attempt == self._retries or time.monotonic() + wait >= deadline:
                raise outcome
            await self.transport.sleep(wait)
        raise AssertionError("unreachable: the last attempt raises")

    async def _attempt(
        self, request_bytes: bytes, deadline: float, attempt: int
    ) -> tuple[HttpResponse | SvcError, float | None]:
        """Send the request once. Return the response, or the error and the delay before a retry (None: no retry)."""
        try:
            response = await self._send(request_bytes, deadline)
        except OSError as error:
            self._breaker.record_failure()
            return self._to_gateway_error(error), None if isinstance(error, TimeoutError) else retry_delay(attempt)
        if response.status < 300:
            self._breaker.record_success()
            return response, None
        try:
            failure = error_from_response(
                response.status, response.headers, await self._read_body(response, deadline, SDK_MAX_ERROR_BODY_BYTES)
            )
        except OSError as error:
            failure = self._to_gateway_error(error)
        finally:
            self.release(response)
        if isinstance(failure, GatewayFailed):
            self._breaker.record_failure()
        else:
            self._breaker.record_success()
        return failure, retry_delay(attempt, response.headers) if is_retryable(
            response.status, response.headers
        ) else None

    async def _send(self, request_bytes: bytes, deadline: float) -> HttpResponse:
        """Send the request on a pooled connection. Uses a new one if there is none, or if the pooled one is closed."""
        for connection in self._take_idle_connection():
            try:
                return await self._exchange(connection, request_bytes, deadline)
            except TimeoutError:
                raise
            except OSError:
                continue  # the server closed the idle connection: not a failure
        connection = await self.transport.connect(self.origin, self._remaining_seconds(deadline, self.timeouts.connect))
        return await self._exchange(connection, request_bytes, deadline)

    async def _exchange(self, connection: TransportConnection, request_bytes: bytes, deadline: float) -> HttpResponse:
        response = HttpResponse(connection)
        try:
            connection.write(request_bytes, self._remaining_seconds(deadline))
            await connection.drain(self._remaining_seconds(deadline))
            await response.read_head(self._remaining_seconds(deadline))
        except BaseException:
            connection.close()
            raise
        return response

    async def read_chunk(self, response: HttpResponse, deadline: float) -> bytes:
        """Return the next bytes of the body, or b"" at its end. Raises GatewayFailed."""
        try:
            return await response.read(self._remaining_seconds(deadline))
        except OSError as error:
            raise self._to_gateway_error(error, "was interrupted") from error

    async def _read_body(self, response: HttpResponse, deadline: float, limit: int) -> bytes:
        chunks, size = [], 0
        while data := await response.read(self._remaining_seconds(deadline)):
            chunks.append(data)
            size += len(data)
            if size > limit:
                raise ConnectionError("the response is too long")
        return b"".join(chunks)

    def _remaining_seconds(self, deadline: float, limit: float | None = None) -> float:
        remaining = min(self.timeouts.idle if limit is None else limit, deadline - time.monotonic())
        if remaining <= 0:
            raise TimeoutError("timed out")
        return remaining

    # connections

    def _take_idle_connection(self) -> Iterator[TransportConnection]:
        """Yield at most one pooled connection that is still usable."""
        while True:
            with self._lock:
                if not self._idle_connections:
                    return
                idle_since, connection = self._idle_connections.pop()
            if time.monotonic() - idle_since < SDK_IDLE_CONNECTION_SECONDS and not connection.is_stale:
                yield connection
                return
            connection.close()

    def release(self, response: HttpResponse) -> None:
        """Return the connection to the pool if the response is complete, else close it. Call it once per response."""
        with self._lock:
            if response.is_reusable and len(self._idle_connections) < SDK_MAX_IDLE_CONNECTIONS and not self._is_closed:
                self._idle_connections.append((time.monotonic(), response.connection))
                return
        response.connection.close()

    def close(self) -> None:
        """Close the idle connections. Later connections are not pooled."""
        with self._lock:
            self._is_closed = True
            idle_connections, self._idle_connections = self._idle_connections, []
        for _, connection in idle_connections:
            connection.close()

    def _to_gateway_error(self, error: OSError, what_failed: str = "cannot be reached") -> GatewayFailed:
        if isinstance(error, TimeoutError):
            return GatewayFailed(f"The {self._server_kind} at {self.base_url} timed out.")
        reason = error.strerror or str(error) or type(error).__name__
        message = f"The {self._server_kind} at {self.base_url} {what_failed}: {reason}."
        if self.base_url == PRODUCTION_GATEWAY:
            message += " Set SVC_GATEWAY_URL or call svc.set_gateway_url(…), or start a gateway on this machine: svc up"
        return GatewayFailed(message)


@functools.cache
def _errors_by_code() -> dict[str, type[SvcError]]:
    exported = (getattr(errors, name) for name in dir(errors))
    return {
        error_type.code: error_type
        for error_type in exported
        if isinstance(error_type, type) and issubclass(error_type, SvcError) and error_type.__base__ is SvcError
    }


class _SdkErrorObject(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    """The error code. Some providers send the status as a number."""
    param: str | None = None


class _SdkErrorEnvelope(msgspec.Struct):
    error: _SdkErrorObject


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> SvcError:
    """Return the exception for an error response."""
    try:
        error_object = msgspec.json.decode(body, type=_SdkErrorEnvelope).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error_object = _SdkErrorObject()
    code = error_object.code if isinstance(error_object.code, str) else None
    error = error_from_code(code, error_object.message, status, headers)
    error.param = error.param or error_object.param
    error.request_id = headers.get("x-request-id")
    return error


def error_from_code(
    code: str | None, message: str, status: int = 0, headers: Mapping[str, str] | None = None
) -> SvcError:
    """Return the exception for an error code, or for the status if the code is unknown."""
    error_type = _errors_by_code().get(code or "") or _ERRORS_BY_STATUS.get(
        status, InvalidRequest if 400 <= status < 500 else GatewayFailed
    )
    text = message or f"The server returned status {status}."
    if error_type is RateLimited:
        try:
            retry_after = float((headers or {}).get("retry-after", "60"))
        except ValueError:
            retry_after = 60.0
        return RateLimited(text, retry_after=retry_after)
    return error_type(text)


_ERRORS_BY_STATUS: dict[int, type[SvcError]] = {
    401: errors.AuthenticationFailed,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    413: errors.TooLarge,
    429: RateLimited,
    431: errors.HeadTooLarge,
}
