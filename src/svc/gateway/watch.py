"""What an operator asks a running gateway: `/metrics`, and what is degraded. Counting itself is in `metrics`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.gateway.metrics import Board, text
from svc.gateway.plane import Plane
from svc.gateway.routes import authenticated
from svc.gateway.series import Page
from svc.keys.known import IssuedKeys
from svc.loopback import is_local
from svc.stores.redis import Redis

PUT_SECONDS = 1.0


class Watch:
    """Belongs to one event loop, from `start` to `close`."""

    def __init__(self, plane: Plane, issued: IssuedKeys, board: Board, redis: Redis | None) -> None:
        self._plane = plane
        self._issued = issued
        self._board = board
        self._redis = redis
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._plane.degraded = self.degraded
        self._task = asyncio.get_running_loop().create_task(self._put(), name="metrics")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _put(self) -> None:
        while True:
            self._board.put(self._page())
            await asyncio.sleep(PUT_SECONDS)

    def degraded(self) -> list[str]:
        """What is not as it should be; empty when all is well."""
        return [name for name, is_so in self._states().items() if is_so]

    def _states(self) -> dict[str, bool]:
        ledger = self._plane.ledger
        is_ledger_late = ledger.intake.down or ledger.intake.late
        found = {"keys": self._issued.down, "ledger": is_ledger_late, "journal": ledger.journal.full}
        return found if self._redis is None else {**found, "redis": self._redis.down}

    def _values(self) -> dict[str, float]:
        plane = self._plane
        values = {
            "svc_open_requests": len(plane.exchanges),
            "svc_open_streams": sum(exchange.streaming for exchange in plane.exchanges),
            "svc_open_connections": len(plane.doors),
            "svc_upstream_connections": plane.upstream.open_connections,
            "svc_tasks": len(asyncio.all_tasks()),
            "svc_journal_lag_seconds": plane.ledger.intake.lag,
            "svc_journals_left_alone": len(plane.ledger.intake.left_alone),
            "svc_journal_lost_total": plane.ledger.journal.lost,
            "svc_log_lines_dropped_total": plane.log_dropped,
            **plane.beside(),
            **{f'svc_errors_total{{code="{code}"}}': count for code, count in plane.metrics.errors.items()},
            **{f'svc_limits_reached_total{{limit="{name}"}}': count for name, count in plane.metrics.limits.items()},
            **{f'svc_degraded{{what="{name}"}}': is_so for name, is_so in self._states().items()},
        }
        for name, state in plane.steering.states().items():
            provider, _, model = name.partition("/")
            values[f'svc_breaker_open{{provider="{provider}",model="{model}"}}'] = state != "closed"
        if plane.cache is not None:
            values["svc_cache_hits_total"] = plane.cache.hits
            values["svc_cache_misses_total"] = plane.cache.misses
            values["svc_cache_bytes"] = plane.cache.size
        return {name: float(value) for name, value in values.items()}

    def _page(self) -> Page:
        return self._plane.metrics.page(self._values(), self._plane.steering.states())

    async def total(self) -> Page:
        """The numbers of all workers, added up."""
        return await asyncio.to_thread(self._board.total, self._page())

    def routes(self) -> list[BaseRoute]:
        """`GET /metrics`: open to this machine (see `svc.loopback`), else with the scope `metrics`."""

        async def metrics(request: Request) -> Response:
            if not is_local(request.scope):
                (await authenticated(self._plane, request)).require("metrics")
            return Response(text(await self.total()), media_type="text/plain; version=0.0.4; charset=utf-8")

        return [Route("/metrics", metrics, methods=["GET"])]
