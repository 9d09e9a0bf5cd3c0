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
from svc.pipeline.definition import Kind

SUFFIXES: Final[dict[Kind, tuple[str, ...]]] = {
    "audio": (".wav", ".wave"),
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm"),
}
"""Files of a folder that a pipeline takes; one that takes text gets every file."""
MAX_NAME: Final = 100
"""Characters of a name; a file system takes 255 bytes with the ending."""
_WILD: Final = re.compile(r"[*?\[]")
_SURELY_A_GLOB: Final = re.compile(r"\S*\*\.[A-Za-z]\w*")
"""`talks/*.wav` is no text, so it has to match something."""


class Given(msgspec.Struct, frozen=True):
    """One input; `listed` says that a folder holds it, so it may be passed over."""

    text: str
    listed: bool = False


class Inputs(msgspec.Struct, frozen=True):
    """All inputs of a run; `are_many` even if a folder or a glob holds one file only."""

    given: tuple[Given, ...]
    are_many: bool

    def of_kind(self, kind: Kind) -> list[str]:
        """Return the inputs, without the files of folders that are of another kind. Raises UsageError for none."""
        endings = SUFFIXES.get(kind, ("",))
        found = [one.text for one in self.given if not one.listed or one.text.lower().endswith(endings)]
        if not found:
            raise UsageError(f"There are no {kind} files ({', '.join(endings)}) in that folder.")
        return found


def expand(texts: Iterable[str]) -> Inputs:
    """Folders become their files and globs what they match, sorted. Raises UsageError when that is nothing."""
    found: list[Given] = []
    grouped = False
    for text in texts:
        listed, files = _files_of(text)
        grouped = grouped or files is not None
        found += [Given(text)] if files is None else [Given(file, listed) for file in files]
    return Inputs(tuple(found), grouped or len(found) > 1)


def _files_of(text: str) -> tuple[bool, list[str] | None]:
    """Whether it is a folder, and the files that it stands for; None for a text or a file."""
    if not 0 < len(text) < 4096 or "\0" in text or "\n" in text:
        return False, None
    try:
        if os.path.isdir(text):
            return True, _in_folder(text)
        if not _WILD.search(text) or os.path.exists(text):
            return False, None
        matched = sorted(name for name in glob.glob(text, recursive=True) if os.path.isfile(name))
    except (OSError, re.error, RecursionError):
        return False, None
    if not matched and _SURELY_A_GLOB.fullmatch(text):
        raise UsageError(f"No file matches {text!r}.")
    return False, matched or None


def _in_folder(folder: str) -> list[str]:
    files = sorted(entry.path for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise UsageError(f"There is no file in the folder {folder}.")
    return files


def names_of(inputs: Sequence[str], keep: Path) -> list[str]:
    """Return a name below `keep` for each input: a file's own, without its ending, and a text's number.

    No two are the same, and none leads to a file that is an input itself. The names depend on the inputs alone.
    """
    paths = [_file(text) for text in inputs]
    sources = {os.path.realpath(path) for path in paths if path is not None}
    wanted = [path.stem[:MAX_NAME] if path is not None else f"{at:05}" for at, path in enumerate(paths, 1)]
    reserved = {name.casefold() for name in wanted}
    used: set[str] = set()
    found: list[str] = []
    for name in wanted:
        others = (other for count in itertools.count(2) if (other := f"{name}-{count}").casefold() not in reserved)
        chosen = next(
            one
            for one in itertools.chain((name,), others)
            if not used & _places(one) and not _is_source(keep, one, sources)
        )
        used |= _places(chosen)
        found.append(chosen)
    return found


def _places(name: str) -> set[str]:
    """The folder and the file of a name, as a file system without upper and lower case sees them."""
    return {name.casefold(), f"{name}.wav".casefold()}


def _is_source(keep: Path, name: str, sources: set[str]) -> bool:
    return any(os.path.realpath(keep / f"{name}{ending}") in sources for ending in ("", ".wav"))


def _file(text: str) -> Path | None:
    if not 0 < len(text) < 4096 or "\0" in text or "\n" in text:
        return None
    try:
        return path if (path := Path(text)).is_file() else None
    except OSError:
        return None
