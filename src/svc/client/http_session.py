"""HTTP requests to one server: retries, a circuit breaker, and errors as exceptions. No sockets.

open ─> breaker ─> (request ─> response head) × (1 + retries) ─> ClientResponse, or SvcError
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Mapping

import msgspec

from svc import errors
from svc.client.retry import ClientCircuitBreaker, is_retryable, retry_delay
from svc.client.transport import ClientRequest, ClientResponse, ClientTransport, RequestTimeouts
from svc.errors import GatewayFailed, InvalidRequest, ProviderFailed, RateLimited, SvcError
from svc.resilience import parse_retry_after
from svc.wire.production_gateway import PRODUCTION_GATEWAY

SDK_MAX_RESPONSE_BYTES = 64 << 20
SDK_MAX_ERROR_BODY_BYTES = 64 << 10
SDK_DEFAULT_RETRY_AFTER_SECONDS = 60.0
MAX_LOCATION_CHARS = 200
SDK_MAX_TIMEOUT_SECONDS = 1e9
"""The maximum timeout, 32 years. Sockets and timers reject much larger numbers, and infinity."""
DEADLINE_TOLERANCE_SECONDS = 0.05
"""A timeout this short before the deadline of the caller is due to it."""


class SessionTimeouts(msgspec.Struct, frozen=True):
    """Timeouts in seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """The longest wait for a byte from the server."""


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
        self.base_url = base_url
        self.timeouts = SessionTimeouts(timeouts.connect, min(timeouts.idle, SDK_MAX_TIMEOUT_SECONDS))
        self.transport = transport
        self.headers = {"user-agent": "svc", **headers}
        self.is_gateway = server_kind == "gateway"
        self.retries, self._server_kind = retries, server_kind
        self._breaker = ClientCircuitBreaker(server_kind=server_kind)

    async def fetch(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        total_timeout: float | None = None,
    ) -> tuple[ClientResponse, bytes]:
        """Return a successful response and its body. Raises SvcError."""
        response = await self.open(method, path, body, headers, total_timeout)
        try:
            with add_request_id(response):
                return response, await self.read_body(response)
        finally:
            await response.close()

    async def open(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        total_timeout: float | None = None,
    ) -> ClientResponse:
        """Return a successful response whose body is not read yet. `total_timeout` includes it. Raises SvcError.

        The caller reads the body with `read_chunk` and then closes the response.
        """
        if total_timeout is not None and not (isinstance(total_timeout, int | float) and total_timeout <= math.inf):
            raise InvalidRequest("timeout_s must be a number of seconds.", param="timeout_s")
        is_limited = total_timeout is not None and total_timeout < SDK_MAX_TIMEOUT_SECONDS
        deadline = time.monotonic() + (total_timeout or 0) if is_limited else math.inf
        request = ClientRequest(method, self.base_url + path, {**self.headers, **(headers or {})}, body)
        timeouts = RequestTimeouts(self.timeouts.connect, self.timeouts.idle, deadline)
        for attempt in range(self.retries + 1):
            self._breaker.raise_if_open()
            outcome, wait = await self._attempt(request, timeouts, attempt)
            if not isinstance(outcome, SvcError):
                return outcome
            if wait is None or attempt == self.retries or time.monotonic() + wait >= deadline:
                raise outcome
            await self.transport.sleep(wait)
        raise AssertionError("unreachable: the last attempt raises")

    async def _attempt(
        self, request: ClientRequest, timeouts: RequestTimeouts, attempt: int
    ) -> tuple[ClientResponse | SvcError, float | None]:
        """Send the request once. Return the response, or the error and the delay before a retry (None: no retry)."""
        try:
            response = await self.transport.send(request, timeouts)
        except OSError as error:
            self._record_os_error(error, timeouts)
            return self._to_gateway_error(error), None if isinstance(error, TimeoutError) else retry_delay(attempt)
        except BaseException:
            self._breaker.record_abandoned()
            raise
        if response.status < 300:
            self._breaker.record_success()
            return response, None
        may_retry = is_retryable(response.status, response.headers)
        wait = retry_delay(attempt, response.headers) if may_retry else None
        try:
            failure = error_from_response(
                response.status, response.headers, await _read_body(response, SDK_MAX_ERROR_BODY_BYTES)
            )
        except OSError as error:
            self._record_os_error(error, timeouts)
            return self._to_gateway_error(error, "was interrupted", response), wait
        except BaseException:
            self._breaker.record_abandoned()
            raise
        finally:
            await response.close()
        if 300 <= response.status < 400:
            failure = GatewayFailed(self._describe_redirect(response))
            failure.request_id = response.headers.get("x-request-id")
        if isinstance(failure, GatewayFailed):
            self._breaker.record_failure()
        else:
            self._breaker.record_success()
        return failure, wait

    def _describe_redirect(self, response: ClientResponse) -> str:
        place = response.headers.get("location", "")[:MAX_LOCATION_CHARS]
        return (
            f"The {self._server_kind} at {self.base_url} redirects{' to ' if place else ''}{place}. "
            f"The SDK does not follow it. Set the address that has the {self._server_kind}."
        )

    def _record_os_error(self, error: OSError, timeouts: RequestTimeouts) -> None:
        """Count a failure of the server. The caller's own limit says nothing about it."""
        if isinstance(error, TimeoutError) and time.monotonic() > timeouts.deadline - DEADLINE_TOLERANCE_SECONDS:
            self._breaker.record_abandoned()
        else:
            self._breaker.record_failure()

    async def read_body(self, response: ClientResponse) -> bytes:
        """Return the whole body. Raises GatewayFailed."""
        try:
            return await _read_body(response, SDK_MAX_RESPONSE_BYTES)
        except OSError as error:
            raise self._to_gateway_error(error, "was interrupted", response) from error

    async def read_chunk(self, response: ClientResponse) -> bytes:
        """Return the next bytes of the body, or b"" at its end. Raises GatewayFailed."""
        try:
            return await response.read()
        except OSError as error:
            raise self._to_gateway_error(error, "was interrupted", response) from error

    async def close(self) -> None:
        """Close the connections of the SDK."""
        await self.transport.close()

    def _to_gateway_error(
        self, error: OSError, what_failed: str = "cannot be reached", response: ClientResponse | None = None
    ) -> GatewayFailed:
        failure = GatewayFailed(self._describe(error, what_failed))
        failure.is_outage = not isinstance(error, TimeoutError)
        if response is not None:
            failure.request_id = response.headers.get("x-request-id")
        return failure

    def _describe(self, error: OSError, what_failed: str) -> str:
        if isinstance(error, TimeoutError):
            return f"The {self._server_kind} at {self.base_url} timed out."
        reason = error.strerror or str(error) or type(error).__name__
        message = f"The {self._server_kind} at {self.base_url} {what_failed}: {reason}."
        if self.base_url == PRODUCTION_GATEWAY:
            message += " Set SVC_GATEWAY_URL or call svc.set_gateway_url(…), or start a gateway on this machine: svc up"
        return message


@contextlib.contextmanager
def add_request_id(response: ClientResponse) -> Iterator[None]:
    """Give errors the request id of the response."""
    try:
        yield
    except SvcError as error:
        error.request_id = error.request_id or response.headers.get("x-request-id")
        raise


async def _read_body(response: ClientResponse, limit: int) -> bytes:
    chunks, size = [], 0
    while data := await response.read():
        chunks.append(data)
        size += len(data)
        if size > limit:
            raise ConnectionError("the response is too long")
    return b"".join(chunks)


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


def raise_stream_error(payload: bytes | None) -> None:
    """Raise the error if an event of a gateway's stream reports one. `payload` is the data of the event."""
    if payload is None or b'"error"' not in payload:
        return
    try:
        error_object = msgspec.json.decode(payload, type=_SdkErrorEnvelope).error
    except (msgspec.DecodeError, UnicodeDecodeError):  # an event whose text has the word
        return
    error = error_from_code(error_object.code if isinstance(error_object.code, str) else None, error_object.message)
    raise ProviderFailed(error.message) if isinstance(error, GatewayFailed) else error


def error_from_code(
    code: str | None, message: str, status: int = 0, headers: Mapping[str, str] | None = None
) -> SvcError:
    """Return the exception for an error code, or for the status if the code is unknown."""
    by_status = _ERRORS_BY_STATUS.get(status, InvalidRequest if 400 <= status < 500 else GatewayFailed)
    error_type = _errors_by_code().get(code or "", by_status)
    if issubclass(by_status, error_type):  # TooLarge has the code of InvalidRequest
        error_type = by_status
    text = message or f"The server returned status {status}."
    if error_type is RateLimited:
        retry_after = parse_retry_after(None, (headers or {}).get("retry-after"))
        return RateLimited(text, retry_after=SDK_DEFAULT_RETRY_AFTER_SECONDS if retry_after is None else retry_after)
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
