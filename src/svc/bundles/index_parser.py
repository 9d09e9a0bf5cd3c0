"""Reads an index entry by entry, so that an entry that cannot be read takes no other with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from svc.bundles.reference import check_name
from svc.errors import InvalidRequest
from svc.wire.bundle import BundleEntry

MAX_INDEX_NESTING = 64
MAX_NAMED_ENTRIES = 5
"""Entries that one message names."""

_INDEX_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_INDEX_TOKEN = re.compile(
    rb'\{(?:[^{}\[\]"]++|%s)*+\}|%s|[\[{]+|[\]}]+|[:,]' % (_INDEX_STRING, _INDEX_STRING), re.DOTALL
)
"""An object without others inside is one token, and so is a run of brackets: both are found at the speed of C."""


class RawIndex(msgspec.Struct):
    """The members of an index, not looked into; `damaged` has a reason for each key that is no JSON."""

    entries: dict[str, msgspec.Raw]
    errors: dict[str, str]


def split_index(data: bytes) -> RawIndex:
    """Raises ValueError when this is no JSON object."""
    try:
        return RawIndex(msgspec.json.decode(data, type=dict[str, msgspec.Raw]), {})
    except (ValueError, RecursionError):  # which entry it is takes longer to find out
        return _split_tolerantly(data)


def parse_entry(key: str, raw: msgspec.Raw | bytes) -> BundleEntry:
    """The entry of that key. Raises ValueError that says what is wrong with it."""
    try:
        entry = msgspec.json.decode(raw, type=BundleEntry)
        check_name("model_id", entry.model_id)
        check_name("version", entry.version)
        check_name("platform", entry.target)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    if entry.key != key:
        raise ValueError("its key does not say what its fields say")
    return entry


def check_json(raw: msgspec.Raw | bytes) -> None:
    """Raises ValueError for what no reader of JSON can be expected to read: RFC 8259, sections 8.1 and 9."""
    depth = 0
    for match in _INDEX_TOKEN.finditer(bytes(raw)):
        token = match[0]
        if token[0] in b"[{":
            depth += len(token) if token[-1] != ord("}") else 0
        elif token[0] in b"]}":
            depth -= len(token)
        if depth > MAX_INDEX_NESTING:
            raise ValueError("it is nested too deeply")
    msgspec.json.decode(raw)


def describe_skipped(skipped: Mapping[str, str]) -> str:
    """Names the entries that were skipped, on one line."""
    descriptions = [f"{key[:120]!r} ({why[:200]})" for key, why in list(skipped.items())[:MAX_NAMED_ENTRIES]]
    more = f" and {len(skipped) - MAX_NAMED_ENTRIES} more" if len(skipped) > MAX_NAMED_ENTRIES else ""
    return ", ".join(descriptions) + more


def _split_tolerantly(data: bytes) -> RawIndex:
    index = RawIndex({}, {})
    for token, value in _iter_members(data):
        try:
            key = msgspec.json.decode(token, type=str)
        except ValueError as error:
            index.errors[token[1:-1].decode("utf-8", "backslashreplace")] = f"its key is damaged: {error}"
            continue
        try:
            check_json(value)
            index.entries[key] = msgspec.Raw(value)
        except ValueError as error:
            index.errors[key] = str(error)
    return index


def _iter_members(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The key, quotes and all, and the value of each member. Raises ValueError."""
    text = data.strip()
    if not text.startswith(b"{"):
        raise ValueError("it is no JSON object")
    depth, key, start = 1, b"", -1
    for match in _INDEX_TOKEN.finditer(text, 1):
        token = match[0]
        if token[0] in b"[{":
            depth += len(token) if token[-1] != ord("}") else 0
        elif token[0] in b"]}":
            depth -= len(token)
            if depth <= 0:
                break
        elif depth == 1:
            if token == b",":
                yield _slice_member(key, text, start, match.start())
                key, start = b"", -1
            elif token == b":" and start < 0:
                start = match.end()
            elif not key:
                key = token
    if depth or match.end() != len(text):
        raise ValueError("it is no JSON object")
    if key or start >= 0:
        yield _slice_member(key, text, start, len(text) - 1)


def _slice_member(key: bytes, text: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    if not key or start < 0:
        raise ValueError("it is no JSON object")
    return key, text[start:end].strip()
