"""The speech metrics of one gateway process and its workers. docs/reference/metrics.md lists the names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from svc.speech.work import SpeechWork
from svc.wire.histogram import HistogramSeries

MAX_SPEECH_MODEL_LABELS = 64
"""Models with series of their own. Others are counted under "other"."""
INFERENCE_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SESSION_BUCKETS_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0)
REAL_TIME_FACTOR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)


class SpeechMetrics:
    """Counters and histograms. The worker pool updates `running_workers` and `lost_workers`."""

    def __init__(self) -> None:
        self.open_sessions = 0
        self.audio_seconds = 0.0
        self.running_workers = 0
        self.lost_workers = 0
        self.on_work: Callable[[SpeechWork], object] = _ignore_work
        """Called with the work of each request, after it is counted."""
        self._request_counts = {"stream": 0, "upload": 0, "synthesis": 0}
        self._error_counts: dict[str, int] = {}
        self._spoken_seconds = 0.0
        self._histograms: dict[tuple[str, str], HistogramSeries] = {}
        """By metric and model."""
        self._models: set[str] = set()

    def record_request(self, kind: Literal["stream", "upload"]) -> None:
        """Count a live session or an upload."""
        self._request_counts[kind] += 1

    def record_error(self, code: str) -> None:
        """Count an error that was sent to a client. The codes are the project's own, so there are few."""
        self._error_counts[code] = self._error_counts.get(code, 0) + 1

    def record_session(self, seconds: float) -> None:
        """Count the end of a live session."""
        self._observe("svc_speech_session_seconds", SESSION_BUCKETS_SECONDS, None, seconds)

    def record_decode(self, model: str, queue_seconds: float, decode_seconds: float) -> None:
        """Count an inference of a speech worker."""
        self._observe("svc_speech_queue_seconds", INFERENCE_BUCKETS_SECONDS, model, queue_seconds)
        self._observe("svc_speech_decode_seconds", INFERENCE_BUCKETS_SECONDS, model, decode_seconds)

    def record_work(self, work: SpeechWork) -> None:
        """Count the work of one request, which has ended."""
        if work.operation == "synthesize":
            self._request_counts["synthesis"] += 1
            self._spoken_seconds += work.audio_seconds
            self._observe("svc_speech_queue_seconds", INFERENCE_BUCKETS_SECONDS, work.model, work.queue_seconds)
            self._observe("svc_speech_synthesis_seconds", INFERENCE_BUCKETS_SECONDS, work.model, work.engine_seconds)
        if work.audio_seconds > 0:
            factor = work.engine_seconds / work.audio_seconds
            self._observe("svc_speech_real_time_factor", REAL_TIME_FACTOR_BUCKETS, work.model, factor)
        self.on_work(work)

    def _observe(self, name: str, bounds: Sequence[float], model: str | None, value: float) -> None:
        if model is not None and model not in self._models:
            if len(self._models) < MAX_SPEECH_MODEL_LABELS:
                self._models.add(model)
            else:
                model = "other"
        key = (name, model or "")
        series = self._histograms.get(key)
        if series is None:
            labels = () if model is None else (("model", model),)
            series = self._histograms[key] = HistogramSeries(name, labels, tuple(bounds))
        series.observe(value)

    def histograms(self) -> list[HistogramSeries]:
        """Return copies of the histograms."""
        return [series.copy() for series in self._histograms.values()]

    def values(self) -> dict[str, float]:
        """Return the values by metric name."""
        return {
            "svc_speech_sessions": self.open_sessions,
            "svc_speech_audio_seconds_total": self.audio_seconds,
            "svc_speech_spoken_seconds_total": self._spoken_seconds,
            "svc_speech_workers": self.running_workers,
            "svc_speech_workers_lost_total": self.lost_workers,
            **{f'svc_speech_requests_total{{kind="{kind}"}}': count for kind, count in self._request_counts.items()},
            **{f'svc_speech_errors_total{{code="{code}"}}': count for code, count in self._error_counts.items()},
        }


def _ignore_work(work: SpeechWork) -> None:
    """Ignore the work: traces are off."""
