"""The metrics of one worker, as it writes them to a file for the other workers. Data only: `metrics` counts."""

from __future__ import annotations

import msgspec

from svc.resilience import BreakerState
from svc.wire.histogram import HistogramSeries

LATENCY_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the histogram buckets, in seconds."""
OPERATION_BUCKETS_SECONDS = tuple([round(0.01 * 2**index, 2) for index in range(14)])
"""The buckets that OpenTelemetry recommends for the duration of an operation."""
TOKEN_BUCKETS = tuple([4**index for index in range(14)])
"""The buckets that OpenTelemetry recommends for the tokens of an operation."""


class RequestSeries(msgspec.Struct):
    """Requests of one provider, model, status and HTTP status."""

    labels: tuple[str, str, str, str]
    requests: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    fallbacks: int = 0
    latency: list[int] = msgspec.field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_SECONDS) + 1))
    first: list[int] = msgspec.field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_SECONDS) + 1))

    def merge(self, other: RequestSeries) -> None:
        """Add the counts of another worker."""
        for name in ("requests", "seconds", "first_seconds", "prompt_tokens", "completion_tokens", "cost_usd"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.fallbacks += other.fallbacks
        self.latency = [a + b for a, b in zip(self.latency, other.latency, strict=True)]
        self.first = [a + b for a, b in zip(self.first, other.first, strict=True)]


class AttemptSeries(msgspec.Struct):
    """Attempts of one provider, model, outcome and code."""

    labels: tuple[str, str, str, str]
    attempts: int = 0
    seconds: float = 0.0
    latency: list[int] = msgspec.field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_SECONDS) + 1))

    def merge(self, other: AttemptSeries) -> None:
        """Add the counts of another worker, or of another code."""
        self.attempts += other.attempts
        self.seconds += other.seconds
        self.latency = [a + b for a, b in zip(self.latency, other.latency, strict=True)]


class OperationSeries(msgspec.Struct):
    """Attempts of one endpoint, provider, model and error type, and the tokens of those that succeeded."""

    labels: tuple[str, str, str, str]
    seconds: float = 0.0
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * (len(OPERATION_BUCKETS_SECONDS) + 1))
    input_tokens: int = 0
    inputs: list[int] = msgspec.field(default_factory=lambda: [0] * (len(TOKEN_BUCKETS) + 1))
    output_tokens: int = 0
    outputs: list[int] = msgspec.field(default_factory=lambda: [0] * (len(TOKEN_BUCKETS) + 1))

    def merge(self, other: OperationSeries) -> None:
        """Add the counts of another worker, or of another endpoint."""
        self.seconds += other.seconds
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.durations = [a + b for a, b in zip(self.durations, other.durations, strict=True)]
        self.inputs = [a + b for a, b in zip(self.inputs, other.inputs, strict=True)]
        self.outputs = [a + b for a, b in zip(self.outputs, other.outputs, strict=True)]


class LastError(msgspec.Struct, frozen=True):
    """The last error of a provider and model."""

    code: str
    """The code of the error."""
    time: float
    """Unix time in seconds, to the second."""


class MetricsSnapshot(msgspec.Struct):
    """All metrics of one worker. `values` maps rendered names with labels to numbers."""

    series: list[RequestSeries] = []
    attempts: list[AttemptSeries] = []
    values: dict[str, float] = {}
    breakers: dict[str, BreakerState] = {}
    """Breaker states by `provider/model`, with `#account` if the provider has several accounts."""
    recent: list[AttemptSeries] = []
    """The attempts of the last minutes, see `RecentAttempts`."""
    last_errors: dict[str, LastError] = {}
    """The last error by `provider/model`."""
    operations: list[OperationSeries] = []
    histograms: list[HistogramSeries] = []
    """Histograms of other parts, such as speech."""
