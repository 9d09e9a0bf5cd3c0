"""One client's request: checked, routed, tried at its targets in order, answered, recorded.

    start ── refused, or in the cache ─────────────> over      (nothing was sent to any upstream)
      └── trying ─┬─ a whole answer ────────────────> over
           ^   │  ├─ streaming ── end mark / error ─> over
           └───┘  └─ nothing left to try ───────────> over
      a failure        gone (the client left), expire (total time-out): from anywhere

There is no task here: everything happens in callbacks, which is what makes a request cheap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from svc.dialects.base import Dialect, Head, Passed
from svc.dialects.flow import Pipe
from svc.dialects.outline import LONG_BODY
from svc.errors import InternalError, ProviderFailed, RateLimited, SvcError
from svc.gateway.attempt import Attempt
from svc.gateway.billing import bill_of
from svc.gateway.cache.cache import Cache
from svc.gateway.cache.memory import Kept
from svc.gateway.cache.recorder import Recorder
from svc.gateway.cache.replay import Replay, answerer
from svc.gateway.client_connection import Client
from svc.gateway.failures import Failure, Then, late
from svc.gateway.forwarding import ForwardedHead
from svc.gateway.hedging import HedgedTries
from svc.gateway.limits import Lease
from svc.gateway.offers import Offer
from svc.gateway.record import Record, Status
from svc.gateway.refusals import LimitReached
from svc.gateway.relay import Sink
from svc.gateway.reply import dropped_line
from svc.gateway.tries import Tries, TriesOwner
from svc.wire.key import Key
from svc.wire.usage import Usage

if TYPE_CHECKING:
    from svc.gateway.plane import Plane

log = logging.getLogger("svc.gateway")

_now: Final = time.monotonic  # looked up once: on the hot path


class Exchange(TriesOwner):
    """Owns the tries of one request; `client` is told the outcome exactly once."""

    __slots__ = (
        "_began",
        "_client",
        "_dialect",
        "_first_byte",
        "_head",
        "_key",
        "_lease",
        "_plane",
        "_raw",
        "_recorder",
        "_sink",
        "_streaming",
        "_tries",
        "client_request_id",
        "deadline",
        "forwarded",
        "over",
        "request_id",
    )

    def __init__(
        self,
        plane: Plane,
        client: Client,
        dialect: Dialect,
        key: Key,
        *,
        request_id: str,
        client_request_id: str | None,
    ) -> None:
        self._plane = plane
        self._client = client
        self._dialect = dialect
        self._key = key
        self.request_id = request_id
        self.client_request_id = client_request_id
        self.forwarded: ForwardedHead | None = None
        self.over = False
        self._began = _now()
        self._first_byte = 0.0
        self.deadline = self._began + plane.bounds.total_timeout
        self._tries: Tries | Replay | None = None
        self._sink: Sink = client
        """Where the pieces of a stream go."""
        self._recorder: Recorder | None = None
        """It, if the answer is to be kept."""
        self._lease: Lease | None = None
        self._head: Head | None = None
        self._raw = b""
        self._streaming = False

    def start(self, raw: bytes) -> None:
        """Takes the request's body. Errors of the client's are answered at once."""
        self._raw = raw
        self._plane.exchanges.add(self)
        try:  # as `guarded`, without making a method for each request
            self._open()
        except SvcError as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001
            self.fault()

    def guarded(self, step: Callable[[], None]) -> None:
        """The edge: an error is answered, and a fault of ours does not take the connection with it."""
        try:
            step()
        except SvcError as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001
            self.fault()

    def _open(self) -> None:
        if len(self._raw) >= LONG_BODY:  # which is not parsed for a key that has no request left
            self._plane.gate.check(self._key)
        head = self._head = self._client.bodies.head(self._dialect, self._raw)
        chain = self._plane.router.route(head.model, self._key)
        self._plane.ledger.check()
        if self._plane.cache is None:
            self._try(head, chain, self._began)
        else:
            self._look_up(self._plane.cache, head, chain)

    def _look_up(self, cache: Cache, head: Head, chain: tuple[Offer, ...]) -> None:
        """The answer may have been given before, by one of the targets that may give it now."""
        name = cache.name(self._key, self._dialect.name, self._raw, self.forwarded)
        if name is None:
            self._try(head, chain, self._began)
            return

        def told(kept: Kept | None) -> None:
            offer = answerer(kept, chain)
            cache.count(hit=offer is not None)
            if kept is not None and offer is not None:
                self._repeat(kept, offer)
            else:
                self._recorder = self._sink = cache.record(name, self._client)
                self._try(head, chain, _now())

        cache.look(name, lambda kept: None if self.over else self.guarded(lambda: told(kept)))

    def _repeat(self, kept: Kept, offer: Offer) -> None:
        """Gives an answer again: it uses neither tokens nor money."""
        replay = Replay(self, kept, offer, stream=self._head is not None and self._head.stream)

        def start() -> None:
            self._tries = replay
            replay.start(_now())

        self._count(start)

    def _try(self, head: Head, chain: tuple[Offer, ...], now: float) -> None:
        tries: Tries
        if len(chain) > 1 and self._plane.bounds.hedge_after > 0:
            tries = HedgedTries(self, self._plane, self._dialect, head, self._raw, chain)
        else:
            tries = Tries(self, self._plane, self._dialect, head, self._raw, chain)
        self._tries = tries
        if self._plane.gate.limited(self._key):
            self._plane.gate.admit(self._key, head, self._raw, chain, self._admitted)
        else:
            tries.start(now)

    def _admitted(self, lease: Lease | SvcError) -> None:
        """The limits of the key let it through, or do not."""
        tries = self._tries
        if isinstance(lease, SvcError):
            self._refuse(lease)
        elif self.over or tries is None:  # the client left while the database was asked
            lease.settle(0, 0.0)
        else:
            self._lease = lease
            self.guarded(lambda: tries.start(_now()))

    def refuse(self, error: SvcError) -> None:
        """Answers an error. A request that has reserved nothing counts for `rpm` all the same."""
        if self._lease is not None or isinstance(error, LimitReached):
            self._refuse(error)
        else:
            self._count(lambda: self._refuse(error))

    def _count(self, step: Callable[[], None]) -> None:
        """Counts a request that reaches for no model, then goes on with `step`, unless it is one too many."""

        def then(lease: Lease | SvcError) -> None:
            if isinstance(lease, SvcError):
                self._refuse(lease)
            elif self.over:  # the client left while Redis was asked
                lease.settle(0, 0.0)
            else:
                self._lease = lease
                self.guarded(step)

        if self._plane.gate.counts(self._key) and not self.over:
            self._plane.exchanges.add(self)
            self._plane.gate.count(self._key, then)
        else:
            step()

    def fault(self) -> None:
        """A fault of ours: logged with its traceback, answered with nothing but the request id."""
        log.exception("fault in request %s", self.request_id)
        self._refuse(InternalError(f"Something went wrong here. Report it with the request id {self.request_id}."))

    def gone(self) -> None:
        """The client left: whatever runs is let go of."""
        if not self.over:
            if isinstance(self._tries, HedgedTries):
                self._tries.abandoned()
            self._record("client_closed", 499, self._attempt.usage if self._attempt is not None else None)
            self._end()

    @property
    def streaming(self) -> bool:
        """The head of a stream has gone to the client."""
        return self._streaming and not self.over

    def pause(self) -> None:
        if self._tries is not None:
            self._tries.pause()

    def resume(self) -> None:
        if self._tries is not None:
            self._tries.resume()

    def tick(self, now: float) -> None:
        """The total time-out."""
        if now >= self.deadline:
            self.stop(late("for the whole answer"))

    def stop(self, failure: Failure) -> None:
        """Ends it from our side, whatever state it is in, with an honest error."""
        if self.over:
            return
        if self._tries is not None:
            self._tries.stop(failure)
        else:
            self._refuse(failure.error)

    # TriesOwner

    def failed(self, error: SvcError) -> None:
        self._refuse(error)

    def said(self, data: bytes) -> None:
        self._begin()
        if data:
            self._sink.write(data, False)

    def repeated(self, data: bytes, error: SvcError | None) -> None:
        """Of `cache.replay.Owner`."""
        if error is not None:
            self._record("cut", 200, None)
            self._client.write(self._dialect.writer(include_usage=False).fail(error), True)
        elif self._head is not None and self._head.stream:
            self._begin()
            self._record("ok", 200, None)
            self._client.write(data, True)
        else:
            self._first_byte = _now()
            self._record("ok", 200, None)
            self._client.answer(200, self._headers(), data)
        self._end()

    def _begin(self) -> None:
        """The head of a stream, once."""
        if not self._streaming:
            self._streaming = True
            self._first_byte = _now()
            self._client.begin(self._headers())

    def answered(self, passed: Passed, now: float) -> None:
        self._first_byte = now
        self._record("ok", 200, passed.usage)
        if self._recorder is not None:
            self._recorder.note(passed.body)
            self._keep(self._recorder)
        self._client.answer(200, self._headers(), passed.body)
        self._end()

    def streamed(self, attempt: Attempt, data: bytes, pipe: Pipe) -> None:
        self._begin()
        attempt.sink = self._sink
        if pipe.ended:
            self._record("cut" if pipe.error else "ok", 200, pipe.usage, pipe.error)
            self._sink.write(data, True)
            if self._recorder is not None and pipe.error is None and pipe.finish is not None:
                self._keep(self._recorder)
            self._end()
        else:
            self._sink.write(data, False)

    def _keep(self, recorder: Recorder) -> None:
        """The answer is whole, and in the words of one target."""
        tries = self._tries
        if tries is not None and tries.offer is not None and not tries.resumed:
            recorder.keep(tries.offer, tries.dropped)

    # ending

    def _refuse(self, error: SvcError) -> None:
        if self.over:
            return
        if self._streaming and self._tries is not None:  # the head is out: the error comes as the stream's last event
            self._tries.stop(Failure(error, Then.NOWHERE))
            return
        self._record("error", error.http_status, None, error)
        headers = self._headers() + "".join(f"{name}: {value}\r\n" for name, value in error.http_headers.items())
        if self._offer is not None or isinstance(error, ProviderFailed):
            headers += "x-should-retry: false\r\n"
        self._client.answer(error.http_status, headers, self._dialect.write_error(error, self.request_id))
        self._end()

    def _end(self) -> None:
        self.over = True
        self._plane.exchanges.discard(self)
        tries, self._tries = self._tries, None  # nothing holds the other: no garbage collector is needed
        if tries is not None:
            tries.end()
        if self._recorder is not None:
            self._recorder.drop()

    @property
    def _attempt(self) -> Attempt | None:
        """The one whose answer counts, while there is one."""
        return self._tries.attempt if self._tries is not None else None

    @property
    def _offer(self) -> Offer | None:
        """The target that answers, or that was tried last; None before any was."""
        return self._tries.offer if self._tries is not None else None

    def _headers(self) -> str:
        lines, also = f"x-request-id: {self.request_id}\r\n", self._dialect.request_id_header
        lines += f"{also}: {self.request_id}\r\n" if also else ""
        lines += f"x-client-request-id: {self.client_request_id}\r\n" if self.client_request_id else ""
        lines += self._lease.headers if self._lease is not None else ""
        tries = self._tries
        if tries is None or tries.offer is None:
            return lines
        lines += f"x-svc-provider: {tries.offer.provider_name}\r\nx-svc-attempts: {tries.count}\r\n"
        if self._plane.cache is not None:
            lines += f"x-svc-cache: {'miss' if tries.count else 'hit'}\r\n"
        if tries.dropped:
            lines += dropped_line(tries.dropped)
        return lines

    def _record(self, status: Status, http_status: int, told: Usage | None, error: SvcError | None = None) -> None:
        """Into the books, before the last byte leaves."""
        plane, tries = self._plane, self._tries
        offer, attempt, now = self._offer, self._attempt, _now()
        bill = bill_of(tries, status, told, self._raw, plane.ledger)
        if self._lease is not None:
            usage = bill.usage
            self._lease.settle(usage.prompt_tokens + usage.completion_tokens if usage else 0, bill.usd or 0.0)
        plane.record(
            Record(
                self._key,
                self._dialect.endpoint,
                self._head.model if self._head else None,
                status,
                http_status,
                time=plane.ledger.stamp(),
                request_id=self.request_id,
                client_request_id=self.client_request_id,
                model=offer.model_id if offer else None,
                provider=offer.provider_name if offer else None,
                attempts=tries.count if tries is not None else 0,
                seconds=now - self._began,
                first=self._first_byte - self._began if self._first_byte else None,
                code=error.code if error is not None else None,
                bill=bill,
                from_cache=isinstance(tries, Replay),
                resumed=tries.resumed if tries is not None else 0,
                limit=error.limit if isinstance(error, RateLimited) else "",
                attempt_seconds=now - attempt.sent if attempt is not None else 0.0,
            ),
            self._client.log_end,
        )
