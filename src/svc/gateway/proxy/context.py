"""What all requests of a gateway share: settings, routes, upstream connections, and one slow clock for time-outs."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from svc.errors import ProviderFailed, RateLimited, SvcError
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.accounting.record import RecordEncoder, RequestRecord, escape_unprintable
from svc.gateway.cache.response_cache import ResponseCache
from svc.gateway.limits.rate_limiter import RateLimiter, Reservation
from svc.gateway.observability.access_log import AccessLogEntry, encode_limit_field, truncate_path
from svc.gateway.observability.metrics import RequestMetrics
from svc.gateway.observability.upstream_error_log import UpstreamErrorLog
from svc.gateway.proxy.attempt import Attempt
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import AttemptFailure, RetryDecision
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.request_policy import RequestPolicy
from svc.gateway.routing.router import Router
from svc.gateway.server.authentication import cached_api_key
from svc.gateway.server.request import Request
from svc.gateway.upstream.pool import UpstreamPool
from svc.security import Keyring
from svc.settings import Settings
from svc.telemetry import LineWriter

if TYPE_CHECKING:
    from svc.gateway.proxy.exchange import Exchange

log = logging.getLogger("svc.gateway")

_REQUEST_ID_SUFFIXES: Final = tuple(f"{number:02x}" for number in range(256))
"""How request ids end: made once, since each request needs one."""
MAX_BUFFERED_LOG_LINES: Final = 100
"""Of the access log that are written at once, when so many come between two ticks: more would fill the CPU's cache."""
TIMEOUT_CHECK_SECONDS: Final = 0.25
"""Seconds between two looks at the time-outs; they are exact to this."""


def _release_reservation(reservation: Reservation | SvcError) -> None:
    """Ends a reservation that was taken to count a request."""
    if isinstance(reservation, Reservation):
        reservation.commit(0, 0.0)


class SupportsTimeouts(Protocol):
    """What has time-outs: attempts, exchanges, client connections."""

    def check_timeouts(self, now: float) -> None:
        """`now` is loop time."""


class GatewayContext:
    """Belongs to one event loop, from `start` to `close`."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        keyring: Keyring,
        upstream: UpstreamPool,
        ledger: Ledger,
        rate_limiter: RateLimiter,
        log_writer: LineWriter,
    ) -> None:
        self.settings = settings
        self.request_policy = RequestPolicy(settings)
        self.router = router
        self.keyring = keyring
        self.upstream = upstream
        self.ledger = ledger
        self.load_balancer = LoadBalancer(settings.routing)
        self.rate_limiter = rate_limiter
        self.cache: ResponseCache | None = None
        """Answers that may be given again; None, as it comes: nothing is kept."""
        self.metrics = RequestMetrics()
        self.upstream_error_log = UpstreamErrorLog()
        self.list_degraded: Callable[[], list[str]] = list
        self.extra_metrics: Callable[[], dict[str, float]] = dict
        """Numbers of other rooms, for `/metrics`."""
        self.loop = asyncio.get_running_loop()
        self.now = time.monotonic
        """Loop time, not rounded."""
        self.client_connections: set[SupportsTimeouts] = set()
        self.exchanges: set[Exchange] = set()
        self.attempts: set[Attempt] = set()
        self.tracked_request_ids: set[str] = set()
        """Request ids whose record is made, and whose answer still goes out."""
        self.date_header = ""
        """The value of the Date header."""
        self._log_writer = log_writer
        self._log_lines: list[bytes] = []
        self._record_encoder = RecordEncoder()
        self._is_access_log_enabled = settings.gateway.access_log
        self._encode = msgspec.json.Encoder().encode
        self._request_id_prefix = f"req_{secrets.token_hex(8)}"
        self._request_count = 0
        self._request_id_block = f"{self._request_id_prefix}{0:06x}"
        """What 256 request ids begin with."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the clock."""
        self._run_timers()

    def configure(
        self,
        settings: Settings,
        backends: list[Backend],
        models_without_key: dict[str, str],
        tls: ssl.SSLContext | None,
    ) -> None:
        """A changed configuration, for requests from now on; those that run keep their offers and their time-outs."""
        self.settings = settings
        self.request_policy = RequestPolicy(settings)
        self._is_access_log_enabled = settings.gateway.access_log
        self.router.replace(backends, settings.routing.fallbacks, models_without_key)
        self.upstream.configure(settings.gateway.connect_timeout, tls)
        self.ledger.configure(settings.ledger, self.router.backends())
        self.load_balancer.configure(settings.routing, backends)
        self.rate_limiter.configure(settings.limits)

    @property
    def dropped_log_lines(self) -> int:
        return self._log_writer.dropped_lines

    def new_request_id(self) -> str:
        """Unique over processes and restarts; the prefix is random."""
        count = self._request_count = self._request_count + 1
        suffix = count & 0xFF
        if not suffix:
            self._request_id_block = f"{self._request_id_prefix}{count >> 8:06x}"
        return self._request_id_block + _REQUEST_ID_SUFFIXES[suffix]

    def record_request(self, record: RequestRecord, client_field: bytes, *, is_timed: bool = True) -> None:
        """Takes note of an ended answer, before its last byte leaves; `timed`: its times tell how fast we are.

        `client`: the `log_end` of whom it was for.
        """
        line = self._record_encoder.encode(record)
        if record.is_in_ledger:
            self.ledger.journal.append(line + b"}\n", record)
        self.metrics.record_request(record, is_timed)
        if self._is_access_log_enabled:
            self._log_lines.append(
                line + encode_limit_field(record.limit_name) + client_field
                if record.limit_name
                else line + client_field
            )
            if len(self._log_lines) >= MAX_BUFFERED_LOG_LINES:
                self._flush_log()

    def record_rejection(
        self, request_id: str, request: Request | None, error: SvcError, status: int, client_field: bytes
    ) -> None:
        """Takes note of an answer of the door's own."""
        key = request.api_key if request else None
        if request and key is None and request.rejection is None:
            key = cached_api_key(request, self.keyring)
        if (
            key is not None
            and request is not None
            and request.dialect is not None
            and self.rate_limiter.has_request_limit(key)
        ):
            self.rate_limiter.count_request(
                key, _release_reservation
            )  # refused before its body was taken, and counted for `rpm` all the same
        self.record_response(
            AccessLogEntry(
                time=self.ledger.timestamp(),
                request_id=request_id,
                client_request_id=request.client_request_id if request else None,
                key_id=key.id if key else None,
                key_name=key.name if key else None,
                method=request.method.decode("latin-1") if request else "",
                endpoint=truncate_path(request.path.decode("latin-1")) if request else "",
                status="error",
                http_status=status,
                code=error.code,
            ),
            client_field,
            error.limit if isinstance(error, RateLimited) else "",
        )

    def record_response(self, line: AccessLogEntry, client_field: bytes, limit: str = "") -> None:
        """Takes note of an answer that no exchange gave. `limit` is the one that refused it, if one did."""
        self.metrics.count_error(line.code)
        if limit:
            self.metrics.count_limit(limit)
        if self._is_access_log_enabled:
            self._log_lines.append(
                escape_unprintable(self._encode(line))[:-1]
                + (encode_limit_field(limit) if limit else b"")
                + client_field
            )

    def _run_timers(self) -> None:
        self._timer = self.loop.call_later(
            TIMEOUT_CHECK_SECONDS, self._run_timers
        )  # first: the clock goes on whatever happens below
        now = self.now()
        self.date_header = formatdate(usegmt=True)
        self._flush_log()
        self.ledger.journal.seal_segment_if_idle()
        for attempt in list(self.attempts):
            if attempt.is_done:
                self.attempts.discard(attempt)
        watched: list[SupportsTimeouts] = [*self.attempts, *self.exchanges, *self.client_connections]
        for item in watched:
            try:
                item.check_timeouts(now)
            except Exception:  # the edge: one that fails must not stop the clock of all others
                log.exception("fault in a time-out")
        self.upstream.close_idle(now)

    def _flush_log(self) -> None:
        if self._log_lines:
            lines, self._log_lines = self._log_lines, []
            self._log_writer.write(b"".join(lines))

    async def close(self) -> None:
        """Lets go of every request that still runs, and of the upstreams."""
        if self._timer is not None:
            self._timer.cancel()
        self.ledger.stop_accepting()
        failure = AttemptFailure(ProviderFailed("The gateway is shutting down."), RetryDecision.GIVE_UP)
        for exchange in list(self.exchanges):
            exchange.stop(failure)
        for attempt in list(self.attempts):
            attempt.cancel()
        await self.upstream.close()
        self._flush_log()
