"""`GET /metrics`, and the list of degraded components. `gateway/observability/metrics.py` counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.allowed_hosts import is_local_request
from svc.gateway.endpoints.asgi_responses import authenticate_request
from svc.gateway.observability.prometheus import WorkerMetrics, render_prometheus
from svc.gateway.observability.recent_attempts import RecentAttempts
from svc.gateway.observability.series import MetricsSnapshot
from svc.gateway.proxy.context import GatewayContext
from svc.keys.cache import IssuedKeyCache
from svc.stores.redis.base import RedisClient
from svc.wire.histogram import HistogramSeries

METRICS_PUBLISH_SECONDS = 1.0


class MetricsPublisher:
    """Publishes the metrics of this worker, from `start` to `close`, and aggregates those of all workers."""

    def __init__(
        self,
        context: GatewayContext,
        issued_keys: IssuedKeyCache,
        worker_metrics: WorkerMetrics,
        redis: RedisClient | None,
        extra_metrics: Callable[[], dict[str, float]] = dict,
        extra_histograms: Callable[[], list[HistogramSeries]] = list,
    ) -> None:
        self._context = context
        self._issued_keys = issued_keys
        self._worker_metrics = worker_metrics
        self._redis = redis
        self._extra_metrics = extra_metrics
        self._extra_histograms = extra_histograms
        self._recent_attempts = RecentAttempts()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to publish every METRICS_PUBLISH_SECONDS."""
        self._task = asyncio.get_running_loop().create_task(self._publish(), name="metrics")

    async def close(self) -> None:
        """Publish once more, so that no count of this worker is lost, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._worker_metrics.write(self._snapshot())

    async def _publish(self) -> None:
        while True:
            self._worker_metrics.write(self._snapshot())
            await asyncio.sleep(METRICS_PUBLISH_SECONDS)

    def list_degraded(self) -> list[str]:
        """Return the names of the degraded components."""
        return [name for name, is_degraded in self._component_states().items() if is_degraded]

    def _component_states(self) -> dict[str, bool]:
        ledger = self._context.ledger
        is_ledger_late = ledger.ingester.is_down or ledger.ingester.is_late
        states = {"keys": self._issued_keys.is_down, "ledger": is_ledger_late, "journal": ledger.journal.is_full}
        return states if self._redis is None else {**states, "redis": self._redis.is_down or self._redis.is_slow}

    def _values(self) -> dict[str, float]:
        context = self._context
        values = {
            "svc_open_requests": len(context.exchanges),
            "svc_open_streams": sum(exchange.is_streaming for exchange in context.exchanges),
            "svc_open_connections": len(context.client_connections),
            "svc_upstream_connections": context.upstream.open_connections,
            "svc_tasks": len(asyncio.all_tasks()),
            "svc_journal_lag_seconds": context.ledger.ingester.lag_seconds,
            "svc_journals_left_alone": len(context.ledger.ingester.unreadable_journals),
            "svc_journal_lost_total": context.ledger.journal.lost_lines,
            "svc_log_lines_dropped_total": context.request_log.dropped_lines,
            **self._extra_metrics(),
            **{f'svc_errors_total{{code="{code}"}}': count for code, count in context.metrics.errors.items()},
            **{
                f'svc_limits_reached_total{{limit="{name}"}}': count
                for name, count in context.metrics.limit_refusals.items()
            },
            **{f'svc_degraded{{what="{name}"}}': is_degraded for name, is_degraded in self._component_states().items()},
        }
        for name, state in context.load_balancer.breaker_states().items():
            provider, _, model = name.partition("/")
            values[f'svc_breaker_open{{provider="{provider}",model="{model}"}}'] = state != "closed"
        cache = context.config.current.cache
        if cache is not None:
            values["svc_cache_hits_total"] = cache.hits
            values["svc_cache_misses_total"] = cache.misses
            values["svc_cache_bytes"] = cache.used_bytes
        return {name: float(value) for name, value in values.items()}

    def _snapshot(self) -> MetricsSnapshot:
        snapshot = self._context.metrics.snapshot(self._values(), self._context.load_balancer.breaker_states())
        self._recent_attempts.sample(snapshot.attempts)
        snapshot.recent = self._recent_attempts.recent(snapshot.attempts)
        snapshot.histograms = self._extra_histograms()
        snapshot.last_errors = self._recent_attempts.last_errors()
        return snapshot

    async def aggregate(self) -> MetricsSnapshot:
        """Publish the metrics of this worker, and return the sum of those of all workers.

        If this worker did not publish, counters could fall when another worker serves the next scrape within
        METRICS_PUBLISH_SECONDS.
        """
        snapshot = self._snapshot()
        self._worker_metrics.write(snapshot)
        return await asyncio.to_thread(self._worker_metrics.aggregate, snapshot)

    def routes(self) -> list[BaseRoute]:
        """Return `GET /metrics`. Requests that are not local (`is_local_request`) need the scope `metrics`."""

        async def metrics(request: Request) -> Response:
            if not is_local_request(request.scope):
                (await authenticate_request(self._context, request)).require_scope("metrics")
            return Response(
                render_prometheus(await self.aggregate()), media_type="text/plain; version=0.0.4; charset=utf-8"
            )

        return [Route("/metrics", metrics, methods=["GET"])]
