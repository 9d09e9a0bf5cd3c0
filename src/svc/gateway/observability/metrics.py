"""Counters and histograms of requests and attempts, for one process. `prometheus` renders them.

Labels are bounded: providers and models come from the configuration, codes and statuses from fixed lists. Series
beyond MAX_METRIC_SERIES and MAX_ATTEMPT_LABEL_SETS are counted under "other".
"""

from __future__ import annotations

from typing import Final

from svc.gateway.accounting.record import ATTEMPT_OUTCOME_LABELS, AttemptRecord, RequestRecord
from svc.gateway.observability.access_log import AccessLogEntry
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.operations import OperationMetrics
from svc.gateway.observability.series import (
    LATENCY_BUCKETS_SECONDS,
    AttemptSeries,
    MetricsSnapshot,
    RequestSeries,
)
from svc.resilience import BreakerState

MAX_METRIC_SERIES: Final = 2000
MAX_ATTEMPT_LABEL_SETS: Final = 2000
LIMIT_NAMES: Final = ("rpm", "tpm", "concurrency", "budget", "queue", "upstream")
_BUCKET_UPPER_BOUNDS: Final = list(LATENCY_BUCKETS_SECONDS)


class AttemptHistogram:
    """The attempts of one provider, model, outcome and code."""

    __slots__ = ("attempts", "bucket_counts", "seconds")

    def __init__(self) -> None:
        self.attempts = 0
        self.seconds = 0.0
        self.bucket_counts = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)


class RequestCounts:
    """The counts of one provider, model, status and HTTP status."""

    __slots__ = (
        "completion_tokens",
        "cost_usd",
        "fallbacks",
        "first_byte_latency",
        "first_seconds",
        "http_status",
        "latency",
        "model",
        "prompt_tokens",
        "provider",
        "requests",
        "seconds",
        "status",
    )

    def __init__(self, provider: str, model: str, status: str, http_status: int) -> None:
        self.provider = provider
        self.model = model
        self.status = status
        self.http_status = http_status
        self.requests = 0
        self.seconds = 0.0
        self.first_seconds = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost_usd = 0.0
        self.fallbacks = 0
        self.latency = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)
        self.first_byte_latency = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)

    def to_series(self) -> RequestSeries:
        """Return the counts as a serializable struct."""
        return RequestSeries(
            (self.provider, self.model, self.status, str(self.http_status)),
            self.requests,
            self.seconds,
            self.first_seconds,
            self.prompt_tokens,
            self.completion_tokens,
            self.cost_usd,
            self.fallbacks,
            self.latency,
            self.first_byte_latency,
        )


class RequestMetrics(RequestObserver):
    """The metrics of this process."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, int], RequestCounts] = {}
        """By provider, model, status and HTTP status."""
        self._attempts: dict[tuple[str, str, str, str], AttemptHistogram] = {}
        """By provider, model, outcome label and code."""
        self._operations = OperationMetrics()
        self._retries: dict[tuple[str, str], int] = {}
        """By provider and model."""
        self.errors: dict[str, int] = {}
        """By code."""
        self.limit_refusals: dict[str, int] = dict.fromkeys(LIMIT_NAMES, 0)
        """Requests that each limit rejected."""

    def on_attempt(self, attempt: AttemptRecord) -> None:
        labels = (attempt.provider, attempt.model, ATTEMPT_OUTCOME_LABELS[attempt.outcome], attempt.code or "")
        histogram = self._attempts.get(labels) or self._add_attempts(labels)
        histogram.attempts += 1
        if attempt.is_timed:
            seconds = attempt.duration_ms / 1000
            histogram.seconds += seconds
            histogram.bucket_counts[bucket_index(seconds)] += 1
        if attempt.is_retry:
            model = (attempt.provider, attempt.model)
            self._retries[model] = self._retries.get(model, 0) + 1

    def on_end(self, record: RequestRecord) -> None:
        labels = (record.provider or "", record.model or "", record.status, record.http_status)
        counts = self._counts.get(labels) or self._add_counts(labels)
        counts.requests += 1
        if record.is_timed:
            counts.seconds += record.duration_seconds
            counts.latency[bucket_index(record.duration_seconds)] += 1
            if record.first_byte_seconds is not None:
                counts.first_seconds += record.first_byte_seconds
                counts.first_byte_latency[bucket_index(record.first_byte_seconds)] += 1
        if record.code is not None:
            self._count_error(record.code, record.limit_name)
        if record.attempt_count:
            self._operations.count(record)
            usage = record.bill.usage
            if usage is not None:
                counts.prompt_tokens += usage.prompt_tokens
                counts.completion_tokens += usage.completion_tokens
            counts.cost_usd += record.bill.cost_usd or 0.0
            counts.fallbacks += record.model != record.requested_model

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        if entry.code is not None:
            self._count_error(entry.code, limit_name)

    def _count_error(self, code: str, limit_name: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1
        if limit_name:
            self.limit_refusals[limit_name] = self.limit_refusals.get(limit_name, 0) + 1

    def _add_attempts(self, labels: tuple[str, str, str, str]) -> AttemptHistogram:
        if len(self._attempts) >= MAX_ATTEMPT_LABEL_SETS:
            labels = ("other", "other", labels[2], labels[3])
        return self._attempts.setdefault(labels, AttemptHistogram())

    def _add_counts(self, labels: tuple[str, str, str, int]) -> RequestCounts:
        if len(self._counts) >= MAX_METRIC_SERIES:
            labels = ("other", "other", labels[2], labels[3])
        return self._counts.setdefault(labels, RequestCounts(*labels))

    def snapshot(self, values: dict[str, float], breakers: dict[str, BreakerState]) -> MetricsSnapshot:
        """Return all counts, with `values` and `breakers` of other parts."""
        series = [counts.to_series() for counts in self._counts.values()]
        attempts = [
            AttemptSeries(labels, histogram.attempts, histogram.seconds, histogram.bucket_counts)
            for labels, histogram in self._attempts.items()
        ]
        retries = {
            f"svc_retries_total{{{format_model_labels(*provider_and_model)}}}": float(count)
            for provider_and_model, count in self._retries.items()
        }
        return MetricsSnapshot(
            series, attempts, {**values, **retries}, breakers, operations=self._operations.to_series()
        )


def bucket_index(seconds: float) -> int:
    """Return the index of the first bucket whose upper bound is not below `seconds`."""
    index = 0
    for upper_bound in _BUCKET_UPPER_BOUNDS:
        if seconds <= upper_bound:
            break
        index += 1
    return index


def format_model_labels(provider: str, model: str) -> str:
    """Return Prometheus labels."""
    return f'provider="{escape_label(provider)}",model="{escape_label(model)}"'


def escape_label(value: str) -> str:
    """Return the value of a Prometheus label."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
