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
from svc.bundles.metadata import Metadata
from svc.client.bundles import Bundle
from svc.distribution import install_command
from svc.errors import InvalidRequest, PipelineFailed
from svc.pipeline.definition import Stage
from svc.pipeline.stages.base import Item, Kinds, Sound, Told, inside
from svc.speech.audio import Format

LONGEST = 600
"""Characters that are spoken at once at most, where no sentence ends."""
_END = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+|\n{2,}")
_PACKAGES = {"espeak": ("espeakng_loader", "voice"), "sherpa": ("sherpa_onnx", "speech")}
"""What an engine needs, and the extra that has it."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """tts.json."""

    engine: str
    sounds: Literal["", "espeak"] = ""
    voice: str = "en-us"
    rate: int = 165
    family: str = ""
    files: dict[str, str] = {}
    speaker: int = 0
    speed: float = 1.0


def fits(about: Metadata) -> bool:
    """A speech bundle with a voice."""
    task = (about.metadata or {}).get("task")
    return about.type == "Speech" and ("tts.json" in about.files or task == "text-to-speech")


def kinds(about: Metadata) -> Kinds:
    """Text is spoken."""
    return "text", "audio"


def make(stage: Stage, bundle: Bundle) -> Voice:
    """Raises PipelineFailed for a description that is none, or an engine that is not installed."""
    try:
        about = msgspec.json.decode((bundle.path / "tts.json").read_bytes(), type=Description)
    except (OSError, msgspec.DecodeError) as error:
        raise PipelineFailed(f"The bundle {bundle.reference} has no tts.json that can be read: {error}.") from error
    if about.engine not in _PACKAGES:
        raise PipelineFailed(
            f"The bundle {bundle.reference} asks for an unknown engine {about.engine[:40]!r} to speak."
        )
    for package, extra in (_PACKAGES[engine] for engine in (about.engine, about.sounds) if engine):
        if find_spec(package) is None:
            raise PipelineFailed(f"This voice needs an extra: {install_command(extra)}")
    for name in about.files.values():
        inside(bundle, name)
    return Voice(bundle, about)


class Voice:
    """A `Runner`. An engine says one thing at a time."""

    takes, gives = "text", "audio"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, about: Description) -> None:
        self.model = bundle.reference
        self._folder, self._about = bundle.path, about
        self._lock = threading.Lock()
        self._engine: Any = None

    def run(self, given: Iterator[Item], told: Told) -> Iterator[Item]:
        spoken = False
        for sentence in sentences(given):
            with self._lock:
                if self._engine is None:
                    self._engine = plugins.load("pipeline.voices", self._about.engine).load(self._folder, self._about)
                rate, samples = self._engine.say(sentence)
            spoken = True
            yield Sound(Format(rate), samples)
        if not spoken:
            raise InvalidRequest("There is nothing to say: the text that came is empty.")

    def close(self) -> None:
        self._engine = None


def sentences(given: Iterator[Item]) -> Iterator[str]:
    """Sentences as soon as they are whole, from text in any pieces."""
    rest = ""
    for piece in given:
        rest += piece if isinstance(piece, str) else ""
        while (cut := _cut(rest)) is not None:
            sentence, rest = rest[:cut].strip(), rest[cut:]
            if _speakable(sentence):
                yield sentence
    if _speakable(rest):
        yield rest.strip()


def _cut(text: str) -> int | None:
    if (end := _END.search(text)) is not None:
        return end.end()
    if len(text) <= LONGEST:
        return None
    space = text.rfind(" ", 1, LONGEST)
    return space if space > 0 else LONGEST


def _speakable(text: str) -> bool:
    return any(letter.isalnum() for letter in text)
