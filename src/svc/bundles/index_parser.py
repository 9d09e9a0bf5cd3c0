"""Parse an index entry by entry, so that an invalid entry affects no other. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from svc.bundles.reference import check_name
from svc.errors import InvalidRequest
from svc.wire.bundle import BundleEntry

MAX_INDEX_NESTING = 64
MAX_NAMED_ENTRIES = 5
"""Maximum number of entries that one message names."""

_INDEX_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_INDEX_TOKEN = re.compile(
    rb'\{(?:[^{}\[\]"]++|%s)*+\}|%s|[\[{]+|[\]}]+|[:,]' % (_INDEX_STRING, _INDEX_STRING), re.DOTALL
)
"""Matches a flat object, or a run of brackets, as one token, which keeps the scan inside the C regex engine."""


class RawIndex(msgspec.Struct):
    """Members of an index, not yet decoded. `errors` maps a key that is not valid JSON to the reason."""

    entries: dict[str, msgspec.Raw]
    errors: dict[str, str]


def split_index(data: bytes) -> RawIndex:
    """Split an index into its members. Raises ValueError if it is not a JSON object."""
    try:
        return RawIndex(msgspec.json.decode(data, type=dict[str, msgspec.Raw]), {})
    except (ValueError, RecursionError):  # finding the invalid entry needs the slower scan
        return _split_tolerantly(data)


def parse_entry(key: str, raw: msgspec.Raw | bytes) -> BundleEntry:
    """Decode the entry of a key. Raises ValueError with the reason."""
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
        raise ValueError("its key contradicts its fields")
    return entry


def check_json(raw: msgspec.Raw | bytes) -> None:
    """Raise ValueError for JSON that a conforming parser may reject (RFC 8259, sections 8.1 and 9)."""
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
    """Return the names of skipped entries on one line."""
    descriptions = [f"{key[:120]!r} ({reason[:200]})" for key, reason in list(skipped.items())[:MAX_NAMED_ENTRIES]]
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
    """Yield each member's key, with quotes, and its value. Raises ValueError."""
    text = data.strip()
    if not text.startswith(b"{"):
        raise ValueError("it is not a JSON object")
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
        raise ValueError("it is not a JSON object")
    if key or start >= 0:
        yield _slice_member(key, text, start, len(text) - 1)


def _slice_member(key: bytes, text: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    if not key or start < 0:
        raise ValueError("it is not a JSON object")
    return key, text[start:end].strip()
