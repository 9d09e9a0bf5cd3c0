"""Text to speech, sentence by sentence. The first sentence is spoken while the text is still being generated.

tts.json   {engine: "espeak", voice: "en-us", rate: 165}      words per minute, with the bundle's own files
           {engine: "sherpa", family: "vits"|"kokoro"|"matcha", files: {role: name}, speaker: 0, speed: 1.0,
            sounds: "espeak", voice: "en-us"}     # for Piper voices: espeak-ng makes the phonemes
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
"""The maximum length of a text that is spoken at once, if no sentence ends before."""
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+|\n{2,}")
_ENGINE_PACKAGES = {"espeak": ("espeakng_loader", "voice"), "sherpa": ("sherpa_onnx", "speech")}
"""The package that an engine needs, and the extra that installs it."""


class VoiceDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of tts.json."""

    engine: str
    """`espeak` or `sherpa`."""
    sounds: Literal["", "espeak"] = ""
    """`espeak` if espeak-ng makes the phonemes for a `sherpa` voice."""
    voice: str = "en-us"
    """The voice of espeak-ng."""
    rate: int = 165
    """Words per minute of espeak-ng, 80 to 450."""
    family: str = ""
    """The family of a `sherpa` voice: `vits`, `kokoro` or `matcha`."""
    files: dict[str, str] = {}
    """The file for each role of a `sherpa` voice."""
    speaker: int = 0
    """The number of the speaker of a `sherpa` voice."""
    speed: float = 1.0
    """The speed of a `sherpa` voice, as a factor."""


def fits(metadata: BundleMetadata) -> bool:
    """Return whether the bundle is a speech bundle with a voice."""
    task = (metadata.metadata or {}).get("task")
    return metadata.type == "Speech" and ("tts.json" in metadata.files or task == "text-to-speech")


def kinds(metadata: BundleMetadata) -> StageKinds:
    """Return text to audio."""
    return "text", "audio"


def make(stage: Stage, bundle: Bundle) -> VoiceRunner:
    """Create the runner. Raises PipelineFailed if the description is invalid or the engine is not installed."""
    try:
        description = msgspec.json.decode((bundle.path / "tts.json").read_bytes(), type=VoiceDescription)
    except (OSError, msgspec.DecodeError) as error:
        raise PipelineFailed(f"The bundle {bundle.reference} has no valid tts.json: {error}.") from error
    if description.engine not in _ENGINE_PACKAGES:
        raise PipelineFailed(
            f"The bundle {bundle.reference} needs the unknown voice engine {description.engine[:40]!r}."
        )
    for package, extra in (_ENGINE_PACKAGES[engine] for engine in (description.engine, description.sounds) if engine):
        if find_spec(package) is None:
            raise PipelineFailed(f"This voice needs an extra. Install it with: {install_command(extra)}")
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
            raise InvalidRequest("There is nothing to say: the previous stage produced no text.")

    def close(self) -> None:
        self._engine = None


def split_sentences(chunks: Iterator[StageChunk]) -> Iterator[str]:
    """Yield sentences as soon as they are complete. `chunks` may split the text anywhere."""
    remainder = ""
    for chunk in chunks:
        remainder += chunk if isinstance(chunk, str) else ""
        while (cut := _find_cut(remainder)) is not None:
            sentence, remainder = remainder[:cut].strip(), remainder[cut:]
            if _is_speakable(sentence):
                yield sentence
    if _is_speakable(remainder):
        yield remainder.strip()


def _find_cut(text: str) -> int | None:
    if (end := _SENTENCE_END.search(text)) is not None:
        return end.end()
    if len(text) <= MAX_SENTENCE_CHARS:
        return None
    space = text.rfind(" ", 1, MAX_SENTENCE_CHARS)
    return space if space > 0 else MAX_SENTENCE_CHARS


def _is_speakable(text: str) -> bool:
    return any(character.isalnum() for character in text)
