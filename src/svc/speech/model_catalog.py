"""Finds the model of a session: installed models by name or reference, and folders that the operator allows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import newest_version
from svc.distribution import install_command
from svc.errors import InvalidRequest, ModelNotFound, SpeechFailed, SvcError
from svc.settings import Settings
from svc.speech.model import (
    MODEL_DESCRIPTION_FILE_NAME,
    NotASpeechModel,
    RecognitionModel,
    detect_model,
)
from svc.stores.local_models import read_local_model
from svc.wire.speech import ConfigMessage

_MODEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SpeechBundleSource(NamedTuple):
    """The speech models among the bundles of the registry folder."""

    unpack_bundle: Callable[[str], Path | None]
    """Return the folder of a bundle by its reference. Extracts the bundle if necessary."""
    model_names: Callable[[], Iterable[str]]
    """Return the names of the speech models."""


class SpeechModelCatalog:
    """Finds installed models. Reads the disk on every call, so a new model is found immediately."""

    def __init__(self, settings: Settings, bundle_source: SpeechBundleSource) -> None:
        self._bundle_source = bundle_source
        self._default_model = settings.speech.default_model
        self._models_folder = settings.home / "models"
        self._registry_folder = settings.registry_root
        self._allowed_folders = (
            self._models_folder,
            self._registry_folder,
            *(Path(folder).expanduser() for folder in settings.speech.model_dirs),
        )

    def resolve(self, config: ConfigMessage) -> tuple[RecognitionModel, str | None]:
        """Return the model and its language.

        Raises ModelNotFound. Raises InvalidRequest for a folder that is not allowed or an unsupported language. Raises
        SpeechFailed if the folder cannot be read or speech is not installed. Raises NotASpeechModel if the folder has
        no speech model.
        """
        if not is_speech_installed():
            raise SpeechFailed(f"Speech is not installed. Install it with: {install_command('speech')}.")
        try:
            folder = (
                self._find_allowed_folder(config.model_dir)
                if config.model_dir
                else self._find_installed_folder(config.model)
            )
            model = self._add_vad_file(detect_model(folder))
        except OSError as error:
            raise SpeechFailed(f"The model's files cannot be read: {error.strerror}.") from error
        return model, _resolve_language(model, config.language)

    def _find_allowed_folder(self, requested_path: str) -> Path:
        """Return a folder below an allowed one, after symbolic links are resolved."""
        not_allowed = InvalidRequest(
            "'model_dir' is not in a folder that the operator allows (speech.model_dirs).", param="model_dir"
        )
        try:
            path = Path(requested_path).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise not_allowed from None
        if not path.is_dir() or not any(_is_below(path, root) for root in self._allowed_folders):
            raise not_allowed
        return path

    def _find_installed_folder(self, name: str | None) -> Path:
        reference = name or self._default_model
        identifier, _, version = reference.partition("@")
        if not _MODEL_NAME_PATTERN.fullmatch(identifier) or (version and not _MODEL_NAME_PATTERN.fullmatch(version)):
            raise ModelNotFound(self._not_found_message(reference), param="model")
        if not version and (self._models_folder / identifier).is_dir():
            return self._models_folder / identifier
        folder = self._bundle_source.unpack_bundle(reference) or self._find_unbundled_folder(identifier, version)
        if folder is None:
            raise ModelNotFound(self._not_found_message(reference), param="model")
        return folder

    def _find_unbundled_folder(self, identifier: str, version: str) -> Path | None:
        """Return a folder in the registry's layout that was added without a bundle."""
        versions = [
            path.name for path in _list_folders(self._registry_folder / identifier) if _find_content_folder(path)
        ]
        if version and version != "latest":
            versions = (
                [version] if version in versions else [name for name in versions if name.startswith(f"{version}.")]
            )
        chosen = newest_version(versions)
        return _find_content_folder(self._registry_folder / identifier / chosen) if chosen else None

    def missing_reference(self, config: ConfigMessage) -> str | None:
        """Return the reference to request from a registry, or None.

        That is a model that is not installed, or the newest version if the reference leaves the version open.
        """
        reference = config.model or self._default_model
        if config.model_dir or not is_speech_installed():
            return None
        try:
            folder = self._find_installed_folder(reference)
        except ModelNotFound:
            return reference
        except OSError:
            return None  # `resolve` reports it
        identifier, at, version = reference.partition("@")
        is_exact = not at or self._registry_folder / identifier / version in folder.parents
        return None if is_exact else reference

    def _not_found_message(self, name: str) -> str:
        installed_names = ", ".join(self.model_names()) or "none"
        return f"The speech model {name[:64]!r} is not installed. Installed: {installed_names}. See: svc models ls"

    def model_names(self) -> list[str]:
        """Return the names of the installed models. Empty without the speech extra."""
        if not is_speech_installed():
            return []
        folders = [path for path in _list_folders(self._models_folder) if read_local_model(path) is None]
        model_names = {path.name for path in folders} | set(self._bundle_source.model_names())
        for path in _list_folders(self._registry_folder):
            contents = [content for version in _list_folders(path) if (content := _find_content_folder(version))]
            model_names |= {path.name for content in contents if (content / MODEL_DESCRIPTION_FILE_NAME).is_file()}
        return sorted(model_names)

    def languages_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the languages of installed models. An unreadable model has none."""
        found: dict[str, list[str]] = {}
        for name in names:
            try:
                found[name] = list(detect_model(self._find_installed_folder(name)).languages)
            except (OSError, SvcError):  # a session reports it
                found[name] = []
        return found

    def _add_vad_file(self, model: RecognitionModel) -> RecognitionModel:
        """Add the VAD of the default model to a model without one."""
        if "vad" in model.files:
            return model
        try:
            vad = detect_model(self._find_installed_folder(self._default_model)).files["vad"]
        except (ModelNotFound, NotASpeechModel, KeyError):
            raise SpeechFailed(
                f"The model {model.name!r} has no silero_vad.onnx, and no default model provides one. "
                f"Install it: svc models add {self._default_model}"
            ) from None
        return RecognitionModel(
            model.name, model.engine, model.family, {**model.files, "vad": vad}, model.languages, model.options
        )


def is_speech_installed() -> bool:
    """Return whether the speech extra is installed."""
    return find_spec("sherpa_onnx") is not None and find_spec("numpy") is not None


def _resolve_language(model: RecognitionModel, requested: str | None) -> str | None:
    """Return the model's name for the language: `en-GB` matches `en`. None lets the model choose."""
    if not requested or requested.lower() == "auto":
        return model.languages[0] if len(model.languages) == 1 else None
    if not model.languages:
        return requested.lower()
    supported = {language.lower(): language for language in model.languages}
    lower = requested.lower().replace("_", "-")
    matched = supported.get(lower) or supported.get(lower.partition("-")[0])
    if matched is None:
        names = ", ".join(model.languages)
        raise InvalidRequest(
            f"The model {model.name!r} does not support the language {requested[:32]!r}. Supported: {names}.",
            param="language",
        )
    return matched


def _is_below(path: Path, root: Path) -> bool:
    return path.is_relative_to(Path(os.path.realpath(root)))


def _list_folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def _find_content_folder(version: Path) -> Path | None:
    """Return the extracted bundle for this platform, else for any platform."""
    for platform in compatible_platforms():
        if (version / platform / "content").is_dir():
            return version / platform / "content"
    return None
