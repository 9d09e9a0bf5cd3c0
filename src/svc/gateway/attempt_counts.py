"""Attempts at providers, counted under the target that each one went to. Pure; Prometheus' form is `metrics`'s."""

from __future__ import annotations

from typing import Final

from svc.gateway.series import BUCKETS, AttemptSeries

MAX_KINDS: Final = 2000
_ENDS: Final = list(BUCKETS)


class AttemptCount:
    """The attempts of one provider, model, outcome and code."""

    __slots__ = ("attempts", "latency", "seconds")

    def __init__(self) -> None:
        self.attempts = 0
        self.seconds = 0.0
        self.latency = [0] * (len(BUCKETS) + 1)

    def add(self, seconds: float) -> None:
        """Counts an attempt that took so long."""
        self.attempts += 1
        self.seconds += seconds
        self.latency[bucket_of(seconds)] += 1


class AttemptCounts:
    """The attempts of this process.

    `outcome` is `ok`, `error` or `cancelled`. `code` is that of the error, else empty.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, str], AttemptCount] = {}
        self.retries: dict[tuple[str, str], int] = {}
        """By provider and model."""

    def of(self, provider: str, model: str, outcome: str, code: str = "") -> AttemptCount:
        """The count of these labels; beyond MAX_KINDS that of `other`."""
        at = (provider, model, outcome, code)
        found = self._counts.get(at)
        if found is None:
            if len(self._counts) >= MAX_KINDS:
                at = ("other", "other", outcome, code)
            found = self._counts.setdefault(at, AttemptCount())
        return found

    def count_retry(self, provider: str, model: str) -> None:
        """A request goes to a target after its first attempt."""
        at = (provider, model)
        self.retries[at] = self.retries.get(at, 0) + 1

    def series(self) -> list[AttemptSeries]:
        """As others read it."""
        return [AttemptSeries(at, each.attempts, each.seconds, each.latency) for at, each in self._counts.items()]


def bucket_of(seconds: float) -> int:
    """The first bucket whose upper end is not below."""
    found = 0
    for end in _ENDS:
        if seconds <= end:
            break
        found += 1
    return found
