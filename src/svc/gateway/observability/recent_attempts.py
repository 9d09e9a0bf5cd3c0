"""The attempts of the last minutes, from the counters of `RequestMetrics`. Sampling costs the hot path nothing.

Every SAMPLE_SECONDS a copy of the counters is kept. The difference between the counters and the oldest copy is what
happened in the window. Each copy is bounded as the counters are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from svc.errors import InvalidRequest
from svc.gateway.observability.series import LATENCY_BUCKETS_SECONDS, AttemptSeries, LastError

WINDOW_SECONDS = 300.0
SAMPLE_SECONDS = 15.0
OUTCOME_OK, OUTCOME_ERROR = "ok", "error"

_Counts = tuple[int, float, list[int]]
_Labels = tuple[str, str, str, str]


class RecentAttempts:
    """The recent attempts of one process. Call `sample` about once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[_Labels, _Counts]]] = deque([(0.0, {})])
        self._error_counts: dict[_Labels, int] = {}
        self._last_errors: dict[str, LastError] = {}

    def sample(self, attempts: Iterable[AttemptSeries], now: float | None = None) -> None:
        """Take note of the counters. `now` is `time.monotonic()`."""
        now = time.monotonic() if now is None else now
        series = list(attempts)
        self._find_new_errors(series)
        if now - self._samples[-1][0] < SAMPLE_SECONDS and len(self._samples) > 1:
            return
        self._samples.append((now, {each.labels: (each.attempts, each.seconds, list(each.latency)) for each in series}))
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()

    def recent(self, attempts: Iterable[AttemptSeries]) -> list[AttemptSeries]:
        """Return what happened in about the last WINDOW_SECONDS."""
        oldest = self._samples[0][1]
        found = []
        for series in attempts:
            count, seconds, latency = oldest.get(series.labels, (0, 0.0, [0] * len(series.latency)))
            if series.attempts > count:
                recent_latency = [new - old for new, old in zip(series.latency, latency, strict=True)]
                found.append(
                    AttemptSeries(series.labels, series.attempts - count, series.seconds - seconds, recent_latency)
                )
        return found

    def last_errors(self) -> dict[str, LastError]:
        """Return the last error of each `provider/model`, since the process started."""
        return dict(self._last_errors)

    def _find_new_errors(self, series: Iterable[AttemptSeries]) -> None:
        for each in series:
            provider, model, outcome, code = each.labels
            if outcome == OUTCOME_ERROR and each.attempts > self._error_counts.get(each.labels, 0):
                self._error_counts[each.labels] = each.attempts
                self._last_errors[f"{provider}/{model}"] = LastError(code=code, time=time.time())


def is_failure(labels: _Labels) -> bool:
    """Return whether attempts with these labels say something about the provider: a mistake of the caller does not."""
    return labels[2] == OUTCOME_ERROR and labels[3] != InvalidRequest.code


def latency_quantile_ms(latency: list[int], quantile: float) -> float | None:
    """Return the estimated quantile of a histogram in milliseconds, interpolated within its bucket.

    Returns None for an empty histogram. Values above the last bound count as the last bound.
    """
    total = sum(latency)
    if not total:
        return None
    rank, below, lower = quantile * total, 0, 0.0
    for upper, count in zip(LATENCY_BUCKETS_SECONDS, latency, strict=False):
        if count and below + count >= rank:
            return round((lower + (upper - lower) * (rank - below) / count) * 1000, 3)
        below, lower = below + count, upper
    return round(LATENCY_BUCKETS_SECONDS[-1] * 1000, 3)
