"""Validates UTF-8 and scans JSON bodies with the C module `_json_scan`, where it is compiled. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from svc.dialects import json_skeleton

_FIRST_STRING_CODE: Final = 0x22
_unpack_first_byte: Final = struct.Struct("B").unpack_from
"""Costs less than a copy or a view of the value."""


class ScanObject(Protocol):
    """Validates a body, reads the names of its fields, and reduces it to what has to be decoded."""

    def __call__(
        self,
        raw: bytes,
        kept_names: tuple[bytes, ...] | None,
        roles: tuple[bytes, ...],
        part_types: tuple[bytes, ...],
        max_string_bytes: int,
        max_nested_bytes: int,
        /,
    ) -> tuple[bytes, set[str], int, int] | None:
        """Return None unless the body is a JSON object (RFC 8259) in UTF-8. Otherwise return

        * the reduced body: the fields in `kept_names`, or all if it is None. Strings of over `max_string_bytes` are
          empty, and so are values of over `max_nested_bytes` in objects and arrays at the third level or below. It is
          `raw` if all fields are kept and no string is emptied
        * the names of the fields. Empty if one is repeated or escaped, or if there are over 256
        * the index of the first byte of the value of `model` in `raw`, and of the byte after it, or 0 for both

        With `kept_names`, it also returns None if the names would be empty, and plain `messages` after the first are
        left out. Such a message has one of `roles`, and its `content` is a string or an array of parts with one of
        `part_types`, whose `text` is a string, null or absent.

        Raises ValueError for more than MAX_BODY_VALUES names and values, and RecursionError for more than 1,024
        levels.
        """


def check_utf8(raw: bytes) -> None:
    """Raise UnicodeDecodeError if the bytes are not UTF-8. msgspec validates only the strings that it returns."""
    if not is_utf8(raw):
        raw.decode()


def _is_utf8(raw: bytes) -> bool:
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
    return True


def _is_string(value: msgspec.Raw) -> bool:
    first: tuple[int] = _unpack_first_byte(value)
    return first[0] == _FIRST_STRING_CODE


class _Functions(NamedTuple):
    is_utf8: Callable[[bytes], bool]
    is_string: Callable[[msgspec.Raw], bool]
    find_closing_quote: Callable[[bytes, int], int]
    scan_object: ScanObject | None


def _load() -> _Functions:
    """Return the functions of the C module, or those that replace them."""
    try:
        from svc.dialects import _json_scan as module  # noqa: PLC0415 absent if the gateway runs from source
    except ImportError:
        return _Functions(_is_utf8, _is_string, json_skeleton.find_closing_quote, None)
    return _Functions(module.is_utf8, module.is_string, module.find_closing_quote, module.scan_object)


_FUNCTIONS: Final = _load()
is_utf8: Final = _FUNCTIONS.is_utf8
"""Returns whether bytes are UTF-8."""
is_string: Final = _FUNCTIONS.is_string
"""Returns whether a JSON value is a string."""
find_closing_quote: Final = _FUNCTIONS.find_closing_quote
"""Returns the index of the closing quote of a string that begins at an index of valid JSON, or -1 if it has none."""
scan_object: Final = _FUNCTIONS.scan_object
"""None where the C module is not compiled."""
