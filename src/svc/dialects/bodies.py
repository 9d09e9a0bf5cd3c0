"""Bodies of requests that are the last one of their connection again, but for one text: compared, not read. Pure.

{"model":"m","messages":[{"role":"system","content":"Sum up."},{"role":"user","content":"It was a dark …"}]}
└───────────────────────────────────── before ────────────────────────────────────────┘└── text ───┘└ after ┘

Programs ask the same of many texts. What lies around the text is, byte for byte, what was read once with all checks,
and the text is one JSON string as before: so both mean the same to every reader of JSON, but for what the text says.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from svc.dialects.base import Dialect, Head
from svc.dialects.outline import LONG_BODY

LONGEST: Final = 8 * 1024
"""Bytes of a body that is remembered: as long as the connection lasts."""
STRANGE: Final = 3
"""So many bodies in a row unlike the one before, and a connection's bodies are not compared any more."""

_OPENED: Final = re.compile(rb'(?<!\\)"(?:content|text)"\s*:\s*"')
"""The name of a field whose text means nothing to routing. With a backslash before it, it would be a name's end."""
_INSIDE: Final = re.compile(rb'(?:[^"\\]|\\.)*+')
_TEXT: Final = msgspec.json.Decoder(str)


class Bodies:
    """Of one connection."""

    __slots__ = ("_after", "_before", "_dialect", "_head", "_strange")

    def __init__(self) -> None:
        self._dialect: Dialect | None = None
        self._head: Head | None = None
        """What was read of the last body; None when it is not remembered."""
        self._before = b""
        self._after = b""
        self._strange = 0

    def head(self, dialect: Dialect, raw: bytes) -> Head:
        """As `Dialect.head`, for the next body. Raises InvalidRequest."""
        last = self._head
        if last is not None and dialect is self._dialect and self._is_same(raw):
            self._strange = 0
            return last.again(raw)
        head = dialect.head(raw)
        if self._strange < STRANGE:
            self._strange += 1
            self._remember(dialect, raw, head)
        return head

    def _is_same(self, raw: bytes) -> bool:
        start, stop = len(self._before), len(raw) - len(self._after)
        if not start <= stop < LONG_BODY or not raw.startswith(self._before) or not raw.endswith(self._after):
            return False
        try:
            _TEXT.decode(raw[start - 1 : stop + 1])  # with its quotes: one string, and nothing else
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return True

    def _remember(self, dialect: Dialect, raw: bytes, head: Head) -> None:
        """The last text of the body is the one that will be another."""
        self._head = None
        at = max(raw.rfind(b'"content"'), raw.rfind(b'"text"')) if len(raw) <= LONGEST else -1
        opened = _OPENED.match(raw, at) if at >= 0 else None
        if opened is None or self._strange >= STRANGE:
            return
        inside = _INSIDE.match(raw, opened.end())
        if inside is not None:
            self._dialect, self._head = dialect, head
            self._before, self._after = raw[: inside.start()], raw[inside.end() :]
