"""Validate the member names of an archive, alone and together, before anything is extracted. Pure functions."""

from __future__ import annotations

import re
import unicodedata

from svc.errors import InvalidBundle

MAX_MEMBER_PATH_BYTES = 1024
MAX_PATH_COMPONENT_BYTES = 255
_FORBIDDEN_CATEGORIES = ("Cc", "Cf", "Zl", "Zp")
"""Controls (newlines, escape sequences), format characters (bidirectional overrides), line and paragraph separators."""
_DRIVE_LETTER = re.compile(r"[A-Za-z]:")


def normalize_member_name(name: str) -> str:
    """Return the name as a relative path with `/`, empty for the archive's root. Raises InvalidBundle."""
    if "\x00" in name:
        raise _member_error(name, "contains a NUL")
    if any(unicodedata.category(char) in _FORBIDDEN_CATEGORIES for char in name):
        raise _member_error(name, "contains an invisible or bidirectional formatting character")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _member_error(name, "is not valid Unicode") from None
    if name.startswith("/") or "\\" in name:
        raise _member_error(name, "is absolute or has a backslash")
    if _DRIVE_LETTER.match(name):
        raise _member_error(name, "has a drive letter")
    parts = [part for part in name.rstrip("/").split("/") if part != "."]
    if ".." in parts:
        raise _member_error(name, "leads out of the bundle")
    if any(not part for part in parts) and parts != [""]:
        raise _member_error(name, "has an empty part")
    path = "/".join(parts)
    if len(path.encode()) > MAX_MEMBER_PATH_BYTES or any(
        len(part.encode()) > MAX_PATH_COMPONENT_BYTES for part in parts
    ):
        raise _member_error(name, "is too long")
    return path


class MemberNames:
    """All names of one archive. Rejects a name that another file system would treat as equal to an earlier one."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: set[str] = set()
        self._spelling_by_folded_path: dict[str, str] = {}

    def add(self, path: str, *, is_folder: bool) -> None:
        """Add a name. Raises InvalidBundle for duplicates, also after case folding or Unicode normalization."""
        parts = path.split("/")
        parents = ["/".join(parts[:length]) for length in range(1, len(parts) + (1 if is_folder else 0))]
        for parent in parents:
            self._check_spelling(parent)
            if _fold_case(parent) in self._files:
                raise _member_error(path, "is both a file and a folder")
            self._folders.add(_fold_case(parent))
        if is_folder:
            return
        if _fold_case(path) in self._files:
            other = self._files[_fold_case(path)]
            raise _member_error(path, "is there twice" if other == path else f"differs from {other!r} only in spelling")
        if _fold_case(path) in self._folders:
            raise _member_error(path, "is both a file and a folder")
        self._check_spelling(path)
        self._files[_fold_case(path)] = path

    def _check_spelling(self, path: str) -> None:
        original = self._spelling_by_folded_path.setdefault(_fold_case(path), path)
        if original != path:
            raise _member_error(path, f"differs from {original!r} only in spelling")


def _fold_case(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _member_error(name: str, reason: str) -> InvalidBundle:
    return InvalidBundle(f"The bundle is rejected: its member {name[:80]!r} {reason}.")
