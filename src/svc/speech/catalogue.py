"""Which model a session may have: installed ones by name or reference, and folders that the operator allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from svc.bundles.platform import fallbacks
from svc.bundles.reference import newest
from svc.distribution import install_command
from svc.errors import InvalidRequest, ModelNotFound, SpeechFailed
from svc.settings import Settings
from svc.speech.model import DESCRIPTION, Model, NoSpeechModel, recognise
from svc.wire.speech import Config

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Shelf(NamedTuple):
    """What the registry's folder has, as bundles."""

    unpack: Callable[[str], Path | None]
    """The folder of a bundle, unpacked if need be, by its reference."""
    names: Callable[[], Iterable[str]]
    """Those of the models that are for speech."""


class Catalogue:
    """Looks at the disk each time, so that a model that was just added is there at once."""

    def __init__(self, settings: Settings, shelf: Shelf) -> None:
        self._shelf = shelf
        self._default = settings.speech.default_model
        self._models = settings.home / "models"
        self._registry = settings.registry_root
        self._allowed = (
            self._models,
            self._registry,
            *(Path(each).expanduser() for each in settings.speech.model_dirs),
        )

    def choose(self, config: Config) -> tuple[Model, str | None]:
        """The model and the language for it.

        Raises ModelNotFound, InvalidRequest for a folder that is not allowed or a language that the model lacks, and
        SpeechFailed when the folder cannot be read or speech is not installed, NoSpeechModel when it holds no model.
        """
        if not installed():
            raise SpeechFailed(f"Speech is not installed here: {install_command('speech')}.")
        try:
            folder = self._permitted(config.model_dir) if config.model_dir else self._installed(config.model)
            model = self._with_detector(recognise(folder))
        except OSError as error:
            raise SpeechFailed(f"The model's files cannot be read: {error.strerror}.") from error
        return model, _language(model, config.language)

    def _permitted(self, wanted: str) -> Path:
        """A folder below one of the allowed ones, whatever links there are."""
        refusal = InvalidRequest(
            "'model_dir' is not a folder that the operator allowed (speech.model_dirs).", param="model_dir"
        )
        try:
            path = Path(wanted).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise refusal from None
        if not path.is_dir() or not any(_below(path, root) for root in self._allowed):
            raise refusal
        return path

    def _installed(self, name: str | None) -> Path:
        wanted = name or self._default
        identifier, _, version = wanted.partition("@")
        if not _LABEL.fullmatch(identifier) or (version and not _LABEL.fullmatch(version)):
            raise ModelNotFound(self._missing(wanted), param="model")
        if not version and (self._models / identifier).is_dir():
            return self._models / identifier
        found = self._shelf.unpack(wanted) or self._bare(identifier, version)
        if found is None:
            raise ModelNotFound(self._missing(wanted), param="model")
        return found

    def _bare(self, identifier: str, version: str) -> Path | None:
        """Content that was put into the registry's layout without a bundle."""
        names = [path.name for path in _folders(self._registry / identifier) if _content(path)]
        if version and version != "latest":
            names = [version] if version in names else [each for each in names if each.startswith(f"{version}.")]
        chosen = newest(names)
        return _content(self._registry / identifier / chosen) if chosen else None

    def lacking(self, config: Config) -> str | None:
        """The reference to ask a registry for: of what is not here, or of the newest where a version is left open."""
        wanted = config.model or self._default
        if config.model_dir or not installed():
            return None
        try:
            here = self._installed(wanted)
        except ModelNotFound:
            return wanted
        except OSError:
            return None  # `choose` says it
        identifier, at, version = wanted.partition("@")
        exact = not at or self._registry / identifier / version in here.parents
        return None if exact else wanted

    def _missing(self, name: str) -> str:
        known = ", ".join(self.names()) or "none"
        return f"There is no speech model {name[:64]!r} here; installed: {known}. See: svc models ls"

    def names(self) -> list[str]:
        """The models that are installed, as `model` may name them; none without the extra that runs them."""
        if not installed():
            return []
        found = {path.name for path in _folders(self._models)} | set(self._shelf.names())
        for path in _folders(self._registry):
            contents = [content for version in _folders(path) if (content := _content(version))]
            found |= {path.name for content in contents if (content / DESCRIPTION).is_file()}
        return sorted(found)

    def _with_detector(self, model: Model) -> Model:
        """A folder without a voice activity detector borrows the default model's."""
        if "vad" in model.files:
            return model
        try:
            vad = recognise(self._installed(self._default)).files["vad"]
        except (ModelNotFound, NoSpeechModel, KeyError):
            raise SpeechFailed(
                f"The model {model.name!r} has no silero_vad.onnx, and there is no default model that has one: "
                f"svc models add {self._default}"
            ) from None
        return Model(
            model.name, model.engine, model.family, {**model.files, "vad": vad}, model.languages, model.options
        )


def installed() -> bool:
    """Whether the speech extra is here."""
    return find_spec("sherpa_onnx") is not None and find_spec("numpy") is not None


def _language(model: Model, wanted: str | None) -> str | None:
    """The language as the model names it: `en-GB` is `en` if that is what it has. None is the model's choice."""
    if not wanted or wanted.lower() == "auto":
        return model.languages[0] if len(model.languages) == 1 else None
    if not model.languages:
        return wanted.lower()
    known = {language.lower(): language for language in model.languages}
    lower = wanted.lower().replace("_", "-")
    found = known.get(lower) or known.get(lower.partition("-")[0])
    if found is None:
        names = ", ".join(model.languages)
        raise InvalidRequest(
            f"The model {model.name!r} has no language {wanted[:32]!r}; it has: {names}.", param="language"
        )
    return found


def _below(path: Path, root: Path) -> bool:
    return path.is_relative_to(Path(os.path.realpath(root)))


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def _content(version: Path) -> Path | None:
    """The extracted bundle for this platform, else for any."""
    for platform in fallbacks():
        if (version / platform / "content").is_dir():
            return version / platform / "content"
    return None
