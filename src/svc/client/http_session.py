"""Requests to one server: kept connections, retries, errors as exceptions. It knows no endpoint.

open ─> breaker ─> (connection kept or made ─> request ─> head of the answer) × (1 + retries) ─> Answer, or SvcError
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
from svc.client.patience import ClientCircuitBreaker, is_retryable, retry_delay
from svc.client.transport import ClientTransport, ServerOrigin, TransportConnection
from svc.errors import GatewayFailed, InvalidRequest, RateLimited, SvcError
from svc.wire.production_gateway import PRODUCTION_GATEWAY

SDK_MAX_IDLE_CONNECTIONS = 8
"""Unused connections that are kept."""
SDK_IDLE_CONNECTION_SECONDS = 30.0
SDK_MAX_RESPONSE_BYTES = 64 << 20
SDK_MAX_ERROR_BODY_BYTES = 64 << 10


class SessionTimeouts(msgspec.Struct, frozen=True):
    """In seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """Without a byte from the server."""
    total: float | None = None
    """For the whole call, retries and all."""


class HttpSession:
    """One server and one key. Usable from several threads, or from one event loop."""

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
        """`whose` the server is, for messages: the gateway's, or a provider's."""
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
        """A whole answer with a good status. Raises SvcError."""
        response, deadline = await self.open(method, path, body, headers, total_timeout)
        try:
            return response, await self._read_body(response, deadline, SDK_MAX_RESPONSE_BYTES)
        except OSError as error:
            raise self._to_gateway_error(error, "broke off") from error
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
        """An answer with a good status whose body is still to be read, and the deadline for it. Raises SvcError.

        Whoever opens it reads it with `piece` and gives it back with `release`.
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
        """An answer, or why there is none and how long to wait before the next try (None: do not try again)."""
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
        """On a kept connection, or on a new one when there is none or the kept one turns out to be closed."""
        for connection in self._take_idle_connection():
            try:
                return await self._exchange(connection, request_bytes, deadline)
            except TimeoutError:
                raise
            except OSError:
                continue  # the server closed it just now: that is no failure
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
        """The next bytes of an answer's body; none at its end. Raises GatewayFailed."""
        try:
            return await response.read(self._remaining_seconds(deadline))
        except OSError as error:
            raise self._to_gateway_error(error, "broke off") from error

    async def _read_body(self, response: HttpResponse, deadline: float, limit: int) -> bytes:
        chunks, size = [], 0
        while data := await response.read(self._remaining_seconds(deadline)):
            chunks.append(data)
            size += len(data)
            if size > limit:
                raise ConnectionError("the answer is too long")
        return b"".join(chunks)

    def _remaining_seconds(self, deadline: float, limit: float | None = None) -> float:
        remaining = min(self.timeouts.idle if limit is None else limit, deadline - time.monotonic())
        if remaining <= 0:
            raise TimeoutError("timed out")
        return remaining

    # connections

    def _take_idle_connection(self) -> Iterator[TransportConnection]:
        """Kept connections that are still good; at most one is tried before a new one is made."""
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
        """Keeps the connection if the whole answer was read, else closes it. Once for each answer."""
        with self._lock:
            if response.is_reusable and len(self._idle_connections) < SDK_MAX_IDLE_CONNECTIONS and not self._is_closed:
                self._idle_connections.append((time.monotonic(), response.connection))
                return
        response.connection.close()

    def close(self) -> None:
        """Closes the connections that are not in use, and keeps none any more."""
        with self._lock:
            self._is_closed = True
            idle_connections, self._idle_connections = self._idle_connections, []
        for _, connection in idle_connections:
            connection.close()

    def _to_gateway_error(self, error: OSError, what_failed: str = "cannot be reached") -> GatewayFailed:
        if isinstance(error, TimeoutError):
            return GatewayFailed(f"The {self._server_kind} at {self.base_url} took too long.")
        reason = error.strerror or str(error) or type(error).__name__
        message = f"The {self._server_kind} at {self.base_url} {what_failed}: {reason}."
        if self.base_url == PRODUCTION_GATEWAY:
            message += " Name yours with SVC_GATEWAY_URL or svc.set_gateway_url(…), or start one here: svc up"
        return GatewayFailed(message)


@functools.cache
def _errors_by_code() -> dict[str, type[SvcError]]:
    exported = (getattr(errors, name) for name in dir(errors))
    return {
        each.code: each
        for each in exported
        if isinstance(each, type) and issubclass(each, SvcError) and each.__base__ is SvcError
    }


class _SdkErrorObject(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    """A number where it is no server of ours: some providers repeat the status."""
    param: str | None = None


class _SdkErrorEnvelope(msgspec.Struct):
    error: _SdkErrorObject


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> SvcError:
    """The exception that an error answer stands for."""
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
    """The exception of a code; for a code that is not ours, by the status."""
    error_type = _errors_by_code().get(code or "") or _ERRORS_BY_STATUS.get(
        status, InvalidRequest if 400 <= status < 500 else GatewayFailed
    )
    text = message or f"The server answered with status {status}."
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
