"""What a fake provider does with one request, step by step: data, and the builders that tests read well with.

    head(200) + body(b'{"a":') + stall()             stalls in mid-answer
    sse(events, pieces=7)                            the stream's bytes, seven at a time
    sse(events[:2], end=reset())                     RST in mid-stream
    answer(429, error_body, headers={"retry-after": "1"})
    pause(0.3) + answer(200, b"{}")                  late
    hold(gate) + answer(200, b"{}")                  when the test says so

It knows HTTP's framing and nothing of any dialect.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Framing = Literal["length", "chunked", "close"]


@dataclass(frozen=True)
class Head:
    """Status line and headers. `length` (with framing "length") is what the header says, true or not."""

    status: int
    headers: tuple[tuple[str, str], ...]
    framing: Framing
    length: int | None = None


@dataclass(frozen=True)
class Body:
    """A piece of the body, put into the framing that the head announced."""

    data: bytes


@dataclass(frozen=True)
class Raw:
    """Bytes for the socket as they are."""

    data: bytes


@dataclass(frozen=True)
class End:
    """The body is whole: the last chunk, or the close that ends it."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Stall:
    """Nothing more, until the other side is gone."""


@dataclass(frozen=True)
class Fin:
    """Closes in the polite way."""


@dataclass(frozen=True)
class Reset:
    """Closes with RST."""


class Gate:
    """A place in a script where the fake waits for the test. `reached` and `open` are called by the test."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    def reached(self, timeout: float = 5.0) -> None:
        """Waits until the script has come here; raises TimeoutError."""
        if not self.arrived.wait(timeout):
            raise TimeoutError("the script did not come to the gate")

    def open(self) -> None:
        """Lets the script go on."""
        self.opened.set()


@dataclass(frozen=True)
class Hold:
    gate: Gate


Step = Head | Body | Raw | End | Pause | Stall | Fin | Reset | Hold


@dataclass(frozen=True)
class Script:
    """Steps in order. Scripts are added up with `+`."""

    steps: tuple[Step, ...] = field(default=())

    def __add__(self, other: Script) -> Script:
        return Script(self.steps + other.steps)


def head(
    status: int = 200,
    *,
    content_type: str | None = "application/json",
    headers: Mapping[str, str] | None = None,
    framing: Framing = "chunked",
    length: int | None = None,
) -> Script:
    """The head of an answer, to be followed by `body` and `end`."""
    named = {"content-type": content_type} if content_type else {}
    return Script((Head(status, tuple({**named, **(headers or {})}.items()), framing, length),))


def body(data: bytes) -> Script:
    return Script((Body(data),))


def raw(data: bytes) -> Script:
    return Script((Raw(data),))


def end() -> Script:
    return Script((End(),))


def pause(seconds: float) -> Script:
    return Script((Pause(seconds),))


def stall() -> Script:
    return Script((Stall(),))


def fin() -> Script:
    return Script((Fin(),))


def reset() -> Script:
    return Script((Reset(),))


def hold(gate: Gate) -> Script:
    return Script((Hold(gate),))


def answer(
    status: int,
    content: bytes | dict[str, Any] = b"",
    *,
    content_type: str | None = "application/json",
    headers: Mapping[str, str] | None = None,
    framing: Framing = "length",
    length: int | None = None,
) -> Script:
    """A whole answer. `length` makes the content-length say something else than the truth."""
    data = json.dumps(content).encode() if isinstance(content, dict) else content
    stated = len(data) if length is None else length
    top = head(status, content_type=content_type, headers=headers, framing=framing, length=stated)
    return top + body(data) + end()


def sse(
    events: Iterable[bytes],
    *,
    pieces: int | Sequence[int] | None = None,
    every: float = 0.0,
    content_type: str | None = "text/event-stream; charset=utf-8",
    headers: Mapping[str, str] | None = None,
    framing: Framing = "chunked",
    end: Script | None = None,
) -> Script:
    """A stream. `pieces`: None sends event by event, a number so many bytes at a time, a list cuts at these positions.

    `every` seconds pass between pieces. `end` is what follows the last piece; by default the body ends as it should.
    """
    whole = list(events)
    top = head(200, content_type=content_type, headers=headers, framing=framing)
    steps: list[Step] = []
    for piece in whole if pieces is None else split(b"".join(whole), pieces):
        steps += [Body(piece), Pause(every)]
    return top + Script(tuple(steps)) + (Script((End(),)) if end is None else end)


def split(data: bytes, pieces: int | Sequence[int]) -> list[bytes]:
    """`data` in pieces of one size, or cut at the given positions."""
    cuts = range(pieces, len(data), pieces) if isinstance(pieces, int) else sorted(pieces)
    edges = [0, *cuts, len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges) if stop > start]
