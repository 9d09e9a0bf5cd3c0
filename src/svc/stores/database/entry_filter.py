"""The filter and the limits of a search in the ledger. No I/O.

Most lines of a batch do not match a rare filter. `select_lines` finds the candidates as text, so that only they are
decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

SEARCH_SECONDS: Final = 0.2
"""How long one search reads batches. A longer search continues with the next page."""


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that a search returns. None matches every entry."""

    key_id: str | None = None
    model: str | None = None
    """The model of the response, or the one that the client requested."""
    provider: str | None = None
    status: str | None = None
    code: str | None = None
    http_status: int | None = None
    endpoint: str | None = None
    tag: tuple[str, str] | None = None
    client_request_id: str | None = None

    def needles(self) -> list[bytes]:
        """Return texts that the line of each matching entry contains, the rarest first.

        A value whose JSON has several forms gives no text.
        """
        needles = [
            *_field_needle('"client_request_id":', self.client_request_id),
            *_field_needle('"code":', self.code),
            *([] if self.http_status is None else [b'"http_status":%d,' % self.http_status]),
            *_field_needle('"status":', self.status),
            *_field_needle(":", self.model),
            *_field_needle('"provider":', self.provider),
            *_field_needle('"endpoint":', self.endpoint),
        ]
        if self.tag is not None and _has_one_form(self.tag[0]):
            needles += _field_needle(f'"{self.tag[0]}":', self.tag[1])
        return needles


class EntryPosition(NamedTuple):
    """A place in the order of entries, by which the next page starts: time (ms since 1970), then request id."""

    time_ms: int
    request_id: str


class SearchLimits(msgspec.Struct, frozen=True):
    """When a search ends before it has a full page."""

    limit: int = 50
    """The entries of a page."""
    seconds: float = SEARCH_SECONDS
    is_cancelled: Callable[[], bool] = bool
    """Whether nobody waits for the result."""


def select_lines(lines: bytes, needles: list[bytes]) -> bytes:
    """Return the lines that contain all needles. Each line ends with a newline."""
    if not needles:
        return lines
    first, *others = needles
    selected: list[bytes] = []
    position = lines.find(first)
    while position >= 0:
        start, end = lines.rfind(b"\n", 0, position) + 1, lines.find(b"\n", position) + 1
        line = lines[start:end]
        if all(needle in line for needle in others):
            selected.append(line)
        position = lines.find(first, end)
    return b"".join(selected)


def _field_needle(prefix: str, value: str | None) -> list[bytes]:
    return [f'{prefix}"{value}"'.encode()] if value is not None and _has_one_form(value) else []


def _has_one_form(value: str) -> bool:
    """Return whether JSON has one usual form of a text: without escapes."""
    return value.isascii() and value.isprintable() and '"' not in value and "\\" not in value
