"""Installs model files that are elsewhere on this machine: a folder of links, with a `model_metadata.json`.

$SVC_HOME/models/<name>/model_metadata.json   as in a bundle
$SVC_HOME/models/<name>/<file>                a link to the file, which is not copied
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from svc.bundles.gguf import GgufHeader, check_gguf
from svc.bundles.metadata import METADATA_FILE
from svc.bundles.reference import MAX_BUNDLE_NAME_LENGTH, check_name
from svc.errors import CommandFailed, InvalidBundle, InvalidRequest, UsageError
from svc.file_lock import hold_lock
from svc.stores.local_models import MODEL_TYPE, SPEECH_TYPE, AddedModel, models_folder, read_added_model

MAX_LISTED_SHARDS = 5
"""Missing parts of a split model that an error names."""
_SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_NAME_SUFFIXES = re.compile(r"[-_.]?gguf$", re.IGNORECASE)


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one model. The first one is loaded. A split model has several."""

    source: str
    """Where they come from, such as `hf:OWNER/REPO:FILE`."""
    name: str
    """The suggested name of the model."""
    paths: tuple[Path, ...]
    file_names: tuple[str, ...]
    """The names of the links."""
    description: str = ""
    licence: str = ""
    sha256: str | None = None
    """The verified hash of the first file."""
    version: str = "1"
    is_speech: bool = False
    """Whether it is a speech model, whose files have other formats."""


def suggest_name(text: str) -> str:
    """Return a valid name of a model, such as `qwen3-0.6b` for `Qwen3-0.6B-GGUF`."""
    name = re.sub(r"[^a-z0-9._-]+", "-", _NAME_SUFFIXES.sub("", text).lower()).strip("-._")
    return name[:MAX_BUNDLE_NAME_LENGTH] or "model"


def local_file(text: str) -> ModelFiles:
    """Return the files of a GGUF file, given by its path. Raises UsageError."""
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"{text} is not a file." if path.exists() else f"There is no file {text}.")
    paths: tuple[Path, ...] = (path,)
    if match := _SHARD_NAME.fullmatch(path.name):
        paths = tuple(path.with_name(name) for name in _shard_names(match))
        if missing := missing_shards([each.name for each in paths if each.is_file()]):
            raise UsageError(f"{text} is a part of a split model. {describe_missing(*missing.values())} {path.parent}.")
    return ModelFiles(
        source=f"file:{path}",
        name=suggest_name(match[1] if match else path.stem),
        paths=paths,
        file_names=tuple(each.name for each in paths),
    )


def install_model_files(
    files: ModelFiles,
    home: Path,
    name: str | None,
    *,
    reserved_names: Collection[str] = (),
    check_speech: Callable[[Path], object] = lambda _: None,
) -> tuple[AddedModel, bool]:
    """Check the files, and install them unless they are installed. Returns the model, and whether it is new.

    `check_speech` raises an error unless a folder is a speech model. Raises UsageError for an invalid name, and
    CommandFailed for invalid files and for a name that is in use.
    """
    model_name = _check_model_name(name or files.name)
    if model_name in reserved_names:
        message = f"{model_name} is the name of a recipe, or of a provider's model. Choose another name with --name."
        raise CommandFailed(message)
    header = None if files.is_speech else _check_files(files)
    target = models_folder(home) / model_name
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(target.parent / ".lock"):
        existing = read_added_model(target)
        if existing is not None and existing.source == files.source and _links_to(target, files):
            return existing, False
        if target.exists() and (existing is None or existing.source != files.source):
            origin = f"from {existing.source}" if existing is not None and existing.source else "from another source"
            raise CommandFailed(
                f"{model_name} is already installed {origin}. Remove it with `svc models rm {model_name}`, "
                "or choose another name with --name."
            )
        _place(files, header, model_name, target, check_speech)
    model = read_added_model(target)
    if model is None:
        raise CommandFailed(f"{target} cannot be read.")
    return model, True


def remove_model_files(name: str, home: Path) -> bool:
    """Remove a model that was installed here. Its files stay where they are. Returns False if there is none."""
    folder = models_folder(home) / name
    if Path(name).name != name or name.startswith(".") or not (folder / METADATA_FILE).is_file():
        return False
    with hold_lock(folder.parent / ".lock"):
        removed = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".removed-"))
        folder.rename(removed / name)
        shutil.rmtree(removed)
    return True


def _check_model_name(name: str) -> str:
    try:
        return check_name("The name", name)
    except InvalidRequest as error:
        raise UsageError(error.message) from error


def _check_files(files: ModelFiles) -> GgufHeader:
    """Check that all files are complete GGUF files, and return the header of the first one."""
    try:
        first, *_ = [check_gguf(path, is_part=index > 0) for index, path in enumerate(files.paths)]
    except InvalidBundle as error:
        raise CommandFailed(error.message) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be read: {error.strerror}.") from error
    return first


def _links_to(folder: Path, files: ModelFiles) -> bool:
    links = zip(files.file_names, files.paths, strict=True)
    return all((folder / name).exists() and (folder / name).samefile(path) for name, path in links)


def _place(
    files: ModelFiles, header: GgufHeader | None, name: str, target: Path, check_speech: Callable[[Path], object]
) -> None:
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=".adding-"))
    try:
        folder = staging / name
        folder.mkdir()
        for link_name, path in zip(files.file_names, files.paths, strict=True):
            (folder / link_name).symlink_to(path.absolute())
        text = json.dumps(_build_metadata(files, header, name), indent=2, ensure_ascii=False)
        (folder / METADATA_FILE).write_text(text + "\n", encoding="utf-8")
        if files.is_speech:
            check_speech(folder)
        if target.exists():  # the same source, with other files
            target.rename(staging / "replaced")
        folder.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _build_metadata(files: ModelFiles, header: GgufHeader | None, name: str) -> dict[str, Any]:
    values = header.values if header is not None else {}
    task = "speech-to-text" if header is None else "embedding" if header.is_embedding else "chat"
    licence = files.licence or str(values.get("general.license") or "")
    details = {"task": task, "licence": licence, "source": files.source, "sha256": files.sha256}
    return {
        "model_id": name,
        "version": files.version,
        "description": files.description or str(values.get("general.name") or ""),
        "execution_template": {
            "type": SPEECH_TYPE if files.is_speech else MODEL_TYPE,
            "model_file": files.file_names[0],
        },
        "files": list(files.file_names),
        "metadata": {key: value for key, value in details.items() if value},
    }


def _shard_names(match: re.Match[str]) -> tuple[str, ...]:
    """Return the names of all parts of a split model, from the name of one part."""
    return tuple(f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1))


def missing_shards(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the missing parts of each split model that is not complete. The key is the name of its first part."""
    known_names = set(names)
    missing: dict[str, tuple[str, ...]] = {}
    for match in filter(None, map(_SHARD_NAME.fullmatch, sorted(names))):
        first = f"{match[1]}-{1:05}-of-{match[3]}.gguf"
        if first not in missing and (lacking := tuple(n for n in _shard_names(match) if n not in known_names)):
            missing[first] = lacking
    return missing


def first_shard(name: str) -> str:
    """Return the name of the first part if this is a part of a split model, else the name."""
    match = _SHARD_NAME.fullmatch(name)
    return name if match is None else f"{match[1]}-{1:05}-of-{match[3]}.gguf"


def group_shards(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the files of each model: single files, and the parts of split ones. The key is the first file."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        match = _SHARD_NAME.fullmatch(name)
        if match is None:
            groups[name] = (name,)
        elif int(match[2]) == 1:
            parts = _shard_names(match)
            if set(parts) <= set(names):
                groups[name] = parts
    return groups


def describe_missing(missing: Sequence[str]) -> str:
    """Return the begin of a sentence that names missing parts. The place where they are missing follows it."""
    listed = ", ".join(missing[:MAX_LISTED_SHARDS])
    more = len(missing) - MAX_LISTED_SHARDS
    return f"{listed}{f' and {more} more' if more > 0 else ''} {'is' if len(missing) == 1 else 'are'} missing in"


def describe_size(size: int) -> str:
    """Return a size for people, such as `1.2 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
