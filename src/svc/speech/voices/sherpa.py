"""The sherpa-onnx engine for offline text to speech: VITS (including Piper voices), Kokoro and Matcha.

Voices with a lexicon need no phonemes. For others `sounds` in tts.json selects espeak-ng, which makes the phonemes.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import sherpa_onnx

from svc import plugins
from svc.errors import PipelineFailed

VOICE_FAMILIES = ("vits", "kokoro", "matcha")
REQUIRED_MODEL_PROPERTIES = ("sample_rate", "n_speakers", "language")


def load(folder: Path, about: Any) -> SherpaVoice:
    """Load a voice. Raises PipelineFailed for an unknown family or invalid files."""
    return SherpaVoice(folder, about)


class SherpaVoice:
    """A loaded voice."""

    def __init__(self, folder: Path, about: Any) -> None:
        if about.family not in VOICE_FAMILIES:
            raise PipelineFailed(f"The engine sherpa does not support the voice family {about.family[:40]!r}.")
        files = {role: str(folder / name) for role, name in about.files.items()}
        model = sherpa_onnx.OfflineTtsModelConfig(
            num_threads=1, **{about.family: _create_family_config(about.family, files)}
        )
        config = sherpa_onnx.OfflineTtsConfig(model=model)
        if not config.validate():
            raise PipelineFailed("The files of this voice do not match its family.")
        if about.family == "vits":
            _check_model_properties(Path(files.get("model", "")))
        try:
            self._tts = sherpa_onnx.OfflineTts(config)
        except RuntimeError as error:
            raise PipelineFailed(f"The model of this voice cannot be loaded: {error}") from error
        self._speaker, self._speed = about.speaker, about.speed
        self._voice = about.voice
        self._to_phonemes = plugins.load("speech.voices", about.sounds).sounds if about.sounds else None
        self._known_symbols = _read_symbols(Path(files.get("tokens", ""))) if about.sounds else frozenset()

    def say(self, text: str, speed: float = 1.0, variant: str | None = None) -> tuple[int, bytes]:
        """Return the sample rate in Hz, and 16-bit mono samples. Raises PipelineFailed if there are none.

        `variant` is the number of another speaker.
        """
        generation_config = sherpa_onnx.GenerationConfig()
        generation_config.sid, generation_config.speed = self._find_speaker(variant), self._speed * speed
        if self._to_phonemes is not None:
            generation_config.phoneme_codepoints = [
                [ord(symbol) for symbol in self._to_phonemes(text, self._voice) if symbol in self._known_symbols]
            ]
        audio = self._tts.generate(text, generation_config)
        if not len(audio.samples):
            raise PipelineFailed("The voice produced no audio for this text.")
        samples = np.clip(np.asarray(audio.samples, np.float32), -1, 1)
        return int(audio.sample_rate), (samples * 32767).astype("<i2").tobytes()

    def _find_speaker(self, variant: str | None) -> int:
        """Return the number of a speaker, or the default for a name that this voice does not have."""
        is_number = variant is not None and variant.isascii() and variant.isdigit() and len(variant) < 6
        return int(variant) if variant and is_number and int(variant) < self._tts.num_speakers else self._speaker


def _check_model_properties(model: Path) -> None:
    """Raise PipelineFailed if properties are missing. Without them the library ends the process."""
    if not model.is_file() or not model.stat().st_size:
        raise PipelineFailed("The model of this voice is missing or empty.")
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        missing = [name for name in REQUIRED_MODEL_PROPERTIES if data.find(bytes([10, len(name)]) + name.encode()) < 0]
    if missing:
        raise PipelineFailed(
            f"The model of this voice lacks the properties {', '.join(missing)}, which sherpa-onnx requires. "
            "The recipe maker piper-model adds them to Piper voices."
        )


def _read_symbols(tokens: Path) -> frozenset[str]:
    """Read the symbols of the voice: one symbol and its number per line. Raises PipelineFailed."""
    try:
        lines = tokens.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFailed("The tokens of this voice cannot be read.") from error
    return frozenset(line[0] for line in lines if line)


def _create_family_config(family: str, files: dict[str, str]) -> Any:
    makers = {
        "vits": sherpa_onnx.OfflineTtsVitsModelConfig,
        "kokoro": sherpa_onnx.OfflineTtsKokoroModelConfig,
        "matcha": sherpa_onnx.OfflineTtsMatchaModelConfig,
    }
    try:
        return makers[family](**files)
    except TypeError as error:
        raise PipelineFailed(f"A {family} voice does not have the files {', '.join(files)}.") from error
