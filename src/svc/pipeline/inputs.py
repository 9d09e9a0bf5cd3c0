"""The inputs of a batch: folders and globs become files, and each input gets a name for what is kept of it."""

from __future__ import annotations

import glob
import itertools
import os
import re
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
"""Files of a folder that a pipeline takes; one that takes text gets every file."""
MAX_OUTPUT_NAME_CHARS: Final = 100
"""Characters of a name; a file system takes 255 bytes with the ending."""
_WILDCARD: Final = re.compile(r"[*?\[]")
_UNAMBIGUOUS_GLOB: Final = re.compile(r"\S*\*\.[A-Za-z]\w*")
"""`talks/*.wav` is no text, so it has to match something."""


class RunInput(msgspec.Struct, frozen=True):
    """One input; `listed` says that a folder holds it, so it may be passed over."""

    text: str
    from_folder: bool = False


class RunInputs(msgspec.Struct, frozen=True):
    """All inputs of a run; `are_many` even if a folder or a glob holds one file only."""

    items: tuple[RunInput, ...]
    are_many: bool

    def filter_by_kind(self, kind: DataKind) -> list[str]:
        """Return the inputs, without the files of folders that are of another kind. Raises UsageError for none."""
        suffixes = INPUT_SUFFIXES.get(kind, ("",))
        matching = [one.text for one in self.items if not one.from_folder or one.text.lower().endswith(suffixes)]
        if not matching:
            raise UsageError(f"There are no {kind} files ({', '.join(suffixes)}) in that folder.")
        return matching


def expand_inputs(texts: Iterable[str]) -> RunInputs:
    """Folders become their files and globs what they match, sorted. Raises UsageError when that is nothing."""
    items: list[RunInput] = []
    is_group = False
    for text in texts:
        from_folder, files = _match_files(text)
        is_group = is_group or files is not None
        items += [RunInput(text)] if files is None else [RunInput(file, from_folder) for file in files]
    return RunInputs(tuple(items), is_group or len(items) > 1)


def _match_files(text: str) -> tuple[bool, list[str] | None]:
    """Whether it is a folder, and the files that it stands for; None for a text or a file."""
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
        raise UsageError(f"There is no file in the folder {folder}.")
    return files


def output_names(inputs: Sequence[str], keep_folder: Path) -> list[str]:
    """Return a name below `keep` for each input: a file's own, without its ending, and a text's number.

    No two are the same, and none leads to a file that is an input itself. The names depend on the inputs alone.
    """
    paths = [_existing_file(text) for text in inputs]
    sources = {os.path.realpath(path) for path in paths if path is not None}
    preferred_names = [
        path.stem[:MAX_OUTPUT_NAME_CHARS] if path is not None else f"{at:05}" for at, path in enumerate(paths, 1)
    ]
    reserved = {name.casefold() for name in preferred_names}
    used: set[str] = set()
    names: list[str] = []
    for name in preferred_names:
        alternatives = (
            other for count in itertools.count(2) if (other := f"{name}-{count}").casefold() not in reserved
        )
        chosen = next(
            one
            for one in itertools.chain((name,), alternatives)
            if not used & _output_paths(one) and not _overwrites_input(keep_folder, one, sources)
        )
        used |= _output_paths(chosen)
        names.append(chosen)
    return names


def _output_paths(name: str) -> set[str]:
    """The folder and the file of a name, as a file system without upper and lower case sees them."""
    return {name.casefold(), f"{name}.wav".casefold()}


def _overwrites_input(keep_folder: Path, name: str, sources: set[str]) -> bool:
    return any(os.path.realpath(keep_folder / f"{name}{ending}") in sources for ending in ("", ".wav"))


def _existing_file(text: str) -> Path | None:
    if not 0 < len(text) < 4096 or "\0" in text or "\n" in text:
        return None
    try:
        return path if (path := Path(text)).is_file() else None
    except OSError:
        return None
