"""Metrics of speech workers: histograms by model, over several gateway processes."""

from __future__ import annotations

from pathlib import Path

from svc.gateway.observability.prometheus import WorkerMetrics, render_prometheus
from svc.gateway.observability.series import MetricsSnapshot
from svc.speech.metrics import MAX_SPEECH_MODEL_LABELS, SpeechMetrics
from svc.speech.work import SpeechWork


def work_of(model: str, **fields: object) -> SpeechWork:
    known = {"request_id": "r", "operation": "synthesize", "pid": 1, "start_ns": 0, "end_ns": 1, **fields}
    return SpeechWork(model=model, **known)  # type: ignore[arg-type]


def snapshot_of(metrics: SpeechMetrics) -> MetricsSnapshot:
    return MetricsSnapshot(values=metrics.values(), histograms=metrics.histograms())


def test_speech_histograms_of_two_gateway_processes_are_added(tmp_path: Path) -> None:
    own, other = SpeechMetrics(), SpeechMetrics()
    own.record_decode("tiny", 0.004, 0.2)
    other.record_decode("tiny", 0.3, 0.2)
    other.record_session(20.0)
    WorkerMetrics(tmp_path, "other").write(snapshot_of(other))
    merged = WorkerMetrics(tmp_path, "own").aggregate(snapshot_of(own))
    lines = render_prometheus(merged).splitlines()
    assert 'svc_speech_queue_seconds_bucket{model="tiny",le="0.005"} 1' in lines
    assert 'svc_speech_queue_seconds_bucket{model="tiny",le="0.5"} 2' in lines
    assert 'svc_speech_decode_seconds_sum{model="tiny"} 0.4' in lines
    assert 'svc_speech_decode_seconds_count{model="tiny"} 2' in lines
    assert 'svc_speech_session_seconds_bucket{le="15"} 0' in lines
    assert 'svc_speech_session_seconds_bucket{le="+Inf"} 1' in lines
    assert "svc_speech_session_seconds_count 1" in lines


def test_speech_model_names_are_escaped_and_bounded() -> None:
    metrics = SpeechMetrics()
    metrics.record_decode('a"b', 0.0, 0.1)
    for number in range(MAX_SPEECH_MODEL_LABELS + 5):
        metrics.record_decode(f"model{number}", 0.0, 0.1)
    page = render_prometheus(snapshot_of(metrics))
    assert 'svc_speech_decode_seconds_count{model="a\\"b"} 1' in page
    assert 'svc_speech_decode_seconds_count{model="other"} 6' in page


def test_speech_work_of_a_voice_is_counted_and_passed_on() -> None:
    metrics = SpeechMetrics()
    seen: list[SpeechWork] = []
    metrics.on_work = seen.append
    work = work_of("bell", engine_seconds=0.5, audio_seconds=2.0, queue_seconds=0.02)
    metrics.record_work(work)
    page = render_prometheus(snapshot_of(metrics))
    assert 'svc_speech_requests_total{kind="synthesis"} 1' in page
    assert "svc_speech_spoken_seconds_total 2" in page
    assert 'svc_speech_real_time_factor_bucket{model="bell",le="0.2"} 0' in page
    assert 'svc_speech_real_time_factor_bucket{model="bell",le="0.35"} 1' in page
    assert seen == [work]


def test_speech_work_without_audio_has_no_real_time_factor() -> None:
    metrics = SpeechMetrics()
    metrics.record_work(work_of("tiny", operation="transcribe", status="error", code="speech_failed"))
    assert "svc_speech_real_time_factor" not in render_prometheus(snapshot_of(metrics))
