"""A histogram in the form of Prometheus. Its counts can be added to those of another process."""

from __future__ import annotations

from bisect import bisect_left

import msgspec


class HistogramSeries(msgspec.Struct):
    """The observations of one metric with one set of labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...]
    """Upper bounds of the buckets, ascending. The last bucket has no bound."""
    counts: list[int] = []
    """Observations of each bucket, not cumulative."""
    total: float = 0.0
    """The sum of the observed values."""

    def __post_init__(self) -> None:
        self.counts = list(self.counts) or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> HistogramSeries:
        """Return a copy that later observations do not change."""
        return HistogramSeries(self.name, self.labels, self.bounds, self.counts, self.total)

    def merge(self, other: HistogramSeries) -> None:
        """Add the observations of another process."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
