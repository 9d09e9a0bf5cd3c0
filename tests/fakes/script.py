"""The response script of a fake provider, step by step, and builders for it.

    head(200) + body(b'{"a":') + stall()             stalls in mid-response
    sse(events, split_at=7)                          the stream's bytes, seven at a time
    sse(events[:2], end=reset())                     RST in mid-stream
    answer(429, error_body, headers={"retry-after": "1"})
    pause(0.3) + answer(200, b"{}")                  late
    hold(gate) + answer(200, b"{}")                  when the test opens the gate

Scripts know HTTP framing and no dialect.
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
    """Status line and headers. `length` (with framing "length") is the Content-Length, correct or not."""

    status: int
    headers: tuple[tuple[str, str], ...]
    framing: Framing
    length: int | None = None


@dataclass(frozen=True)
class Body:
    """A part of the body, in the framing of the head."""

    data: bytes


@dataclass(frozen=True)
class Raw:
    """Bytes that are sent unchanged."""

    data: bytes


@dataclass(frozen=True)
class End:
    """The body is complete: the last chunk, or the close that ends it."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the client disconnects."""


@dataclass(frozen=True)
class Fin:
    """Close with FIN."""


@dataclass(frozen=True)
class Reset:
    """Close with RST."""


class Gate:
    """A point in a script where the fake waits for the test. The test calls `reached` and `open`."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    def reached(self, timeout: float = 20.0) -> None:
        """Wait until the script reaches the gate. Raises TimeoutError."""
        if not self.arrived.wait(timeout):
            raise TimeoutError("the script did not reach the gate")

    def open(self) -> None:
        """Let the script continue."""
        self.opened.set()


@dataclass(frozen=True)
class Hold:
    gate: Gate


Step = Head | Body | Raw | End | Pause | Stall | Fin | Reset | Hold


@dataclass(frozen=True)
class Script:
    """Steps in order. `+` concatenates scripts."""

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
    """Return the head of a response, to be followed by `body` and `end`."""
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
    """Return a complete response. `length` overrides the Content-Length with a wrong value."""
    data = json.dumps(content).encode() if isinstance(content, dict) else content
    stated = len(data) if length is None else length
    top = head(status, content_type=content_type, headers=headers, framing=framing, length=stated)
    return top + body(data) + end()


def sse(
    events: Iterable[bytes],
    *,
    split_at: int | Sequence[int] | None = None,
    every: float = 0.0,
    content_type: str | None = "text/event-stream; charset=utf-8",
    headers: Mapping[str, str] | None = None,
    framing: Framing = "chunked",
    end: Script | None = None,
) -> Script:
    """Return a stream.

    `split_at`: None sends event by event, a number sends that many bytes at a time, a list cuts at these offsets.
    `every` is the number of seconds between writes. `end` follows the last write and completes the body by default.
    """
    whole = list(events)
    top = head(200, content_type=content_type, headers=headers, framing=framing)
    steps: list[Step] = []
    for part in whole if split_at is None else split(b"".join(whole), split_at):
        steps += [Body(part), Pause(every)]
    return top + Script(tuple(steps)) + (Script((End(),)) if end is None else end)


def split(data: bytes, split_at: int | Sequence[int]) -> list[bytes]:
    """Return `data` in parts of one size, or cut at the given offsets."""
    cuts = range(split_at, len(data), split_at) if isinstance(split_at, int) else sorted(split_at)
    edges = [0, *cuts, len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges) if stop > start]
