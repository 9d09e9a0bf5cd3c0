"""An engine that never returns ends its worker process. The engine is a plug-in of the test."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from svc.speech import ipc
from svc.speech.audio import LIVE_AUDIO_FORMAT
from svc.speech.metrics import SpeechMetrics
from svc.speech.model import RecognitionModel
from svc.speech.worker_process import WorkerProcess
from tests.speech import material

ENGINE = '''
"""Decodes once, when the worker loads it. A later call never returns. Shortens the worker's timeout."""
import sys, threading
from svc.speech.ipc import Hypothesis

class Engine:
    is_incremental = has_word_times = False
    calls = 0

    def begin_segment(self, language, *, with_words=False):
        return self

    def decode_partial(self, samples):
        self.calls += 1
        if self.calls > 1:
            threading.Event().wait()
        return Hypothesis("")

    decode_final = decode_partial

def load(model):
    worker = sys.modules["__main__"]
    worker.INFERENCE_TIMEOUT_SECONDS, worker.INFERENCE_CHECK_SECONDS = 0.3, 0.1
    return Engine()
'''


class Listener:
    """Waits for the end of the worker."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def on_audio_processed(self, byte_count: int) -> None:
        """Ignore progress."""

    def on_hypothesis(self, message: ipc.RecognitionHypothesis) -> None:
        raise AssertionError(message)

    def on_final(self, message: ipc.FinalTranscript) -> None:
        raise AssertionError(message)

    def on_recognition_failed(self, message: str) -> None:
        raise AssertionError(message)

    def on_worker_lost(self, message: str) -> None:
        self.lost.set()


@pytest.mark.parametrize("live", [True, False])  # an inference of the urgent thread, and of the background thread
async def test_engine_that_never_returns_ends_worker(
    tmp_path: Path, model: Path, clips: dict[str, Path], monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    info = tmp_path / "hanging-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[svc.speech.engines]\nhanging = hanging_engine\n")
    (tmp_path / "hanging_engine.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    vad = {"vad": str(model / "silero_vad.onnx")}
    worker = WorkerProcess(RecognitionModel("hanging", "hanging", "test", vad), 1, SpeechMetrics())
    await worker.start()
    try:
        listener = Listener()
        stream_id = worker.open_stream(
            listener, vad=True, language=None, format_=LIVE_AUDIO_FORMAT, live=live, with_words=False, request_id=""
        )
        worker.send(ipc.FeedAudio(stream_id, material.read_pcm(clips["en-hello-world"])))
        worker.send(ipc.FlushStream(stream_id))
        async with asyncio.timeout(30):
            await listener.lost.wait()
        assert worker.is_dead
    finally:
        await worker.stop()
