"""Counts attempts and tokens as the metrics of OpenTelemetry's conventions for generative AI.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/ has the names, the attributes and the buckets.
"""

from __future__ import annotations

import math
from typing import Final

from svc.gateway.accounting.record import AttemptRecord, RequestRecord
from svc.gateway.observability.series import OPERATION_BUCKETS_SECONDS, TOKEN_BUCKETS, OperationSeries

MAX_OPERATION_LABEL_SETS: Final = 2000
CANCELLED_ERROR_TYPE: Final = "cancelled"
"""The error type of an attempt that the gateway gave up."""
_LAST_DURATION_BUCKET: Final = len(OPERATION_BUCKETS_SECONDS)
_LAST_TOKEN_BUCKET: Final = len(TOKEN_BUCKETS)


class OperationCounts:
    """The attempts of one endpoint, provider, model and error type."""

    __slots__ = ("durations", "input_tokens", "inputs", "output_tokens", "outputs", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.durations = [0] * (_LAST_DURATION_BUCKET + 1)
        self.input_tokens = 0
        self.inputs = [0] * (_LAST_TOKEN_BUCKET + 1)
        self.output_tokens = 0
        self.outputs = [0] * (_LAST_TOKEN_BUCKET + 1)


class OperationMetrics:
    """The attempts of all requests of this process."""

    def __init__(self) -> None:
        self._operations: dict[tuple[str, str, str, str], OperationCounts] = {}
        """By endpoint, provider, model, and error type, which is empty for a success."""

    def count(self, record: RequestRecord) -> None:
        """Count the attempts and the usage of a request that reached a provider."""
        labels = (record.endpoint, record.provider or "", record.model or "", "")
        operation = self._operations.get(labels) or self._add(labels)
        if record.attempt_records:
            for attempt in record.attempt_records:
                self._count_attempt(record.endpoint, attempt)
        elif record.is_timed:  # one attempt, which succeeded
            attempt_record = record.last_attempt
            seconds = record.duration_seconds if attempt_record is None else attempt_record.duration_ms / 1000
            operation.seconds += seconds
            operation.durations[duration_bucket(seconds)] += 1
        usage = record.bill.usage
        if usage is not None:
            operation.input_tokens += usage.prompt_tokens
            operation.inputs[token_bucket(usage.prompt_tokens)] += 1
            operation.output_tokens += usage.completion_tokens
            operation.outputs[token_bucket(usage.completion_tokens)] += 1

    def _count_attempt(self, endpoint: str, attempt: AttemptRecord) -> None:
        if attempt.is_timed:
            error_type = "" if attempt.outcome == "ok" else attempt.code or CANCELLED_ERROR_TYPE
            labels = (endpoint, attempt.provider, attempt.model, error_type)
            operation = self._operations.get(labels) or self._add(labels)
            seconds = attempt.duration_ms / 1000
            operation.seconds += seconds
            operation.durations[duration_bucket(seconds)] += 1

    def _add(self, labels: tuple[str, str, str, str]) -> OperationCounts:
        if len(self._operations) >= MAX_OPERATION_LABEL_SETS:
            labels = (labels[0], "other", "other", labels[3])
        return self._operations.setdefault(labels, OperationCounts())

    def to_series(self) -> list[OperationSeries]:
        """Return the counts as serializable structs."""
        return [
            OperationSeries(
                labels,
                operation.seconds,
                operation.durations,
                operation.input_tokens,
                operation.inputs,
                operation.output_tokens,
                operation.outputs,
            )
            for labels, operation in self._operations.items()
        ]


def duration_bucket(seconds: float) -> int:
    """Return the index of the first bucket whose upper bound, 0.01 * 2**index, is not below `seconds`."""
    return min((math.ceil(seconds * 100) - 1).bit_length(), _LAST_DURATION_BUCKET) if seconds > 0.01 else 0


def token_bucket(tokens: int) -> int:
    """Return the index of the first bucket whose upper bound, 4**index, is not below `tokens`."""
    return min(((tokens - 1).bit_length() + 1) // 2, _LAST_TOKEN_BUCKET) if tokens > 1 else 0
