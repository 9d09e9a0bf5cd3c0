"""One try at one target: from sending the request to the last byte of its answer, or a Failure.

waiting ── 200, event-stream ──> streaming ── the pipe has ended ──> draining ── on_end ──> over
   │ ├──── 200 ───────────────> collecting ── on_end ──> answered
   │ └──── another status ────> collecting ── on_end ──> failed
   └────── lost, late ────────> failed
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from io import BytesIO
from typing import Final

from svc.dialects.base import Dialect, Passed
from svc.dialects.failures import without
from svc.dialects.flow import Pipe
from svc.dialects.pipe import open_pipe
from svc.dialects.template import Template
from svc.errors import InternalError, ProviderFailed, SvcError
from svc.gateway.bounds import Bounds
from svc.gateway.call import Call, Receiver
from svc.gateway.estimate import completion_tokens
from svc.gateway.failures import Failure, Then, judge, judge_answer, late, lost, not_understood
from svc.gateway.forwarding import ForwardedHead
from svc.gateway.healing.pace import Pace
from svc.gateway.offers import Offer
from svc.gateway.relay import Relay, Sink
from svc.gateway.upstream import Upstream
from svc.wire.usage import Usage

MAX_ANSWER: Final = 64 * 1024 * 1024
"""Bytes of an answer that is not a stream."""
MAX_ERROR: Final = 64 * 1024
"""Bytes of an error answer that are looked at."""
DRAIN_SECONDS: Final = 1.0
"""After the end mark: so long may an upstream take to end its HTTP answer, so that the connection can be used again."""


class AttemptOwner(ABC):
    """The exchange that an attempt is for."""

    __slots__ = ()

    @abstractmethod
    def attempt_resent(self, attempt: Attempt) -> None:
        """The request goes to the provider a second time, see `Receiver.on_resent`."""

    @abstractmethod
    def attempt_failed(self, attempt: Attempt, failure: Failure) -> None:
        """Nothing has gone to the client."""

    @abstractmethod
    def attempt_answered(self, attempt: Attempt, passed: Passed) -> None:
        """A whole answer that is not a stream."""

    @abstractmethod
    def attempt_streamed(self, attempt: Attempt, data: bytes, pipe: Pipe) -> None:
        """A piece of a stream that has started: the first one, and the last one, when `pipe.ended`."""


class Attempt(Receiver):
    """The receiver of one call."""

    __slots__ = (
        "_active",
        "_body",
        "_bounds",
        "_call",
        "_client",
        "_flowing",
        "_idle_timeout",
        "_last",
        "_owner",
        "_pace",
        "_paused",
        "_piece",
        "_pipe",
        "_relay",
        "_status",
        "_stream",
        "deadline",
        "first",
        "headers",
        "offer",
        "over",
        "received",
        "sent",
    )

    def __init__(
        self,
        owner: AttemptOwner,
        offer: Offer,
        client: Dialect,
        bounds: Bounds,
        *,
        stream: bool,
        include_usage: bool,
        pipe: Pipe | None = None,
    ) -> None:
        self.offer = offer
        self.deadline = math.inf
        """Loop time at which `expire` is due."""
        self.over = False
        self.sent = 0.0
        """Loop time."""
        self._owner: AttemptOwner | None = owner
        self._client = client
        self._bounds = bounds
        self._idle_timeout = bounds.idle_timeout
        self._stream = stream
        self._pipe: Pipe | None = pipe or (
            open_pipe(offer.dialect, client, include_usage=include_usage, target=offer.target) if stream else None
        )
        if self._pipe is not None:
            self._pipe.key = offer.provider.key
        self._flowing: Pipe | None = None
        """The pipe, while pieces are to go through it."""
        self.sink = None
        self.received = 0
        """Bytes of the answer that have come here, if its status is 200."""
        self.first = b""
        self._last = b""
        """Of a stream: its first and its last piece that came here; what a part costs is guessed from them."""
        self._relay: Relay | None = None
        """Carries the pieces that do not come here."""
        self._call: Call | None = None
        self._pace: Pace | None = None
        self._paused = False
        self._status = 0
        self.headers: Mapping[bytes, bytes] = {}
        """Of the answer, once its head has come."""
        self._piece = b""
        """The body, as long as it has come in one piece: nearly always."""
        self._body: BytesIO | None = None
        self._active = False
        """Pieces have come since the last tick."""

    def watch(self, floor: float) -> None:
        """A stream that is slower than `floor` tokens per second is late."""
        self._pace = Pace(floor)

    def send(self, upstream: Upstream, body: bytes, now: float, forwarded: ForwardedHead | None = None) -> None:
        """Begins. `now` is loop time."""
        self.sent = now
        self.deadline = now + self._bounds.first_byte_timeout
        self._call = upstream.send(self.offer, body, self, stream=self._stream, forwarded=forwarded)

    @property
    def draining(self) -> bool:
        """All is said; what runs on is the end of the upstream's HTTP answer."""
        return self._owner is None and not self.over

    @property
    def tokens(self) -> int:
        """Of the completion so far: a guess from its bytes."""
        carried = self._relay.tokens if self._relay is not None else 0
        return completion_tokens(self.received, self.first, self._last) + carried

    def cancel(self) -> None:
        """Lets go of the upstream at once; nothing more is reported."""
        self._owner = self._flowing = self.sink = None
        call = self._call
        self._finish()
        if call is not None:
            call.cancel()

    def pause(self) -> None:
        """The client does not read: neither do we, and the upstream's idle time does not count."""
        if self._owner is None:  # draining: nothing goes to the client any more
            return
        self._paused = True
        if self._call is not None:
            self._call.pause()

    def resume(self, now: float) -> None:
        if self._paused and self._call is not None:
            self._paused = False
            self.deadline = now + self._idle_timeout
            self._call.resume()

    def tick(self, now: float) -> None:
        """Called a few times a second: the pieces since the last call move the deadline, not each of them alone."""
        pace = self._pace if self.first and self._owner is not None else None
        if pace is not None and pace.too_slow(now, self.tokens, paused=self._paused):
            self._break(late("for its answer: it is slower than the pace that is asked for"))
            return
        relay = self._relay
        if self._active or (relay is not None and relay.active):
            self._active = False
            if relay is not None:
                relay.active = False
            self.deadline = now + self._idle_timeout
        elif now >= self.deadline and not self._paused:
            self._expire()

    @property
    def usage(self) -> Usage | None:
        """What the provider has told of a stream so far."""
        return self._pipe.usage if self._pipe is not None else None

    def stop(self, failure: Failure) -> None:
        """Breaks off from our side: a stream that has started ends in an honest error."""
        self._break(failure)

    def _expire(self) -> None:
        if self._owner is None:  # draining
            self.cancel()
            return
        waiting = not self._status or (self._pipe is not None and not self._pipe.started)
        self._break(late("to begin its answer" if waiting else "between two pieces of its answer"))

    # connection.Receiver

    def on_resent(self) -> None:
        if self._owner is not None:
            self._owner.attempt_resent(self)

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status = status
        self.headers = headers
        if self._stream and status == 200 and headers.get(b"content-type", b"event-stream").find(b"event-stream") < 0:
            self._stream = False  # what it is will be seen at its end
        if self._stream and status == 200:
            self._flowing = self._pipe
        else:
            self._active = True

    def on_body(self, data: bytes) -> None:
        pipe = self._flowing
        if pipe is None:
            self._collect(data)
            return
        self._active = True
        self.received += len(data)
        self._last = data
        try:
            out = pipe.feed(data)
        except SvcError as error:
            self._break(not_understood(error))
            return
        if self.sink is not None and not pipe.ended:
            if out:
                self.sink.write(out, False)
            if pipe.frame is not None:
                self._lay(pipe.frame, self.sink)
            return
        self.first = self.first or data
        self._turn(pipe, out)
        if self.sink is not None and pipe.frame is not None:  # the first one has told how those of text will look
            self._lay(pipe.frame, self.sink)

    def _lay(self, frame: Template, sink: Sink) -> None:
        """Pieces like this one need not come here."""
        if self._relay is None and (to := sink.chunks_to()) is not None:
            self._relay = Relay(to)
        if self._relay is not None and self._call is not None:
            self._relay.fit(frame)
            self._call.relay(self._relay)

    def _turn(self, pipe: Pipe, out: bytes) -> None:
        """The first piece for the client, the last one, or what comes before the first."""
        owner = self._owner
        if pipe.ended:
            self._drain(pipe)
            if owner is not None:
                owner.attempt_streamed(self, out, pipe)
        elif not pipe.started:
            self._active = False
        elif out and owner is not None:
            owner.attempt_streamed(self, out, pipe)

    def on_end(self) -> None:
        self._finish()
        if self._owner is None:
            return
        if self._status != 200:
            self._fail(judge_answer(self.offer.dialect, self._client, self._status, self.headers, self._whole()))
        elif self._stream and self._pipe is not None:
            self._end_stream(self._pipe)
        else:
            self._answer(self._whole())

    def on_lost(self, reason: str, *, timed_out: bool, made: bool) -> None:
        self._finish()
        if self._owner is None:
            return
        if timed_out:
            self._fail(late("to accept a connection", reason))
        elif self._status and self._status != 200:
            self._fail(judge(self._status, self.headers, None))
        elif self._pipe is not None and self._pipe.started:
            self._cut(self._pipe, ProviderFailed("The provider broke off in the middle of its answer.", reason=reason))
        else:
            self._fail(lost(reason, made=made))

    def on_fault(self) -> None:
        self._finish()
        failure = Failure(InternalError("Something went wrong here."), Then.NOWHERE)
        if self._pipe is not None and self._pipe.started and not self._pipe.ended:
            self._cut(self._pipe, failure.error)
        else:
            self._fail(failure)

    # inside

    def _collect(self, data: bytes) -> None:
        if self._owner is None:
            return
        self._active = True
        if self._status != 200:
            self._keep(data, MAX_ERROR)
            return
        self.received += len(data)
        if self.received <= MAX_ANSWER:
            self._keep(data, MAX_ANSWER)
        else:
            self._break(not_understood(ProviderFailed("The provider's answer is too long.")))

    def _keep(self, data: bytes, most: int) -> None:
        if self._body is None and not self._piece:
            self._piece = data[:most]
            return
        if self._body is None:  # one block: many of a page's size would tear holes into the heap
            self._body = BytesIO()
            self._body.write(self._piece)
        self._body.write(data[: most - self._body.tell()])

    def _whole(self) -> bytes:
        return self._piece if self._body is None else self._body.getvalue()

    def _drain(self, pipe: Pipe) -> None:
        self._owner = self._flowing = self.sink = None
        if pipe.error is not None:
            self.cancel()
        else:
            self._active = True
            self._idle_timeout = DRAIN_SECONDS

    def _end_stream(self, pipe: Pipe) -> None:
        try:
            out = pipe.end()
        except SvcError as error:
            self._fail(not_understood(error))
            return
        if not pipe.started:
            self._fail(not_understood(pipe.error or ProviderFailed("The provider's answer is empty.")))
        elif self._owner is not None:
            self._owner.attempt_streamed(self, out, pipe)

    def _answer(self, raw: bytes) -> None:
        upstream, client = self.offer.dialect, self._client
        try:
            if self._pipe is not None:
                upstream.read_answer(raw)  # raises what an error object in it means
                raise ProviderFailed("The provider did not answer with a stream.")
            if upstream.name == client.name:
                passed = client.pass_answer(raw)
            else:
                answer = upstream.read_answer(raw)
                passed = Passed(client.write_answer(answer), answer.usage, answer.finish, answer.model)
        except SvcError as error:
            self._fail(not_understood(error))
            return
        if self._owner is not None:
            self._owner.attempt_answered(self, passed)

    def _break(self, failure: Failure) -> None:
        """Ends the call from our side."""
        pipe = self._pipe
        owner = self._owner
        self.cancel()
        self._owner = owner
        if pipe is not None and pipe.started:
            self._cut(pipe, failure.error)
        else:
            self._fail(failure)

    def _cut(self, pipe: Pipe, error: SvcError) -> None:
        """A stream that has started cannot be tried again: it ends in an honest error, unless all has been said."""
        out = pipe.fail(error) if pipe.finish is None else pipe.end()
        if self._owner is not None:
            self._owner.attempt_streamed(self, out, pipe)

    def _fail(self, failure: Failure) -> None:
        failure.error.message = without(failure.error.message, self.offer.provider.key)
        if self._owner is not None:
            self._owner.attempt_failed(self, failure)

    def _finish(self) -> None:
        self.over = True
        self.deadline = math.inf
        self._call = None  # which holds this
