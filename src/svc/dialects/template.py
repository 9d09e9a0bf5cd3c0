"""What stays the same in a run of chunks, so that the next ones need no parsing. On the hottest path.

    data: {"id":"c1",…,"choices":[{"index":0,"delta":{"content":" Hello"},"finish_reason":null}]}
    └─────────────────────── prefix ────────────────────────┘└─text─┘└────────── suffix ─────────┘

A template is learned from a chunk that was parsed and found right. Bytes that equal it but for the text, which has
to be the inside of a JSON string, are such a chunk too: nothing else is let through.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LEARNED: Final = 64
"""Templates learned in one stream: learning costs more than it gives where chunks take turns."""

SHORT: Final = 48
"""Bytes that are looked at one by one: quicker than to set up a search in them."""

_TEXT: Final = rb'[^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+)*+'
_PLAIN: Final = re.compile(rb"[ !#-\[\]-\x7e]*+").fullmatch
_RUN: Final = re.compile(rb"(?:\x00" + _TEXT + rb"\x01)+")
_PADDED_RUN: Final = re.compile(rb"(?:\x00" + _TEXT + rb"\x01[A-Za-z0-9]*\x02)+")
_PADDING: Final = re.compile(rb'("(?:obfuscation|p)":\s?")[A-Za-z0-9]*("\}\n\n)\Z')
_AFTER_PADDING: Final = b'"}\n\n'
_BACKSLASH: Final = 0x5C
_NAMES: Final = (b"content", b"reasoning_content", b"arguments", b"input", b"text", b"thinking", b"partial_json")
_VALUES: Final = {name: re.compile(rb'"' + name + rb'"\s*:\s*"') for name in _NAMES}


class Template:
    """The frame of a chunk: as it comes from the upstream, and as it goes to the client."""

    __slots__ = ("_made", "_run", "_tail", "plain", "prefix", "same", "suffix")

    def __init__(self, came: tuple[bytes, bytes], made: tuple[bytes, bytes]) -> None:
        self.prefix, suffix = came
        self.same = came == made
        """What comes is what goes."""
        self._run = _RUN
        self._tail = b""
        padding = _PADDING.search(suffix) if self.same and suffix.endswith(_AFTER_PADDING) else None
        if padding:  # vendors pad chunks at random, against guesses from their length
            suffix, self._tail = suffix[: padding.end(1)], padding.group(2)
            self._run = _PADDED_RUN
        self.suffix = suffix
        self._made = made
        self.plain = self.same and not self._tail

    def carry(self, block: bytes) -> bytes | None:
        """The block as it goes to the client, when it is a run of such chunks and nothing else."""
        if not block.startswith(self.prefix):
            return None
        stop = len(block) - len(self.suffix)
        if self.plain and block.endswith(self.suffix) and is_plain(block, len(self.prefix), stop):
            return block  # one, as nearly always
        marks = block.replace(self.prefix, b"\x00").replace(self.suffix, b"\x01")
        if self._tail:
            marks = marks.replace(self._tail, b"\x02")
            if 2 in block:
                return None
        if self._run.fullmatch(marks) is None or 0 in block or 1 in block:
            return None
        if not block.isascii() and not _is_utf8(block):
            return None
        return block if self.same else marks.replace(b"\x00", self._made[0]).replace(b"\x01", self._made[1])


def is_plain(data: bytes, start: int, stop: int) -> bool:
    """What lies between is the inside of a JSON string, in printable ASCII without escapes; False if `start > stop`."""
    if not 0 <= stop - start <= SHORT:
        return start <= stop and _PLAIN(data, start, stop) is not None
    for at in range(start, stop):
        byte = data[at]
        if byte < 0x20 or byte == 0x22 or byte == 0x5C or byte > 0x7E:
            return False
    return True


def learn(came: bytes, made: bytes, name: bytes) -> Template | None:
    """The template of a chunk whose only text is the field `name`; None where one cannot be sure of the place."""
    pattern = _VALUES[name]
    first = _cut(came, pattern, name)
    second = first if made is came else _cut(made, pattern, name)
    return Template(first, second) if first and second else None


def _cut(event: bytes, pattern: re.Pattern[bytes], name: bytes) -> tuple[bytes, bytes] | None:
    if _BACKSLASH in event or event.count(b'"' + name + b'"') != 1:
        return None
    found = pattern.search(event)
    if found is None:
        return None
    end = event.index(b'"', found.end())
    return event[: found.end()], event[end:] + b"\n\n"


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
