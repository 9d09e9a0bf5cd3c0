"""sherpa-onnx's offline text to speech: VITS (Piper's voices among them), Kokoro and Matcha."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import sherpa_onnx

from svc.errors import PipelineFailed

FAMILIES = ("vits", "kokoro", "matcha")


def load(folder: Path, about: Any) -> Sherpa:
    """Raises PipelineFailed for a family that is not known, or files that are no voice."""
    return Sherpa(folder, about)


class Sherpa:
    """One model."""

    def __init__(self, folder: Path, about: Any) -> None:
        if about.family not in FAMILIES:
            raise PipelineFailed(f"The engine sherpa has no voice family {about.family[:40]!r}.")
        files = {role: str(folder / name) for role, name in about.files.items()}
        model = sherpa_onnx.OfflineTtsModelConfig(num_threads=1, **{about.family: _part(about.family, files)})
        config = sherpa_onnx.OfflineTtsConfig(model=model)
        if not config.validate():
            raise PipelineFailed("The files of this voice do not fit its family.")
        self._tts = sherpa_onnx.OfflineTts(config)
        self._speaker, self._speed = about.speaker, about.speed

    def say(self, text: str) -> tuple[int, bytes]:
        """Samples per second, and 16-bit samples, mono."""
        made = self._tts.generate(text, sid=self._speaker, speed=self._speed)
        samples = np.clip(np.asarray(made.samples, np.float32), -1, 1)
        return int(made.sample_rate), (samples * 32767).astype("<i2").tobytes()


def _part(family: str, files: dict[str, str]) -> Any:
    makers = {
        "vits": sherpa_onnx.OfflineTtsVitsModelConfig,
        "kokoro": sherpa_onnx.OfflineTtsKokoroModelConfig,
        "matcha": sherpa_onnx.OfflineTtsMatchaModelConfig,
    }
    try:
        return makers[family](**files)
    except TypeError as error:
        raise PipelineFailed(f"A {family} voice has other files than {', '.join(files)}.") from error
