"""Attempts at providers, counted under the target that each one went to. Pure; Prometheus' form is `metrics`'s."""

from __future__ import annotations

from typing import Final

from svc.gateway.observability.series import LATENCY_BUCKETS_SECONDS, AttemptSeries

MAX_ATTEMPT_LABEL_SETS: Final = 2000
_BUCKET_UPPER_BOUNDS: Final = list(LATENCY_BUCKETS_SECONDS)


class AttemptHistogram:
    """The attempts of one provider, model, outcome and code."""

    __slots__ = ("attempts", "bucket_counts", "seconds")

    def __init__(self) -> None:
        self.attempts = 0
        self.seconds = 0.0
        self.bucket_counts = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Counts an attempt that took so long."""
        self.attempts += 1
        self.seconds += seconds
        self.bucket_counts[bucket_index(seconds)] += 1


class AttemptMetrics:
    """The attempts of this process.

    `outcome` is `ok`, `error` or `cancelled`. `code` is that of the error, else empty.
    """

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, str, str, str], AttemptHistogram] = {}
        self.retries: dict[tuple[str, str], int] = {}
        """By provider and model."""

    def labels(self, provider: str, model: str, outcome: str, code: str = "") -> AttemptHistogram:
        """The count of these labels; beyond MAX_KINDS that of `other`."""
        label_values = (provider, model, outcome, code)
        histogram = self._histograms.get(label_values)
        if histogram is None:
            if len(self._histograms) >= MAX_ATTEMPT_LABEL_SETS:
                label_values = ("other", "other", outcome, code)
            histogram = self._histograms.setdefault(label_values, AttemptHistogram())
        return histogram

    def count_retry(self, provider: str, model: str) -> None:
        """A request goes to a target after its first attempt."""
        label_values = (provider, model)
        self.retries[label_values] = self.retries.get(label_values, 0) + 1

    def series(self) -> list[AttemptSeries]:
        """As others read it."""
        return [
            AttemptSeries(at, each.attempts, each.seconds, each.bucket_counts) for at, each in self._histograms.items()
        ]


def bucket_index(seconds: float) -> int:
    """The first bucket whose upper end is not below."""
    index = 0
    for upper_bound in _BUCKET_UPPER_BOUNDS:
        if seconds <= upper_bound:
            break
        index += 1
    return index
