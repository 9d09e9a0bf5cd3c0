"""Requests that other rooms answer, as speech does: they count for the key's limits, and are in the books like chats.

enter ── refused: a limit of the key ──> over
  └── Visit.end: the lease is given back, the entry is in the journal
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from svc.errors import RateLimited, SvcError
from svc.gateway.access_log import log_end
from svc.gateway.limits import Lease
from svc.gateway.plane import Plane
from svc.gateway.record import Record, Status
from svc.wire.key import Key

PROVIDER = "local"
Ids = tuple[str, str | None, str | None]
"""Of a request: ours, the client's own, and the client's address."""


class Visit:
    """One request. Whoever answers it calls `end` before the last byte leaves; a second time is nothing."""

    def __init__(self, plane: Plane, key: Key, endpoint: str, ids: Ids, lease: Lease | None, *, lasts: bool) -> None:
        self._plane, self._key, self._endpoint, self._lasts = plane, key, endpoint, lasts
        self._request_id, self._client_request_id, self._client = ids
        self._lease = lease
        self._began = time.monotonic()
        self._over = False

    @property
    def headers(self) -> Mapping[str, str]:
        """What is left of the key's limits."""
        lines = self._lease.headers.split("\r\n") if self._lease is not None else []
        return {name: value for name, _, value in (line.partition(": ") for line in lines) if name}

    def end(
        self,
        status: Status,
        http_status: int,
        *,
        asked: str | None,
        model: str | None = None,
        first: float | None = None,
        code: str | None = None,
        limit: str = "",
    ) -> None:
        """`model` is the one that was reached, None when none was; `first` is when it answered, on the steady clock."""
        if self._over:
            return
        self._over = True
        if self._lease is not None:
            self._lease.settle(0, 0.0)
        now = time.monotonic()
        self._plane.visited.add(self._request_id)
        if model is not None and status != "ok":
            outcome = "cancelled" if status == "client_closed" else "error"
            self._plane.metrics.attempts.of(PROVIDER, model, outcome, code or "").attempts += 1
        self._plane.record(
            Record(
                self._key,
                self._endpoint,
                asked,
                status,
                http_status,
                time=self._plane.ledger.stamp(),
                request_id=self._request_id,
                client_request_id=self._client_request_id,
                model=model,
                provider=PROVIDER if model else None,
                attempts=1 if model else 0,
                seconds=now - self._began,
                first=None if first is None else first - self._began,
                code=code,
                limit=limit,
            ),
            log_end(self._client),
            timed=not self._lasts,
        )


class Visits:
    """The way in."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def enter(self, key: Key, endpoint: str, ids: Ids, *, lasts: bool = False) -> Visit:
        """Raises RateLimited for a limit of the key, which is in the books then.

        `lasts`: how long it takes is for the client to say, so the times of requests know nothing of it.
        """
        plane = self._plane
        try:
            plane.ledger.check()
            lease = await self._lease(key) if plane.gate.limited(key) else None
        except SvcError as error:
            limit = error.limit if isinstance(error, RateLimited) else ""
            visit = Visit(plane, key, endpoint, ids, None, lasts=lasts)
            visit.end("error", error.status, asked=None, code=error.code, limit=limit)
            raise
        return Visit(plane, key, endpoint, ids, lease, lasts=lasts)

    async def _lease(self, key: Key) -> Lease:
        """What is run on this machine costs neither tokens nor money: requests count, and those at the same time."""
        got: asyncio.Future[Lease | SvcError] = self._plane.loop.create_future()

        def then(lease: Lease | SvcError) -> None:
            if not got.cancelled():
                got.set_result(lease)
            elif isinstance(lease, Lease):  # whoever asked has left
                lease.settle(0, 0.0)

        self._plane.gate.admit_free(key, then)
        lease = await got
        if isinstance(lease, SvcError):
            raise lease
        return lease
