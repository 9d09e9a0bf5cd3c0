"""Speech to text, by the engines that live speech uses. One inference at a time, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from svc import plugins
from svc.bundles.metadata import Metadata
from svc.client.bundles import Bundle
from svc.distribution import install_command
from svc.errors import PipelineFailed, SpeechFailed, SvcError
from svc.pipeline.definition import Stage
from svc.pipeline.stages.base import Item, Kinds, Sound, Told
from svc.speech import link
from svc.speech.model import Model, recognise

TURN = 256
"""Windows that are worked through at a time."""


def fits(about: Metadata) -> bool:
    """A speech bundle that is not a voice."""
    task = (about.metadata or {}).get("task")
    return about.type == "Speech" and "tts.json" not in about.files and task != "text-to-speech"


def kinds(about: Metadata) -> Kinds:
    """What is said is written."""
    return "audio", "text"


def make(stage: Stage, bundle: Bundle) -> Recognition:
    """Raises PipelineFailed for a folder that no engine knows, or when the extra is not installed."""
    try:
        model = recognise(bundle.path)
    except SpeechFailed as error:
        raise PipelineFailed(f"The bundle {bundle.reference} cannot be used: {error.message}") from error
    if find_spec("sherpa_onnx") is None or find_spec("numpy") is None:
        raise PipelineFailed(f"Speech recognition needs an extra: {install_command('speech')}")
    if model.engine not in plugins.names("speech.engines"):
        raise PipelineFailed(f"The bundle {bundle.reference} asks for an engine {model.engine!r} that is not known.")
    return Recognition(bundle, model)


class Recognition:
    """A `Runner`."""

    takes, gives = "audio", "text"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, model: Model) -> None:
        self.model = bundle.reference
        self._model = model
        self._lock = threading.Lock()
        self._engine: Any = None

    def run(self, given: Iterator[Item], told: Told) -> Iterator[Item]:
        sounds = [sound for sound in given if isinstance(sound, Sound)]
        with self._lock:
            text = self._hear(sounds)
        yield text.strip()  # silence says nothing; a stage that needs words says so itself

    def _hear(self, sounds: list[Sound]) -> str:
        try:
            if self._engine is None:
                self._engine = plugins.load("speech.engines", self._model.engine).load(self._model)
            said: list[str] = []
            voice = self._voice(sounds, said)
            while not said:
                if not voice.advance(TURN) and voice.due() is None:
                    raise SpeechFailed("The engine came to no end.")
                while voice.due() is not None and not said:
                    voice.work_here()
            return said[0]
        except SvcError:
            raise
        except Exception as error:
            raise SpeechFailed(f"The engine {self._model.engine} failed: {type(error).__name__}: {error}.") from error

    def _voice(self, sounds: list[Sound], said: list[str]) -> Any:
        def emit(message: link.FromWorker) -> None:
            if isinstance(message, link.Done):
                said.append(message.text)

        vad = self._model.files.get("vad")
        detector = plugins.load("speech", "detector").Detector(vad) if vad else Always()
        made = plugins.load("speech", "voice").Voice(
            1, self._engine, detector, emit=emit, format_=sounds[0].format if sounds else None, live=False
        )
        for sound in sounds:
            made.put(sound.data)
        made.put(link.Flush(1))
        return made

    def close(self) -> None:
        self._engine = None


class Always:
    """Takes all for speech, where a bundle has no model of its own that tells."""

    def hear(self, window: object) -> bool:
        return True

    def reset(self) -> None:
        """Nothing is kept."""
