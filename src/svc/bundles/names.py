"""Which names a member of an archive may have, all of them together. Pure; nothing is extracted before this is done."""

from __future__ import annotations

import re
import unicodedata

from svc.errors import InvalidBundle

MAX_PATH = 1024
MAX_PART = 255
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp")
"""Controls (newlines, escape sequences), format characters (bidirectional overrides), separators of lines."""
_DRIVE = re.compile(r"[A-Za-z]:")


def clean(name: str) -> str:
    """The name as a relative path with `/`; empty for the archive's own root. Raises InvalidBundle."""
    if "\x00" in name:
        raise _refusal(name, "holds a NUL")
    if any(unicodedata.category(each) in _INVISIBLE for each in name):
        raise _refusal(name, "holds a character that is not shown, or that changes how others are")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _refusal(name, "is not valid Unicode") from None
    if name.startswith("/") or "\\" in name:
        raise _refusal(name, "is absolute or has a backslash")
    if _DRIVE.match(name):
        raise _refusal(name, "has a drive letter")
    parts = [part for part in name.rstrip("/").split("/") if part != "."]
    if ".." in parts:
        raise _refusal(name, "leads out of the bundle")
    if any(not part for part in parts) and parts != [""]:
        raise _refusal(name, "has an empty part")
    path = "/".join(parts)
    if len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_PART for part in parts):
        raise _refusal(name, "is too long")
    return path


class Names:
    """All names of one archive. `add` refuses what another system could take for a name that is there already."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: set[str] = set()
        self._spelling: dict[str, str] = {}

    def add(self, path: str, *, folder: bool) -> None:
        """Raises InvalidBundle for duplicates, and for names equal but for case or Unicode form."""
        parts = path.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts) + (1 if folder else 0))]
        for parent in above:
            self._spell(parent)
            if _fold(parent) in self._files:
                raise _refusal(path, "is both a file and a folder")
            self._folders.add(_fold(parent))
        if folder:
            return
        if _fold(path) in self._files:
            other = self._files[_fold(path)]
            raise _refusal(path, "is there twice" if other == path else f"differs from {other!r} only in spelling")
        if _fold(path) in self._folders:
            raise _refusal(path, "is both a file and a folder")
        self._spell(path)
        self._files[_fold(path)] = path

    def _spell(self, path: str) -> None:
        known = self._spelling.setdefault(_fold(path), path)
        if known != path:
            raise _refusal(path, f"differs from {known!r} only in spelling")


def _fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _refusal(name: str, why: str) -> InvalidBundle:
    return InvalidBundle(f"The bundle is refused: its member {name[:80]!r} {why}.")
