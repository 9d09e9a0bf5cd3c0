"""Text to speech, sentence by sentence. The first sentence is spoken while the text is still being generated."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from svc.bundles.metadata import VOICE_FILE_NAME, BundleMetadata
from svc.client.bundles import Bundle
from svc.errors import InvalidRequest
from svc.pipeline.definition import Stage
from svc.pipeline.stages.base import AudioChunk, StageChunk, StageKinds, StageRunInfo, bundle_file
from svc.speech.audio import AudioFormat
from svc.speech.synthesis.sentences import split_sentences
from svc.speech.synthesis.voice import VoiceDescription, VoiceEngine, load_engine, read_description


def fits(metadata: BundleMetadata) -> bool:
    """Return whether the bundle is a speech bundle with a voice."""
    task = (metadata.metadata or {}).get("task")
    return metadata.type == "Speech" and (VOICE_FILE_NAME in metadata.files or task == "text-to-speech")


def kinds(metadata: BundleMetadata) -> StageKinds:
    """Return text to audio."""
    return "text", "audio"


def make(stage: Stage, bundle: Bundle) -> VoiceRunner:
    """Create the runner. Raises PipelineFailed if the description is invalid or the engine is not installed."""
    description = read_description(bundle.path, bundle.reference)
    for name in description.files.values():
        bundle_file(bundle, name)
    return VoiceRunner(bundle, description)


class VoiceRunner:
    """The runner of a voice bundle. The engine speaks one sentence at a time."""

    input_kind, output_kind = "text", "audio"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, description: VoiceDescription) -> None:
        self.model = bundle.reference
        self._folder, self._description = bundle.path, description
        self._lock = threading.Lock()
        self._engine: VoiceEngine | None = None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        has_spoken = False
        for sentence in split_sentences(input_chunks):
            with self._lock:
                if self._engine is None:
                    self._engine = load_engine(self._folder, self._description)
                rate, samples = self._engine.say(sentence)
            has_spoken = True
            yield AudioChunk(AudioFormat(rate), samples)
        if not has_spoken:
            raise InvalidRequest("There is nothing to say: the previous stage produced no text.")

    def close(self) -> None:
        self._engine = None
