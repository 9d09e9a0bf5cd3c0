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
from svc.gateway.access_log import Line, limit_field, path_shown
from svc.gateway.attempt import Attempt
from svc.gateway.bounds import Bounds
from svc.gateway.cache.cache import Cache
from svc.gateway.credentials import key_in
from svc.gateway.failures import Failure, Then
from svc.gateway.healing.steering import Steering
from svc.gateway.ledger import Ledger
from svc.gateway.limits import Gate, Lease
from svc.gateway.metrics import Metrics
from svc.gateway.offers import Offer
from svc.gateway.record import Lines, Record, escaped
from svc.gateway.request import Request
from svc.gateway.router import Router
from svc.gateway.troubles import Troubles
from svc.gateway.upstream import Upstream
from svc.security import Keyring
from svc.settings import Settings
from svc.telemetry import LineWriter

if TYPE_CHECKING:
    from svc.gateway.exchange import Exchange

log = logging.getLogger("svc.gateway")

_LOW: Final = tuple(f"{number:02x}" for number in range(256))
"""How request ids end: made once, since each request needs one."""
LINES: Final = 100
"""Of the access log that are written at once, when so many come between two ticks: more would fill the CPU's cache."""
TICK: Final = 0.25
"""Seconds between two looks at the time-outs; they are exact to this."""


def _release(lease: Lease | SvcError) -> None:
    """Ends a reservation that was taken to count a request."""
    if isinstance(lease, Lease):
        lease.settle(0, 0.0)


class Ticking(Protocol):
    """What has time-outs: attempts, exchanges, client connections."""

    def tick(self, now: float) -> None:
        """`now` is loop time."""


class Plane:
    """Belongs to one event loop, from `start` to `close`."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        keyring: Keyring,
        upstream: Upstream,
        ledger: Ledger,
        gate: Gate,
        log: LineWriter,
    ) -> None:
        self.settings = settings
        self.bounds = Bounds(settings)
        self.router = router
        self.keyring = keyring
        self.upstream = upstream
        self.ledger = ledger
        self.steering = Steering(settings.routing)
        self.gate = gate
        self.cache: Cache | None = None
        """Answers that may be given again; None, as it comes: nothing is kept."""
        self.metrics = Metrics()
        self.troubles = Troubles()
        self.degraded: Callable[[], list[str]] = list
        self.beside: Callable[[], dict[str, float]] = dict
        """Numbers of other rooms, for `/metrics`."""
        self.loop = asyncio.get_running_loop()
        self.now = time.monotonic
        """Loop time, not rounded."""
        self.doors: set[Ticking] = set()
        self.exchanges: set[Exchange] = set()
        self.attempts: set[Attempt] = set()
        self.visited: set[str] = set()
        """Request ids whose record is made, and whose answer still goes out."""
        self.date = ""
        """The value of the Date header."""
        self._log = log
        self._lines: list[bytes] = []
        self._writer = Lines()
        self._logs = settings.gateway.access_log
        self._encode = msgspec.json.Encoder().encode
        self._prefix = f"req_{secrets.token_hex(8)}"
        self._number = 0
        self._block = f"{self._prefix}{0:06x}"
        """What 256 request ids begin with."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the clock."""
        self._tick()

    def configure(
        self, settings: Settings, offers: list[Offer], unkeyed: dict[str, str], tls: ssl.SSLContext | None
    ) -> None:
        """A changed configuration, for requests from now on; those that run keep their offers and their time-outs."""
        self.settings = settings
        self.bounds = Bounds(settings)
        self._logs = settings.gateway.access_log
        self.router.replace(offers, settings.routing.fallbacks, unkeyed)
        self.upstream.configure(settings.gateway.connect_timeout, tls)
        self.ledger.configure(settings.ledger, self.router.offers())
        self.steering.configure(settings.routing, offers)
        self.gate.configure(settings.limits)

    @property
    def log_dropped(self) -> int:
        return self._log.dropped

    def new_request_id(self) -> str:
        """Unique over processes and restarts; the prefix is random."""
        number = self._number = self._number + 1
        low = number & 0xFF
        if not low:
            self._block = f"{self._prefix}{number >> 8:06x}"
        return self._block + _LOW[low]

    def record(self, record: Record, client: bytes, *, timed: bool = True) -> None:
        """Takes note of an ended answer, before its last byte leaves; `timed`: its times tell how fast we are.

        `client`: the `log_end` of whom it was for.
        """
        line = self._writer.line(record)
        if record.kept:
            self.ledger.journal.append(line + b"}\n", record)
        self.metrics.note(record, timed)
        if self._logs:
            self._lines.append(line + limit_field(record.limit) + client if record.limit else line + client)
            if len(self._lines) >= LINES:
                self._flush()

    def refused(self, request_id: str, request: Request | None, error: SvcError, status: int, client: bytes) -> None:
        """Takes note of an answer of the door's own."""
        key = request.key if request else None
        if request and key is None and request.refusal is None:
            key = key_in(request, self.keyring)
        if key is not None and request is not None and request.dialect is not None and self.gate.counts(key):
            self.gate.count(key, _release)  # refused before its body was taken, and counted for `rpm` all the same
        self.noted(
            Line(
                time=self.ledger.stamp(),
                request_id=request_id,
                client_request_id=request.client_request_id if request else None,
                key_id=key.id if key else None,
                key_name=key.name if key else None,
                method=request.method.decode("latin-1") if request else "",
                endpoint=path_shown(request.path.decode("latin-1")) if request else "",
                status="error",
                http_status=status,
                code=error.code,
            ),
            client,
            error.limit if isinstance(error, RateLimited) else "",
        )

    def noted(self, line: Line, client: bytes, limit: str = "") -> None:
        """Takes note of an answer that no exchange gave. `limit` is the one that refused it, if one did."""
        self.metrics.count_error(line.code)
        if limit:
            self.metrics.count_limit(limit)
        if self._logs:
            self._lines.append(escaped(self._encode(line))[:-1] + (limit_field(limit) if limit else b"") + client)

    def _tick(self) -> None:
        self._timer = self.loop.call_later(TICK, self._tick)  # first: the clock goes on whatever happens below
        now = self.now()
        self.date = formatdate(usegmt=True)
        self._flush()
        self.ledger.journal.seal_next()
        for attempt in list(self.attempts):
            if attempt.over:
                self.attempts.discard(attempt)
        everything: list[Ticking] = [*self.attempts, *self.exchanges, *self.doors]
        for ticking in everything:
            try:
                ticking.tick(now)
            except Exception:  # the edge: one that fails must not stop the clock of all others
                log.exception("fault in a time-out")
        self.upstream.sweep(now)

    def _flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            self._log.write(b"".join(lines))

    async def close(self) -> None:
        """Lets go of every request that still runs, and of the upstreams."""
        if self._timer is not None:
            self._timer.cancel()
        self.ledger.refuse()
        stopping = Failure(ProviderFailed("The gateway is shutting down."), Then.NOWHERE)
        for exchange in list(self.exchanges):
            exchange.stop(stopping)
        for attempt in list(self.attempts):
            attempt.cancel()
        await self.upstream.close()
        self._flush()
