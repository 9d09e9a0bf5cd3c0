"""Speech recognition with the engines of live speech. One inference at a time, in this process."""

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

_RECOGNITION_PACKAGES = ("numpy", "onnxruntime", "sherpa_onnx")
RECOGNITION_TURN_WINDOWS = 256
"""Windows that are processed at a time."""


def fits(metadata: BundleMetadata) -> bool:
    """Return whether the bundle is a speech bundle without a voice."""
    task = (metadata.metadata or {}).get("task")
    return metadata.type == "Speech" and "tts.json" not in metadata.files and task != "text-to-speech"


def kinds(metadata: BundleMetadata) -> StageKinds:
    """Return audio to text."""
    return "audio", "text"


def make(stage: Stage, bundle: Bundle) -> RecognitionRunner:
    """Create the runner. Raises PipelineFailed if the model is unknown or the extra is not installed."""
    try:
        model = detect_model(bundle.path)
    except SpeechFailed as error:
        raise PipelineFailed(f"The bundle {bundle.reference} cannot be used: {error.message}") from error
    if any(find_spec(package) is None for package in _RECOGNITION_PACKAGES):
        raise PipelineFailed(f"Speech recognition needs an extra. Install it with: {install_command('speech')}")
    if model.engine not in plugins.names("speech.engines"):
        raise PipelineFailed(f"The bundle {bundle.reference} needs the unknown engine {model.engine!r}.")
    return RecognitionRunner(bundle, model)


class RecognitionRunner:
    """The runner of a speech recognition bundle."""

    input_kind, output_kind = "audio", "text"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, model: RecognitionModel) -> None:
        self.model = bundle.reference
        self._model = model
        self._lock = threading.Lock()
        self._engine: Any = None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        audio_chunks = [chunk for chunk in input_chunks if isinstance(chunk, AudioChunk)]
        with self._lock:
            text = self._transcribe(audio_chunks)
        yield text.strip()  # empty for silence: a stage that needs text reports it

    def _transcribe(self, audio_chunks: list[AudioChunk]) -> str:
        try:
            if self._engine is None:
                self._engine = plugins.load("speech.engines", self._model.engine).load(self._model)
            transcripts: list[str] = []
            stream = self._create_stream(audio_chunks, transcripts)
            while not transcripts:
                if not stream.advance(RECOGNITION_TURN_WINDOWS) and stream.pending_work() is None:
                    raise SpeechFailed("The engine did not finish.")
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
        module = plugins.load("speech", "vad")
        detector = module.VoiceActivityDetector(module.VoiceActivityModel(vad)) if vad else AlwaysSpeech()
        stream = plugins.load("speech", "recognition-stream").RecognitionStream(
            1, self._engine, detector, emit=emit, format_=audio_chunks[0].format if audio_chunks else None, live=False
        )
        for chunk in audio_chunks:
            stream.enqueue(chunk.data)
        stream.enqueue(ipc.FlushStream(1))
        return stream

    def close(self) -> None:
        self._engine = None


class AlwaysSpeech:
    """Reports speech in every window, for bundles without a voice activity detector."""

    def is_speech(self, window: object) -> bool:
        return True

    def reset(self) -> None:
        """Do nothing: there is no state."""
