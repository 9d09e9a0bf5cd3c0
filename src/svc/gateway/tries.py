"""The tries of one request at its targets: in order, and again after a while. Two at a time are `hedging`'s.

    trying ── answered, or the first piece of a stream ──> won
      │ ^ └── failed ── again, or the next target ──┐
      │ └───────────────────────────────────────────┘
      └────── nothing left ──> lost

What becomes of the outcome is the owner's matter.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from svc.dialects.base import Built, Dialect, Head, Passed
from svc.dialects.flow import Pipe
from svc.dialects.resuming import Resumable, resumable
from svc.errors import ProviderFailed, SvcError
from svc.gateway.attempt import Attempt, AttemptOwner
from svc.gateway.bill import Part
from svc.gateway.estimate import owed
from svc.gateway.failures import WAITABLE, Failure, Then, backoff
from svc.gateway.forwarding import ForwardedHead
from svc.gateway.offers import Offer
from svc.wire.chat import ChatRequest
from svc.wire.usage import Usage

if TYPE_CHECKING:
    from svc.gateway.plane import Plane

log = logging.getLogger("svc.gateway")


class TriesOwner(ABC):
    """The exchange that the tries are for."""

    __slots__ = ()

    request_id: str
    forwarded: ForwardedHead | None
    """The part of the client's request head that a target of its dialect gets."""

    @abstractmethod
    def answered(self, passed: Passed, now: float) -> None:
        """A whole answer that is not a stream; `now` is loop time."""

    @abstractmethod
    def streamed(self, attempt: Attempt, data: bytes, pipe: Pipe) -> None:
        """A piece of a stream: the first one, and the last one, when `pipe.ended`."""

    @abstractmethod
    def said(self, data: bytes) -> None:
        """The last piece of an attempt at a stream that goes on elsewhere; perhaps nothing."""

    @abstractmethod
    def failed(self, error: SvcError) -> None:
        """Nothing is left to try."""

    @abstractmethod
    def guarded(self, step: Callable[[], None]) -> None:
        """Runs a step whose errors are answered."""


class Tries(AttemptOwner):
    """`count` is what x-svc-attempts says, `attempt` the one whose answer counts."""

    __slots__ = (
        "_broke_off",
        "_broken",
        "_chain",
        "_dialect",
        "_floor",
        "_head",
        "_hub",
        "_index",
        "_owner",
        "_paused",
        "_plane",
        "_raw",
        "_resumes",
        "_round",
        "_stopped",
        "_timer",
        "_used",
        "_wait",
        "_won",
        "attempt",
        "count",
        "dropped",
        "losses",
        "offer",
        "parts",
        "resumed",
    )

    def __init__(
        self, owner: TriesOwner, plane: Plane, dialect: Dialect, head: Head, raw: bytes, chain: tuple[Offer, ...]
    ) -> None:
        self._owner = owner
        self._plane = plane
        self._dialect = dialect
        self._head = head
        self._raw = raw
        self._chain = chain
        self._hub: ChatRequest | None = None
        self._index = 0
        self._round = 0
        self._wait = 0.0
        self._won = False
        self._paused = False
        """The client does not read."""
        self._stopped: Failure | None = None
        """Why it was broken off from our side."""
        self._floor = plane.bounds.min_pace
        self._resumes = plane.bounds.resume and head.stream
        self._used: list[Offer] = []
        """Accounts that were tried, where a target has several."""
        self._broken: Resumable | None = None
        """What the client has of a stream that broke and is to go on."""
        self._broke_off: Attempt | None = None
        """The attempt that said the last part of it."""
        self._timer: asyncio.TimerHandle | None = None
        self.attempt: Attempt | None = None
        self.count = 0
        self.dropped: tuple[str, ...] = ()
        """Fields of the client's that the target's dialect lacks."""
        self.offer: Offer | None = None
        """The target that was tried last, or won."""
        self.parts: list[Part] = []
        """What other targets said of the stream, which broke and went on."""
        self.losses: tuple[Part, ...] = ()
        """What the loser of a hedge had said when it was let go of."""
        self.resumed = 0
        """So often it went on."""

    def start(self, now: float) -> None:
        """The first try; raises SvcError when there is none to make. `now` is loop time."""
        self._index = self._plane.steering.first(self._chain, self._raw, self._head, now)
        self._try(now)

    def pause(self) -> None:
        self._paused = True
        if self.attempt is not None:
            self.attempt.pause()

    def resume(self) -> None:
        self._paused = False
        if self.attempt is not None:
            self.attempt.resume(self._plane.now())

    def stop(self, failure: Failure) -> None:
        """Breaks off what runs, in an honest error: it fails at its target."""
        self._stopped = failure
        if self.attempt is not None and not self.attempt.over:
            self.attempt.stop(failure)
        elif self._broken is not None or not self._won:
            self._give_up(failure.error)

    def end(self) -> None:
        """Lets go of everything that still runs."""
        if self._timer is not None:
            self._timer.cancel()
        attempt, self.attempt = self.attempt, None
        self._broke_off = None  # which holds this
        if attempt is None:
            return
        if attempt.over:  # not left to the next tick: its memory is for the next request, which finds it in the cache
            self._plane.attempts.discard(attempt)
        elif not attempt.draining:
            attempt.cancel()
            self._count(attempt, "cancelled")
            if not self._won or self._awaited:
                self._plane.steering.forgotten(attempt.offer)

    # one try

    def _try(self, now: float) -> None:
        self._timer = None
        offer = self._chain[self._index]
        built = self._build(offer)
        self.dropped = built.dropped
        self.attempt = self._launch(offer, built, now)

    def _launch(self, offer: Offer, built: Built, now: float) -> Attempt:
        plane, head = self._plane, self._head
        if offer.accounts:
            offer = plane.steering.account(offer, self._used, now)
            self._used.append(offer)
        attempt = Attempt(
            self,
            offer,
            self._dialect,
            plane.bounds,
            stream=head.stream,
            include_usage=head.include_usage,
            pipe=self._resumable(offer) if self._resumes else None,
        )
        if self._floor and head.stream:
            attempt.watch(self._floor)
        self.offer = offer
        self.count += 1
        self._round += 1
        if self.count > 1:
            plane.metrics.attempts.count_retry(offer.provider_name, offer.model_id)
        if self._round == 1:
            plane.steering.asked(offer, now)
        plane.attempts.add(attempt)
        forwarded = self._owner.forwarded if offer.dialect is self._dialect else None
        if built.lines:
            forwarded = ForwardedHead(b"", built.lines)
        attempt.send(plane.upstream, built.body, now, forwarded)
        return attempt

    def _build(self, offer: Offer) -> Built:
        dialect = offer.dialect
        try:
            if self._broken is not None:
                return dialect.write_request(self._broken.request(self._read()), offer.target)
            if dialect.name == self._dialect.name:
                return dialect.pass_request(self._raw, self._head, offer.target)
            return dialect.write_request(self._read(), offer.target)
        except SvcError:
            self._plane.steering.forgotten(offer)  # it may have been meant as a probe
            raise

    def _read(self) -> ChatRequest:
        if self._hub is None:
            self._hub = self._dialect.read_request(self._raw)
        return self._hub

    def _again(self) -> None:
        self._owner.guarded(lambda: self._try(self._plane.now()))

    def _settle(self, winner: Attempt, now: float) -> None:
        """The first byte."""
        self._won = True
        plane = self._plane
        plane.steering.answered(winner.offer, now - winner.sent, now, stream=self._head.stream)
        if winner.offer.account:
            plane.steering.told(winner.offer, winner.headers, now)

    def _tell(self, attempt: Attempt, error: SvcError) -> None:
        """For the log; a stream that was broken off for the client's sake, or ours, is no trouble of the provider's."""
        plane = self._plane
        if self._stopped is None or self._stopped.silent:
            plane.troubles.tell(attempt.offer.provider_name, error, self._owner.request_id, plane.now())

    def _count(self, attempt: Attempt, outcome: str, code: str = "") -> None:
        """For the metrics: an attempt that did not answer the request, under its own target."""
        offer, seconds = attempt.offer, self._plane.now() - attempt.sent
        self._plane.metrics.attempts.of(offer.provider_name, offer.model_id, outcome, code).add(seconds)

    def _part(self, attempt: Attempt, told: Usage | None) -> Part:
        usage, guessed = owed(told, self._raw, attempt.tokens)
        return Part(attempt.offer, usage, guessed)

    # AttemptOwner

    def attempt_resent(self, attempt: Attempt) -> None:
        self.count += 1
        self._count(attempt, "error", ProviderFailed.code)

    def attempt_failed(self, attempt: Attempt, failure: Failure) -> None:
        self._count(attempt, "error", failure.error.code)
        self._tell(attempt, failure.error)
        if attempt.offer.account:
            self._plane.steering.told(attempt.offer, attempt.headers, self._plane.now())
        self._go_on(attempt, failure)

    def _go_on(self, attempt: Attempt, failure: Failure) -> None:
        """Another try after one that has failed, or the end."""
        plane, now = self._plane, self._plane.now()
        if self._has_other_account(failure, now):
            plane.steering.failed(attempt.offer, failure, now)
            self._again()
        elif self._repeatable(failure) and plane.steering.may_retry(attempt.offer, now):
            self._wait = max(backoff(self._wait), failure.retry_after or 0.0)
            self._timer = plane.loop.call_later(self._wait, self._again)
        else:
            plane.steering.failed(attempt.offer, failure, now)
            self._owner.guarded(lambda: self._advance(failure))

    def _advance(self, failure: Failure) -> None:
        """On to the next target, or the end; a target whose dialect cannot say the request is passed over.

        The request to go on is ours: who refuses it (a model may want no beginning of its turn) is passed over, too.
        """
        if failure.then is not Then.NOWHERE or self._broken is not None:
            while (index := self._after(self._index)) >= 0:
                if self._tried(index):
                    return
        self._give_up(failure.error)

    def _tried(self, index: int) -> bool:
        """Begins at another target; False for one whose dialect cannot say the request."""
        self._index = index
        self._round = 0
        self._wait = 0.0
        try:
            self._try(self._plane.now())
        except SvcError:
            return False
        return True

    def _give_up(self, error: SvcError) -> None:
        broken, attempt = self._broken, self._broke_off
        if broken is None or attempt is None:
            self._owner.failed(error)
            return
        self.attempt, self.offer = attempt, attempt.offer  # nobody took it up: the last word is its own
        self.parts.pop()
        if self._stopped is None and broken.error is not None:
            error = broken.error  # what cut the stream, not who refused the rest: a 429 there is no limit here
        self._owner.streamed(attempt, broken.give_up(error), broken)

    def _repeatable(self, failure: Failure) -> bool:
        if failure.then is not Then.AGAIN or self._stopped is not None:
            return False
        return self._round <= self._plane.bounds.retries and (failure.retry_after or 0.0) <= WAITABLE

    def _has_other_account(self, failure: Failure, now: float) -> bool:
        """Each is asked once, like a target: what keeps them from being asked in an outage are their breakers."""
        if failure.then is Then.NOWHERE or self._stopped is not None:
            return False
        return self._plane.steering.another(self._chain[self._index], self._used, now)

    def _after(self, index: int) -> int:
        plane = self._plane
        if self._stopped is not None:
            return -1
        return plane.steering.next(self._chain, index + 1, self._raw, self._head, plane.now())

    def attempt_answered(self, attempt: Attempt, passed: Passed) -> None:
        now = self._plane.now()
        self._settle(attempt, now)
        self._owner.answered(passed, now)

    def attempt_streamed(self, attempt: Attempt, data: bytes, pipe: Pipe) -> None:
        if not self._won:
            self._settle(attempt, self._plane.now())
        elif self._awaited:
            self._taken_up(attempt)
        if pipe.error is not None:
            failure = self._stopped or Failure(pipe.error, Then.NEXT)
            self._count(attempt, "error", pipe.error.code)
            self._tell(attempt, pipe.error)
            self._plane.steering.failed(attempt.offer, failure, self._plane.now(), counted=True)
            if isinstance(pipe, Resumable):
                self._broke(attempt, data, pipe, failure)
                return
        self._owner.streamed(attempt, data, pipe)

    # a stream that goes on elsewhere

    def _resumable(self, offer: Offer) -> Pipe | None:
        """The pipe of a stream that may go on elsewhere, or goes on here; None for the ordinary one."""
        if self._broken is not None:
            return self._broken.go_on(offer.dialect)
        try:
            if len(self._chain) == 1 or not resumable(self._read()):
                return None
        except SvcError:  # not said in a way that another dialect could take up
            return None
        writer = self._dialect.writer(include_usage=self._head.include_usage)
        return Resumable(offer.dialect.reader(), writer)

    @property
    def _awaited(self) -> bool:
        """The stream broke, and nobody has taken it up yet."""
        return self.resumed < len(self.parts)

    def _taken_up(self, attempt: Attempt) -> None:
        if self._paused:  # it was while nothing came
            attempt.pause()
        plane, now = self._plane, self._plane.now()
        plane.steering.answered(attempt.offer, now - attempt.sent, now, stream=True)
        self.resumed += 1
        log.info("request %s: resumed by %s", self._owner.request_id, attempt.offer.provider_name)

    def _broke(self, attempt: Attempt, data: bytes, pipe: Resumable, failure: Failure) -> None:
        """The text so far goes to the next target, if there is one; nothing of it is said twice."""
        self._broken = pipe
        if pipe.resumable and self._stopped is None:
            self._broke_off = attempt
            self.parts.append(self._part(attempt, pipe.usage))
            self._owner.said(data)
            self._owner.guarded(lambda: self._advance(failure))
        else:
            self._owner.streamed(attempt, data + pipe.give_up(failure.error), pipe)
