"""A voice on this machine: its description in tts.json, and the engine that speaks.

tts.json   {engine: "espeak", voice: "en-us", rate: 165}      words per minute, with the bundle's own files
           {engine: "sherpa", family: "vits"|"kokoro"|"matcha", files: {role: name}, speaker: 0, speed: 1.0,
            sounds: "espeak", voice: "en-us"}     # for Piper voices: espeak-ng makes the phonemes
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from svc import plugins
from svc.bundles.metadata import VOICE_FILE_NAME
from svc.distribution import install_command
from svc.errors import PipelineFailed
from svc.speech.work import SpeechWorkTimer

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


class VoiceEngine(Protocol):
    """A loaded voice."""

    def say(self, text: str, speed: float = 1.0, variant: str | None = None) -> tuple[int, bytes]:
        """Return the sample rate in Hz, and 16-bit mono samples. Raises PipelineFailed.

        `speed` is a factor. `variant` names one of the voices of the engine. An unknown name selects the default.
        """


class TimedVoice:
    """A voice that adds its work to a timer."""

    def __init__(self, engine: VoiceEngine, timer: SpeechWorkTimer) -> None:
        self._engine, self._timer = engine, timer

    def say(self, text: str, speed: float = 1.0, variant: str | None = None) -> tuple[int, bytes]:
        """Speak with the engine. Raises PipelineFailed."""
        started_at = time.monotonic()
        rate, samples = self._engine.say(text, speed, variant)
        self._timer.add_inference(0.0, time.monotonic() - started_at)
        self._timer.add_audio(len(samples) / (2 * rate))
        return rate, samples


def read_description(folder: Path, reference: str) -> VoiceDescription:
    """Read tts.json. Raises PipelineFailed if it is invalid, or if an extra is not installed."""
    try:
        description = msgspec.json.decode((folder / VOICE_FILE_NAME).read_bytes(), type=VoiceDescription)
    except (OSError, msgspec.DecodeError) as error:
        raise PipelineFailed(f"The bundle {reference} has no valid {VOICE_FILE_NAME}: {error}.") from error
    if description.engine not in _ENGINE_PACKAGES:
        raise PipelineFailed(f"The bundle {reference} needs the unknown voice engine {description.engine[:40]!r}.")
    for package, extra in (_ENGINE_PACKAGES[engine] for engine in (description.engine, description.sounds) if engine):
        if find_spec(package) is None:
            raise PipelineFailed(f"This voice needs an extra. Install it with: {install_command(extra)}")
    return description


def load_engine(folder: Path, description: VoiceDescription) -> VoiceEngine:
    """Load the voice in a folder, which takes seconds for a large model. Raises PipelineFailed."""
    engine: VoiceEngine = plugins.load("speech.voices", description.engine).load(folder, description)
    return engine
