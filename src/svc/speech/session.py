"""The protocol of one streaming session, without I/O: messages in, orders out (sent messages are orders as well).

             config, or audio or flush with the defaults            opened
   NEW ─────────────────────────────────────────────▶ OPENING ─────────────▶ LIVE ──┐ audio, flush, reset
    │                                                  │  ▲ ▲                 │  ◀─┘
    │                                          refused │  │ │ config          │
    │                                                  ▼  │ └─────────────────┤
    │                                                REFUSED (config)         │ lost: the worker died, another is asked
    │                                                                         │ for; what was stable is not forgotten
    └────────────── close, time-outs, key, shutdown: CLOSED ◀─────────────────┘

While OPENING, and when config or close come behind a flush that is not answered, messages are held (`reading` is
false then). The messages are those of `svc.wire.speech`.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from svc.errors import InvalidRequest, SvcError
from svc.speech.audio import BYTES_PER_SECOND, Joiner
from svc.speech.prefix import join
from svc.wire import speech as wire

MAX_LOSSES = 3
"""Workers that may die under a session, without a word in between, before it is given up."""


class Send(msgspec.Struct, frozen=True):
    """A message for the client."""

    message: wire.ServerMessage


class Attach(msgspec.Struct, frozen=True):
    """Find the model and a worker for it; answer with `opened` or `refused` and the same number."""

    number: int
    config: wire.Config


class Feed(msgspec.Struct, frozen=True):
    """Whole samples for the worker."""

    data: bytes


class Flush(msgspec.Struct, frozen=True):
    """To the worker, in the order of the audio."""


class Reset(msgspec.Struct, frozen=True):
    """To the worker, in the order of the audio."""


class Release(msgspec.Struct, frozen=True):
    """The worker is not needed any more."""


class Close(msgspec.Struct, frozen=True):
    """Close the socket, once everything is sent."""

    code: int


Order = Send | Attach | Feed | Flush | Reset | Release | Close
State = Literal["new", "opening", "live", "refused", "closed"]


class Session:
    """Feed it, and carry out `orders()` after each call. Times are in seconds of any steady clock."""

    def __init__(self, session_id: str, *, now: float, idle_timeout: float = 120.0, max_duration: float = 14400.0):
        self.id = session_id
        self.state: State = "new"
        self._orders: list[Order] = []
        self._held: deque[bytes | str] = deque()
        self._config = wire.Config()
        self._attempt = 0
        self._announce = False
        self._refusal = ""
        self.closed_for: wire.Reason | None = None
        """Why it ended, unless the client has just gone."""
        self._joiner = Joiner()
        self._epoch = 0
        self._losses = 0
        self._bytes = 0
        """Of the utterance that the client speaks."""
        self._flushed: deque[int] = deque()
        """Flushes that are not answered: the bytes of their utterances."""
        self._idle, self._last, self._end = idle_timeout, now, now + max_duration
        self._hear_next()

    def _hear_next(self) -> None:
        """The worker's next hypothesis is about another utterance: the client may be further on than the worker."""
        self._partials = 0
        self._stable = ""
        self._carried = ""
        """Stable text of this utterance from a worker that died."""

    def orders(self) -> list[Order]:
        """What has to be done now, in this order."""
        orders, self._orders = self._orders, []
        return orders

    @property
    def reading(self) -> bool:
        """Whether another message of the client would be worked through at once."""
        return self.state not in ("opening", "closed") and not self._held

    @property
    def waiting_since_flush(self) -> bool:
        """Whether a final is owed."""
        return bool(self._flushed)

    # from the client

    def receive(self, message: bytes | str, now: float) -> None:
        """A binary or text frame."""
        self._last = now
        if self.state == "closed":
            return
        self._held.append(message)
        self._work()

    def _work(self) -> None:
        """Works through held messages, until one has to wait."""
        while self._held and self.state not in ("opening", "closed"):
            message = self._held.popleft()
            done = self._audio(message) if isinstance(message, bytes) else self._text(message)
            if not done:
                self._held.appendleft(message)
                return

    def _audio(self, data: bytes) -> bool:
        if self.state == "new":
            self._open(wire.Config())
            return False
        if self.state == "live":
            self._bytes += len(data)
            if whole := self._joiner.push(data):
                self._orders.append(Feed(whole))
        return True

    def _text(self, text: str) -> bool:
        try:
            message = wire.read_client_message(text)
        except InvalidRequest as error:
            self._error(error)
            return True
        match message:
            case wire.Config():
                return self._configure(message)
            case wire.Flush():
                return self._flush()
            case wire.Reset():
                self._reset()
            case wire.Close():
                if self._flushed:
                    return False
                self._close("client_close", 1000)
        return True

    def _configure(self, config: wire.Config) -> bool:
        if self._flushed:
            return False
        if self.state == "live":
            self._orders.append(Release())
        self._joiner = Joiner()
        self._losses = 0
        self._bytes = 0
        self._hear_next()
        self._open(config)
        return True

    def _open(self, config: wire.Config) -> None:
        self.state = "opening"
        self._config = config
        self._announce = True
        self._attach()

    def _attach(self) -> None:
        self._attempt += 1
        self._epoch = 0
        self._orders.append(Attach(self._attempt, self._config))

    def _flush(self) -> bool:
        if self.state == "new":
            self._open(wire.Config())
            return False
        if self.state == "refused":  # a flush is always answered
            self._orders.append(Send(wire.Error(f"There is no model in this session: {self._refusal}")))
            self._orders.append(Send(wire.Final("", 0, 0)))
            return True
        self._flushed.append(self._bytes)
        self._bytes = 0
        self._orders.append(Flush())
        return True

    def _reset(self) -> None:
        if self.state == "live":
            self._epoch += 1
            self._bytes = 0
            self._joiner = Joiner()  # half a sample of the old utterance would shift the new one by a byte
            if not self._flushed:
                self._hear_next()
            self._orders.append(Reset())

    # from the worker

    def opened(self, attempt: int, model: str) -> None:
        """The worker is there, and the model is loaded."""
        if attempt != self._attempt or self.state != "opening":
            return
        self.state = "live"
        if self._announce:
            self._announce = False
            self._orders.append(Send(wire.Ready(self.id, model)))
        self._work()

    def refused(self, attempt: int, error: SvcError) -> None:
        """There is no such model, it does not load, or there is no room."""
        if attempt != self._attempt or self.state != "opening":
            return
        self.state = "refused"
        self._refusal = error.message
        self._error(error)
        self._work()

    def heard(self, epoch: int, text: str, stable: bool) -> None:
        """A hypothesis, after so many resets of this worker's voice."""
        if self.state != "live" or epoch != self._epoch:
            return
        self._losses = 0
        text = join(self._carried, text)
        if stable:
            self._stable = text
        self._orders.append(Send(wire.Partial(text, stable, self._partials)))
        self._partials += 1

    def done(self, text: str, chunks: int) -> None:
        """The answer to the oldest flush."""
        if not self._flushed:
            return
        self._losses = 0
        self._final(join(self._carried, text), chunks)
        self._work()

    def _final(self, text: str, chunks: int) -> None:
        size = self._flushed.popleft()
        self._hear_next()
        self._orders.append(Send(wire.Final(text, round(size * 1000 / BYTES_PER_SECOND), chunks)))

    def faulted(self, message: str) -> None:
        """The engine failed on some of the audio; it goes on."""
        if self.state == "live":
            self._orders.append(Send(wire.Error(message)))

    def lost(self, message: str) -> None:
        """The worker died. Owed finals are answered with what was stable; another worker is asked for."""
        if self.state != "live":
            return
        self._orders.append(Send(wire.Error(message)))
        while self._flushed:
            self._final(self._stable, 0)
        self._carried = self._stable
        self._losses += 1
        if self._losses > MAX_LOSSES:
            self.state = "refused"
            self._refusal = "its worker died again and again"
        else:
            self.state = "opening"
            self._attach()
        self._work()

    # from the clock and the server

    def tick(self, now: float) -> None:
        """Looks at the time."""
        if now >= self._end:
            self._close("session_limit", 1000)
        elif now >= self._last + self._idle and self.reading and not self._flushed:
            self._close("idle_timeout", 1000)

    def shutdown(self) -> None:
        """The server stops."""
        self._close("server_shutdown", 1001)

    def revoke(self) -> None:
        """The key is no longer valid: it was revoked, has expired, or may not use this any more."""
        self._close("key_revoked", 1008)

    def turn_away(self, error: SvcError) -> None:
        """There is no room for this session, or a limit of its key is reached."""
        if self.state != "closed":
            self.state = "closed"
            self._error(error)
            self._orders.append(Close(1013))

    def _close(self, reason: wire.Reason, code: int) -> None:
        if self.state == "closed":
            return
        if self.state == "live":
            self._orders.append(Release())
        self.state = "closed"
        self.closed_for = reason
        self._held.clear()
        self._orders += [Send(wire.Closed(reason)), Close(code)]

    def _error(self, error: SvcError) -> None:
        code = error.code
        if code not in ("invalid_request", "rate_limit_exceeded", "model_not_found"):
            code = "asr_error"
        self._orders.append(Send(wire.Error(error.message, code)))  # type: ignore[arg-type]
