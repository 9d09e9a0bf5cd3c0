"""What the streams of a provider's model have in common, so that the chunks around the text need no parsing either.

    data: {"id":"c1","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"delta":{"role":…
    └────────────────────────── stamp ───────────────────────────┘└────────────────────── rest ──────────────────────
              └┘└───────────────── middle ──────────────────┘└┘

The chunks of a stream mostly begin with its stamp, and what follows it is, but for the text, what it was in the stream
before. A chunk whose rest equals that of one that was parsed and found right is as right, with an id and a time of its
own: nothing else is taken for known. Where openings never repeat, as with random padding, nothing ever is.
"""

from __future__ import annotations

from typing import Final

from svc.dialects.template import Template, is_plain
from svc.wire.chat import FinishReason

LONGEST: Final = 2048
"""Bytes of a chunk that is kept."""
_START: Final = b'data: {"id":"'
_ID: Final = len(_START)
_CREATED: Final = b'"created":'
_SAID: Final = (b'"id"', b'"created"')
"""What a stamp says, and nothing but it."""
_USAGE: Final = b'"usage":'
_QUOTE: Final = b'"'
_BACKSLASH: Final = 0x5C
_ZERO: Final = 0x30
_DIGITS: Final = 18


class KnownChunks:
    """Of streams whose opening is this one, of one choice; filled by those of them that are parsed."""

    __slots__ = ("_middle", "_opening", "finish", "index", "model", "reason", "text", "usage")

    def __init__(self, middle: bytes, opening: bytes, index: int, model: str) -> None:
        self._middle = middle
        self._opening = opening
        self.index = index
        """Of the choice."""
        self.model = model
        self.text: tuple[bytes, bytes] | None = None
        """The rest of a chunk of text, up to the text and from there."""
        self.finish = b""
        """The rest of the chunk that has ended the choice, for `reason`."""
        self.reason: FinishReason | None = None
        self.usage = b""
        """The rest of a chunk of usage, up to the usage, which nothing follows."""

    def stamp(self, event: bytes) -> bytes:
        """What a stream's chunks begin with, if its first one is this `event`; empty for a first one not known."""
        end = event.find(_QUOTE, _ID)
        time, stop = end + len(self._middle), len(event) - len(self._opening)
        if not (0 < stop - time <= _DIGITS and end > _ID and event.endswith(self._opening)):
            return b""
        if not event.startswith(_START) or event[end:time] != self._middle or not is_plain(event, _ID, end):
            return b""
        digits = event[time:stop]
        return event[:stop] if digits.isdigit() and (digits[0] != _ZERO or len(digits) == 1) else b""

    def template(self, stamp: bytes) -> Template | None:
        """Of the stream's chunks of text."""
        if self.text is None:
            return None
        frame = (stamp + self.text[0], self.text[1])
        return Template(frame, frame)


def stamped(stamp: bytes) -> tuple[str, int]:
    """The id and the time that a stamp says."""
    return stamp[_ID : stamp.index(_QUOTE, _ID)].decode(), int(stamp[stamp.rindex(b":") + 1 :])


def opened(event: bytes, chunk_id: str, created: int, index: int, model: str) -> tuple[KnownChunks, bytes] | None:
    """By the first chunk of a stream, and its stamp; None where one cannot be sure of the places."""
    if len(event) > LONGEST or not event.startswith(_START) or _BACKSLASH in event:
        return None
    if event.count(_SAID[0]) != 1 or event.count(_SAID[1]) != 1:
        return None
    end = event.index(_QUOTE, _ID)
    time = event.find(_CREATED) + len(_CREATED)
    stop = time + len(str(created))
    stamp = event[:stop]
    if event[stop : stop + 1] not in (b",", b"}") or event[time:stop] != b"%d" % created or created < 0:
        return None
    known = KnownChunks(event[end:time], event[stop:], index, model)
    return (known, stamp) if known.stamp(event) == stamp and stamped(stamp) == (chunk_id, created) else None


def rest_of(event: bytes, stamp: bytes) -> bytes:
    """What follows the stamp; empty where it may depend on that, or is too long to be kept."""
    if len(event) > LONGEST or not event.startswith(stamp) or _BACKSLASH in event:
        return b""
    rest = event[len(stamp) :]
    return b"" if _SAID[0] in rest or _SAID[1] in rest else rest


def before_usage(rest: bytes) -> bytes:
    """Of a chunk of usage, all up to that; empty where one cannot be sure of the place."""
    return rest[: rest.index(_USAGE) + len(_USAGE)] if rest.count(_USAGE) == 1 else b""
