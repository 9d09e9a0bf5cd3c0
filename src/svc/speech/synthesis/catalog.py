"""The voices that are installed on this machine and that its extras can speak."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import msgspec

from svc.bundles.metadata import METADATA_FILE, VOICE_FILE_NAME, parse_metadata
from svc.errors import InvalidBundle, ModelNotFound, PipelineFailed
from svc.speech.synthesis.voice import VoiceDescription, VoiceEngine, load_engine, read_description
from svc.stores.bundles.content_index import BundleContentIndex
from svc.stores.bundles.install import find_unpacked

log = logging.getLogger("svc.speech")

AUDIO_PACKAGES = ("numpy", "soundfile", "soxr")
"""Packages of the extra `speech` that all voices need here."""


class InstalledVoice(msgspec.Struct, frozen=True):
    """A voice that can speak. `is_natural`: a neural network makes its sound."""

    name: str
    is_natural: bool
    languages: tuple[str, ...] = ()
    """Language codes. Empty means unknown."""


class VoiceCatalog:
    """Finds voices. `voice_names` and `unpack_bundle` read the registry folder."""

    def __init__(self, voice_names: Callable[[], Iterable[str]], unpack_bundle: Callable[[str], Path | None]) -> None:
        self._voice_names, self._unpack_bundle = voice_names, unpack_bundle
        self._known: dict[str, InstalledVoice | None] = {}
        """The voices of the last listing. None for one that this machine cannot speak."""

    def list_voices(self) -> list[InstalledVoice]:
        """Return the voices, natural ones first. Blocking. A voice that cannot speak is logged once and left out."""
        if any(find_spec(package) is None for package in AUDIO_PACKAGES):
            return []
        names = list(self._voice_names())
        self._known = {name: self._known[name] if name in self._known else self._describe(name) for name in names}
        voices = [voice for voice in self._known.values() if voice is not None]
        return sorted(voices, key=lambda voice: (not voice.is_natural, voice.name))

    def load(self, name: str) -> VoiceEngine:
        """Load a voice, which takes seconds for a large model. Raises ModelNotFound and PipelineFailed."""
        folder = self._unpack_bundle(name)
        if folder is None:
            raise ModelNotFound(f"The voice {name[:64]!r} is not installed. See: svc models ls", param="model")
        return load_engine(folder, read_description(folder, name))

    def _describe(self, name: str) -> InstalledVoice | None:
        folder = self._unpack_bundle(name)
        if folder is None:
            return None
        try:
            description = read_description(folder, name)
            return InstalledVoice(name, description.engine != "espeak", _read_languages(folder, description))
        except PipelineFailed as error:
            log.warning("the voice %s is not offered: %s", name, error.message)
            return None


def _read_languages(folder: Path, description: VoiceDescription) -> tuple[str, ...]:
    """Return the languages in the bundle's metadata, else that of espeak-ng, if it speaks."""
    try:
        metadata = parse_metadata((folder / METADATA_FILE).read_bytes()).metadata or {}
    except (OSError, InvalidBundle):
        metadata = {}
    languages = metadata.get("languages")
    if isinstance(languages, list) and languages:
        return tuple(each[:64] for each in languages[:100] if isinstance(each, str))
    return (description.voice,) if "espeak" in (description.engine, description.sounds) else ()


def open_catalog(registry_root: Path) -> VoiceCatalog:
    """Return the catalog of the voices in a registry folder."""
    return VoiceCatalog(
        functools.partial(BundleContentIndex(registry_root).models_with_file, VOICE_FILE_NAME),
        functools.partial(find_unpacked, registry_root),
    )
