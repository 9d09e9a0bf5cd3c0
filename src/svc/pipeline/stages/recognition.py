"""Speech to text, by the engines that live speech uses. One inference at a time, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from svc import plugins
from svc.bundles.metadata import BundleMetadata
from svc.client.bundles import Bundle
from svc.distribution import install_command
from svc.errors import PipelineFailed, SpeechFailed, SvcError
from svc.pipeline.definition import Stage
from svc.pipeline.stages.base import AudioChunk, StageChunk, StageKinds, StageRunInfo
from svc.speech import ipc
from svc.speech.model import RecognitionModel, detect_model

RECOGNITION_TURN_WINDOWS = 256
"""Windows that are worked through at a time."""


def fits(metadata: BundleMetadata) -> bool:
    """A speech bundle that is not a voice."""
    task = (metadata.metadata or {}).get("task")
    return metadata.type == "Speech" and "tts.json" not in metadata.files and task != "text-to-speech"


def kinds(metadata: BundleMetadata) -> StageKinds:
    """What is said is written."""
    return "audio", "text"


def make(stage: Stage, bundle: Bundle) -> RecognitionRunner:
    """Raises PipelineFailed for a folder that no engine knows, or when the extra is not installed."""
    try:
        model = detect_model(bundle.path)
    except SpeechFailed as error:
        raise PipelineFailed(f"The bundle {bundle.reference} cannot be used: {error.message}") from error
    if find_spec("sherpa_onnx") is None or find_spec("numpy") is None:
        raise PipelineFailed(f"Speech recognition needs an extra: {install_command('speech')}")
    if model.engine not in plugins.names("speech.engines"):
        raise PipelineFailed(f"The bundle {bundle.reference} asks for an engine {model.engine!r} that is not known.")
    return RecognitionRunner(bundle, model)


class RecognitionRunner:
    """A `Runner`."""

    input_kind, output_kind = "audio", "text"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, model: RecognitionModel) -> None:
        self.model = bundle.reference
        self._model = model
        self._lock = threading.Lock()
        self._engine: Any = None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        audio_chunks = [sound for sound in input_chunks if isinstance(sound, AudioChunk)]
        with self._lock:
            text = self._transcribe(audio_chunks)
        yield text.strip()  # silence says nothing; a stage that needs words says so itself

    def _transcribe(self, audio_chunks: list[AudioChunk]) -> str:
        try:
            if self._engine is None:
                self._engine = plugins.load("speech.engines", self._model.engine).load(self._model)
            transcripts: list[str] = []
            stream = self._create_stream(audio_chunks, transcripts)
            while not transcripts:
                if not stream.advance(RECOGNITION_TURN_WINDOWS) and stream.pending_work() is None:
                    raise SpeechFailed("The engine came to no end.")
                while stream.pending_work() is not None and not transcripts:
                    stream.run_work_inline()
            return transcripts[0]
        except SvcError:
            raise
        except Exception as error:
            raise SpeechFailed(f"The engine {self._model.engine} failed: {type(error).__name__}: {error}.") from error

    def _create_stream(self, audio_chunks: list[AudioChunk], transcripts: list[str]) -> Any:
        def emit(message: ipc.WorkerToGateway) -> None:
            if isinstance(message, ipc.FinalTranscript):
                transcripts.append(message.text)

        vad = self._model.files.get("vad")
        detector = plugins.load("speech", "vad").VoiceActivityDetector(vad) if vad else AlwaysSpeech()
        stream = plugins.load("speech", "recognition-stream").RecognitionStream(
            1, self._engine, detector, emit=emit, format_=audio_chunks[0].format if audio_chunks else None, live=False
        )
        for sound in audio_chunks:
            stream.enqueue(sound.data)
        stream.enqueue(ipc.FlushStream(1))
        return stream

    def close(self) -> None:
        self._engine = None


class AlwaysSpeech:
    """Takes all for speech, where a bundle has no model of its own that tells."""

    def is_speech(self, window: object) -> bool:
        return True

    def reset(self) -> None:
        """Nothing is kept."""
