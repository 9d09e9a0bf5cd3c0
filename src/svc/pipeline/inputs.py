"""The inputs of a batch: expands folders and globs into files, and names the outputs of each input."""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from svc.errors import UsageError
from svc.pipeline.definition import DataKind

INPUT_SUFFIXES: Final[dict[DataKind, tuple[str, ...]]] = {
    "audio": (".wav", ".wave"),
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm"),
}
"""File suffixes of a folder that match the kind. A pipeline that takes text gets every file."""
MAX_OUTPUT_NAME_CHARS: Final = 100
"""Characters in an output name. A file system allows 255 bytes including the suffix."""
_WILDCARD: Final = re.compile(r"[*?\[]")
_UNAMBIGUOUS_GLOB: Final = re.compile(r"\S*\*\.[A-Za-z]\w*")
"""A glob such as `talks/*.wav` cannot be text, so it must match something."""


class RunInput(msgspec.Struct, frozen=True):
    """One input. Inputs from a folder are skipped if they are of another kind."""

    text: str
    from_folder: bool = False


class RunInputs(msgspec.Struct, frozen=True):
    """All inputs of a run. `are_many` is true for a folder or a glob even with a single file."""

    items: tuple[RunInput, ...]
    are_many: bool

    def filter_by_kind(self, kind: DataKind) -> list[str]:
        """Return the inputs without files of another kind from folders. Raises UsageError if none are left."""
        suffixes = INPUT_SUFFIXES.get(kind, ("",))
        matching = [item.text for item in self.items if not item.from_folder or item.text.lower().endswith(suffixes)]
        if not matching:
            raise UsageError(f"The folder has no {kind} files ({', '.join(suffixes)}).")
        return matching


def expand_inputs(texts: Iterable[str]) -> RunInputs:
    """Expand folders and globs into sorted files. Raises UsageError for a folder or glob without files."""
    items: list[RunInput] = []
    is_group = False
    for text in texts:
        from_folder, files = _match_files(text)
        is_group = is_group or files is not None
        items += [RunInput(text)] if files is None else [RunInput(file, from_folder) for file in files]
    return RunInputs(tuple(items), is_group or len(items) > 1)


def _match_files(text: str) -> tuple[bool, list[str] | None]:
    """Return whether the text is a folder, and its files. The files are None for a text or a single file."""
    if not 0 < len(text) < 4096 or "\0" in text or "\n" in text:
        return False, None
    try:
        if os.path.isdir(text):
            return True, _list_folder(text)
        if not _WILDCARD.search(text) or os.path.exists(text):
            return False, None
        matched = sorted(name for name in glob.glob(text, recursive=True) if os.path.isfile(name))
    except (OSError, re.error, RecursionError):
        return False, None
    if not matched and _UNAMBIGUOUS_GLOB.fullmatch(text):
        raise UsageError(f"No file matches {text!r}.")
    return False, matched or None


def _list_folder(folder: str) -> list[str]:
    files = sorted(entry.path for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise UsageError(f"The folder {folder} has no files.")
    return files


def output_names(inputs: Sequence[str], keep_folder: Path) -> list[str]:
    """Return a name below `keep_folder` for each input: a file's stem, or the number of a text.

    Names are unique, do not overwrite an input, and depend only on the inputs.
    """
    paths = [_existing_file(text) for text in inputs]
    sources = {os.path.realpath(path) for path in paths if path is not None}
    preferred_names = [
        path.stem[:MAX_OUTPUT_NAME_CHARS] if path is not None else f"{number:05}"
        for number, path in enumerate(paths, 1)
    ]
    reserved = {name.casefold() for name in preferred_names}
    used: set[str] = set()
    names: list[str] = []
    for name in preferred_names:
        alternatives = (
            other for count in itertools.count(2) if (other := f"{name}-{count}").casefold() not in reserved
        )
        chosen = next(
            candidate
            for candidate in itertools.chain((name,), alternatives)
            if not used & _output_paths(candidate) and not _overwrites_input(keep_folder, candidate, sources)
        )
        used |= _output_paths(chosen)
        names.append(chosen)
    return names


def _output_paths(name: str) -> set[str]:
    """Return the folder and the file of a name, as a case-insensitive file system compares them."""
    return {name.casefold(), f"{name}.wav".casefold()}


def _overwrites_input(keep_folder: Path, name: str, sources: set[str]) -> bool:
    return any(os.path.realpath(keep_folder / f"{name}{ending}") in sources for ending in ("", ".wav"))


def check_inputs_not_overwritten(outputs: Iterable[Path], inputs: Iterable[str]) -> None:
    """Raise UsageError if writing an output would overwrite an input, also through another name of the file."""
    written = {identity: path for path in outputs if (identity := _file_identity(path)) is not None}
    if not written:
        return
    for text in inputs:
        path = _existing_file(text)
        overwritten = written.get(identity) if path and (identity := _file_identity(path)) is not None else None
        if overwritten is not None:
            raise UsageError(f"{overwritten} is an input of this run, which the output would overwrite.")


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a regular file, else None."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _existing_file(text: str) -> Path | None:
    if not 0 < len(text) < 4096 or "\0" in text or "\n" in text:
        return None
    try:
        return path if (path := Path(text)).is_file() else None
    except OSError:
        return None
