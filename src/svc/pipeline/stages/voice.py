"""Text to speech. It speaks sentence by sentence: the first is heard while the text still comes.

tts.json   {engine: "espeak", voice: "en-us", rate: 165}      words a minute      with the files of the bundle beside it
           {engine: "sherpa", family: "vits"|"kokoro"|"matcha", files: {role: name}, speaker: 0, speed: 1.0,
            sounds: "espeak", voice: "en-us"}     # for Piper's voices: espeak-ng tells how the text sounds
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import msgspec

from svc import plugins
from svc.bundles.metadata import BundleMetadata
from svc.client.bundles import Bundle
from svc.distribution import install_command
from svc.errors import InvalidRequest, PipelineFailed
from svc.pipeline.definition import Stage
from svc.pipeline.stages.base import AudioChunk, StageChunk, StageKinds, StageRunInfo, bundle_file
from svc.speech.audio import AudioFormat

MAX_SENTENCE_CHARS = 600
"""Characters that are spoken at once at most, where no sentence ends."""
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+|\n{2,}")
_ENGINE_PACKAGES = {"espeak": ("espeakng_loader", "voice"), "sherpa": ("sherpa_onnx", "speech")}
"""What an engine needs, and the extra that has it."""


class VoiceDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """tts.json."""

    engine: str
    sounds: Literal["", "espeak"] = ""
    voice: str = "en-us"
    rate: int = 165
    family: str = ""
    files: dict[str, str] = {}
    speaker: int = 0
    speed: float = 1.0


def fits(metadata: BundleMetadata) -> bool:
    """A speech bundle with a voice."""
    task = (metadata.metadata or {}).get("task")
    return metadata.type == "Speech" and ("tts.json" in metadata.files or task == "text-to-speech")


def kinds(metadata: BundleMetadata) -> StageKinds:
    """Text is spoken."""
    return "text", "audio"


def make(stage: Stage, bundle: Bundle) -> VoiceRunner:
    """Raises PipelineFailed for a description that is none, or an engine that is not installed."""
    try:
        description = msgspec.json.decode((bundle.path / "tts.json").read_bytes(), type=VoiceDescription)
    except (OSError, msgspec.DecodeError) as error:
        raise PipelineFailed(f"The bundle {bundle.reference} has no tts.json that can be read: {error}.") from error
    if description.engine not in _ENGINE_PACKAGES:
        raise PipelineFailed(
            f"The bundle {bundle.reference} asks for an unknown engine {description.engine[:40]!r} to speak."
        )
    for package, extra in (_ENGINE_PACKAGES[engine] for engine in (description.engine, description.sounds) if engine):
        if find_spec(package) is None:
            raise PipelineFailed(f"This voice needs an extra: {install_command(extra)}")
    for name in description.files.values():
        bundle_file(bundle, name)
    return VoiceRunner(bundle, description)


class VoiceRunner:
    """A `Runner`. An engine says one thing at a time."""

    input_kind, output_kind = "text", "audio"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, description: VoiceDescription) -> None:
        self.model = bundle.reference
        self._folder, self._description = bundle.path, description
        self._lock = threading.Lock()
        self._engine: Any = None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        has_spoken = False
        for sentence in split_sentences(input_chunks):
            with self._lock:
                if self._engine is None:
                    self._engine = plugins.load("pipeline.voices", self._description.engine).load(
                        self._folder, self._description
                    )
                rate, samples = self._engine.say(sentence)
            has_spoken = True
            yield AudioChunk(AudioFormat(rate), samples)
        if not has_spoken:
            raise InvalidRequest("There is nothing to say: the text that came is empty.")

    def close(self) -> None:
        self._engine = None


def split_sentences(chunks: Iterator[StageChunk]) -> Iterator[str]:
    """Sentences as soon as they are whole, from text in any pieces."""
    rest = ""
    for chunk in chunks:
        rest += chunk if isinstance(chunk, str) else ""
        while (cut := _find_cut(rest)) is not None:
            sentence, rest = rest[:cut].strip(), rest[cut:]
            if _is_speakable(sentence):
                yield sentence
    if _is_speakable(rest):
        yield rest.strip()


def _find_cut(text: str) -> int | None:
    if (end := _SENTENCE_END.search(text)) is not None:
        return end.end()
    if len(text) <= MAX_SENTENCE_CHARS:
        return None
    space = text.rfind(" ", 1, MAX_SENTENCE_CHARS)
    return space if space > 0 else MAX_SENTENCE_CHARS


def _is_speakable(text: str) -> bool:
    return any(letter.isalnum() for letter in text)
