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
from svc.client.http import Answer, encode
from svc.client.patience import Breaker, delay, may_retry
from svc.client.wires import Net, Origin, Wire
from svc.errors import GatewayFailed, InvalidRequest, RateLimited, SvcError
from svc.wire.production import PRODUCTION_GATEWAY

KEPT = 8
"""Unused connections that are kept."""
KEPT_SECONDS = 30.0
MAX_ANSWER = 64 << 20
MAX_ERROR = 64 << 10


class Times(msgspec.Struct, frozen=True):
    """In seconds."""

    connect: float = 10.0
    idle: float = 120.0
    """Without a byte from the server."""
    total: float | None = None
    """For the whole call, retries and all."""


class Session:
    """One server and one key. Usable from several threads, or from one event loop."""

    def __init__(
        self, net: Net, base: str, headers: Mapping[str, str], *, retries: int, times: Times, whose: str = "gateway"
    ) -> None:
        """`whose` the server is, for messages: the gateway's, or a provider's."""
        parts = urlsplit(base)
        tls = parts.scheme == "https"
        self.base, self.times = base, times
        self.net = net
        self.headers = {"user-agent": "svc", **headers}
        self.host = parts.netloc
        self._path = parts.path
        self.origin = Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls)
        self._retries, self._whose = retries, whose
        self._breaker = Breaker(whose=whose)
        self._lock = threading.Lock()
        self._kept: list[tuple[float, Wire]] = []
        self._closed = False

    async def fetch(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        total: float | None = None,
    ) -> tuple[Answer, bytes]:
        """A whole answer with a good status. Raises SvcError."""
        answer, deadline = await self.open(method, path, body, headers, total)
        try:
            return answer, await self._body(answer, deadline, MAX_ANSWER)
        except OSError as error:
            raise self._broken(error, "broke off") from error
        finally:
            self.release(answer)

    async def open(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        total: float | None = None,
    ) -> tuple[Answer, float]:
        """An answer with a good status whose body is still to be read, and the deadline for it. Raises SvcError.

        Whoever opens it reads it with `piece` and gives it back with `release`.
        """
        seconds = self.times.total if total is None else total
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        raw = encode(method, self._path + path, self.host, {**self.headers, **(headers or {})}, body)
        for attempt in range(self._retries + 1):
            self._breaker.enter()
            failure, wait = await self._try(raw, deadline, attempt)
            if isinstance(failure, Answer):
                return failure, deadline
            if wait is None or attempt == self._retries or time.monotonic() + wait >= deadline:
                raise failure
            await self.net.sleep(wait)
        raise AssertionError("unreachable: the last attempt raises")

    async def _try(self, raw: bytes, deadline: float, attempt: int) -> tuple[Answer | SvcError, float | None]:
        """An answer, or why there is none and how long to wait before the next try (None: do not try again)."""
        try:
            answer = await self._send(raw, deadline)
        except OSError as error:
            self._breaker.failed()
            return self._broken(error), None if isinstance(error, TimeoutError) else delay(attempt)
        if answer.status < 300:
            self._breaker.answered()
            return answer, None
        try:
            failure = problem(answer.status, answer.headers, await self._body(answer, deadline, MAX_ERROR))
        except OSError as error:
            failure = self._broken(error)
        finally:
            self.release(answer)
        if isinstance(failure, GatewayFailed):
            self._breaker.failed()
        else:
            self._breaker.answered()
        return failure, delay(attempt, answer.headers) if may_retry(answer.status, answer.headers) else None

    async def _send(self, raw: bytes, deadline: float) -> Answer:
        """On a kept connection, or on a new one when there is none or the kept one turns out to be closed."""
        for wire in self._take():
            try:
                return await self._exchange(wire, raw, deadline)
            except TimeoutError:
                raise
            except OSError:
                continue  # the server closed it just now: that is no failure
        wire = await self.net.connect(self.origin, self._left(deadline, self.times.connect))
        return await self._exchange(wire, raw, deadline)

    async def _exchange(self, wire: Wire, raw: bytes, deadline: float) -> Answer:
        answer = Answer(wire)
        try:
            wire.push(raw, self._left(deadline))
            await wire.settle(self._left(deadline))
            await answer.begin(self._left(deadline))
        except BaseException:
            wire.close()
            raise
        return answer

    async def piece(self, answer: Answer, deadline: float) -> bytes:
        """The next bytes of an answer's body; none at its end. Raises GatewayFailed."""
        try:
            return await answer.read(self._left(deadline))
        except OSError as error:
            raise self._broken(error, "broke off") from error

    async def _body(self, answer: Answer, deadline: float, limit: int) -> bytes:
        pieces, size = [], 0
        while data := await answer.read(self._left(deadline)):
            pieces.append(data)
            size += len(data)
            if size > limit:
                raise ConnectionError("the answer is too long")
        return b"".join(pieces)

    def _left(self, deadline: float, most: float | None = None) -> float:
        left = min(self.times.idle if most is None else most, deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    # connections

    def _take(self) -> Iterator[Wire]:
        """Kept connections that are still good; at most one is tried before a new one is made."""
        while True:
            with self._lock:
                if not self._kept:
                    return
                since, wire = self._kept.pop()
            if time.monotonic() - since < KEPT_SECONDS and not wire.stale:
                yield wire
                return
            wire.close()

    def release(self, answer: Answer) -> None:
        """Keeps the connection if the whole answer was read, else closes it. Once for each answer."""
        with self._lock:
            if answer.reusable and len(self._kept) < KEPT and not self._closed:
                self._kept.append((time.monotonic(), answer.wire))
                return
        answer.wire.close()

    def close(self) -> None:
        """Closes the connections that are not in use, and keeps none any more."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for _, wire in kept:
            wire.close()

    def _broken(self, error: OSError, how: str = "cannot be reached") -> GatewayFailed:
        if isinstance(error, TimeoutError):
            return GatewayFailed(f"The {self._whose} at {self.base} took too long.")
        why = error.strerror or str(error) or type(error).__name__
        message = f"The {self._whose} at {self.base} {how}: {why}."
        if self.base == PRODUCTION_GATEWAY:
            message += " Name yours with SVC_GATEWAY_URL or svc.set_gateway_url(…), or start one here: svc up"
        return GatewayFailed(message)


@functools.cache
def _by_code() -> dict[str, type[SvcError]]:
    known = (getattr(errors, name) for name in dir(errors))
    return {
        each.code: each
        for each in known
        if isinstance(each, type) and issubclass(each, SvcError) and each.__base__ is SvcError
    }


class _Problem(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    """A number where it is no server of ours: some providers repeat the status."""
    param: str | None = None


class _Body(msgspec.Struct):
    error: _Problem


def problem(status: int, headers: Mapping[str, str], body: bytes) -> SvcError:
    """The exception that an error answer stands for."""
    try:
        said = msgspec.json.decode(body, type=_Body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _Problem()
    code = said.code if isinstance(said.code, str) else None
    error = of_code(code, said.message, status, headers)
    error.param = error.param or said.param
    error.request_id = headers.get("x-request-id")
    return error


def of_code(code: str | None, message: str, status: int = 0, headers: Mapping[str, str] | None = None) -> SvcError:
    """The exception of a code; for a code that is not ours, by the status."""
    kind = _by_code().get(code or "") or _BY_STATUS.get(
        status, InvalidRequest if 400 <= status < 500 else GatewayFailed
    )
    text = message or f"The server answered with status {status}."
    if kind is RateLimited:
        try:
            after = float((headers or {}).get("retry-after", "60"))
        except ValueError:
            after = 60.0
        return RateLimited(text, retry_after=after)
    return kind(text)


_BY_STATUS: dict[int, type[SvcError]] = {
    401: errors.AuthenticationFailed,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    413: errors.TooLarge,
    429: RateLimited,
    431: errors.HeadTooLarge,
}
