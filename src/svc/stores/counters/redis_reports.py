"""Reports the ends of requests to Redis: money, tokens, and slots of requests in flight.

A call that fails because Redis is disconnected is remembered here, and reported after the next connect. A call whose
reply was lost may have been executed. Its money is reported under the same number, so that Redis adds it once. Its
tokens are not reported again. An earlier process id leaves its keys, which releases all that it has reserved.

Money belongs to the sum that was loaded when it was spent. A sum that is loaded later comes from the database, which
has that money.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from svc.stores.counters.counter_calls import CallResult, CounterCall, CounterCallBatcher
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, PERIOD_CODES, KeyLimits
from svc.stores.counters.redis_types import MAX_AMOUNT, RedisReservation, Spending, redis_key
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import OutcomeUnknown

PROCESS_TTL_SECONDS: Final = 15.0
"""The time after which the requests of an inactive process no longer count, as in `counters.lua`."""
MAX_SPENT_SEEDS: Final = 50_000
"""Maximum number of keys with a budget whose seed (the id of the loaded sum) is remembered."""
MAX_UNRELEASED_KEYS: Final = 10_000
"""Maximum number of keys that earlier process ids leave. In others, they count until their time has expired."""
MAX_TOKEN_CORRECTIONS: Final = 10_000
"""Maximum number of seconds of keys whose tokens are corrected at the next connect. Others keep their estimate."""

TokenPlace = tuple[str, int, int]
"""The key, the second of a reservation, and the microsecond in which the key's hash was created."""


class CounterReports:
    """Sends the ends of requests to Redis, and keeps those that fail until the next connect."""

    def __init__(self, calls: CounterCallBatcher, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock
        self._seeds: dict[str, int] = {}
        self._unreported_nano_usd: dict[tuple[str, int], int] = {}
        """Spending that Redis has not executed, by key and seed."""
        self._uncertain_spending: list[Spending] = []
        self._spending_number = 0
        self._token_corrections: dict[TokenPlace, _TokenCorrection] = {}
        """Corrections that Redis has not added, the oldest first."""
        self._unreleased: set[tuple[str, str]] = set()
        """Keys and earlier process ids that may count in them."""
        self._released_at: dict[tuple[str, str], float] = {}
        """When an earlier process id left a key, for PROCESS_TTL_SECONDS. Another primary may not know it."""

    def commit(self, reservation: RedisReservation, tokens: int, nano_usd: int) -> None:
        """End a reservation with the actual usage."""
        tokens, nano_usd = min(tokens, MAX_AMOUNT), min(nano_usd, MAX_AMOUNT)
        number = seed = 0
        if reservation.has_budget and nano_usd:
            number = self._spending_number = self._spending_number + 1
            seed = self._seeds.get(reservation.key_id, 0)
        arguments = (
            "commit",
            reservation.process,
            reservation.second,
            reservation.created,
            reservation.tokens,
            reservation.nano_usd,
            tokens,
            nano_usd,
            number,
        )
        self._calls.add(_Commit(self, arguments, reservation, tokens, nano_usd, number, seed))

    def record_spend(self, key_id: str, process_id: str, nano_usd: int) -> None:
        """Record the cost of a request that has no reservation in Redis."""
        seed = self._seeds.get(key_id)
        if nano_usd and seed is not None:
            self._send_spend(key_id, process_id, min(nano_usd, MAX_AMOUNT), seed)

    def raise_spent(self, limits: KeyLimits, spent_nano_usd: int, seed: int) -> None:
        """Replace the sum of a budget if it is smaller. `seed` becomes its id."""
        arguments = ("raise_spent", PERIOD_CODES[limits.period], limits.period_start, spent_nano_usd, seed)
        self._calls.add(_RaiseSpent(self, limits.key_id, arguments))

    def remember_seed(self, key_id: str, seed: int) -> None:
        """Remember the id of the sum that Redis has."""
        if len(self._seeds) >= MAX_SPENT_SEEDS and key_id not in self._seeds:
            del self._seeds[next(iter(self._seeds))]
        self._seeds[key_id] = seed

    # After a failure

    def defer_spend(self, spending: Spending, *, is_uncertain: bool) -> None:
        """Report spending after the next connect: under the same number, if Redis may have added it already."""
        if is_uncertain:
            self._uncertain_spending.append(spending)
        else:
            deferred, place = self._unreported_nano_usd, (spending.key_id, spending.seed)
            deferred[place] = deferred.get(place, 0) + spending.nano_usd

    def defer_tokens(self, place: TokenPlace, tokens: int) -> None:
        """Add tokens to those of a second of a key after the next connect."""
        now, corrections = self._clock(), self._token_corrections
        expired_before = now - COUNTER_WINDOW_SECONDS
        while corrections and next(iter(corrections.values())).deferred_at < expired_before:
            del corrections[next(iter(corrections))]
        correction = corrections.get(place)
        if correction is not None:
            correction.tokens += tokens
        elif len(corrections) < MAX_TOKEN_CORRECTIONS:
            corrections[place] = _TokenCorrection(tokens, now)

    def defer_release(self, key_id: str, process_id: str) -> None:
        """Let an earlier process id leave a key after the next connect."""
        if len(self._unreleased) < MAX_UNRELEASED_KEYS:
            self._unreleased.add((key_id, process_id))

    # After a connect

    def send_deferred(self, process_id: str, used_key_ids: Iterable[str], previous_process_id: str) -> None:
        """Report all that was deferred, under a new process id. The previous one leaves the keys that it has used."""
        now = self._clock()
        for key_id in used_key_ids:
            self.defer_release(key_id, previous_process_id)
        for key_id, old_process_id in self._released_at:
            self.defer_release(key_id, old_process_id)
        # The money is first: a connection accepts only so many commands, and the rest follow after another connect.
        uncertain, self._uncertain_spending = self._uncertain_spending, []
        for spending in uncertain:
            self._report_spend(spending, is_repeat=True)
        unreported, self._unreported_nano_usd = self._unreported_nano_usd, {}
        for (key_id, seed), nano_usd in unreported.items():
            self._send_spend(key_id, process_id, nano_usd, seed)
        unreleased, self._unreleased = self._unreleased, set()
        for key_id, old_process_id in unreleased:
            self._released_at.setdefault((key_id, old_process_id), now)
            self._calls.add(_ProcessRelease(self, key_id, old_process_id))
        corrections, self._token_corrections = self._token_corrections, {}
        for place, correction in corrections.items():
            if now - correction.deferred_at < COUNTER_WINDOW_SECONDS:
                self._calls.add(_TokenReport(self, place, correction.tokens))

    def forget_expired(self, now: float) -> None:
        """Forget process ids that have expired in Redis as well."""
        oldest = now - PROCESS_TTL_SECONDS
        self._released_at = {place: at for place, at in self._released_at.items() if at >= oldest}

    def _send_spend(self, key_id: str, process_id: str, nano_usd: int, seed: int) -> None:
        self._spending_number += 1
        self._report_spend(Spending(key_id, process_id, self._spending_number, nano_usd, seed))

    def _report_spend(self, spending: Spending, *, is_repeat: bool = False) -> None:
        number = -spending.number if is_repeat else spending.number
        arguments = ("record_spend", spending.process, number, spending.nano_usd, spending.seed)
        self._calls.add(_SpendingReport(self, spending, arguments, is_repeat=is_repeat))


class _TokenCorrection:
    """Used minus reserved tokens of reservations that ended at `deferred_at` (monotonic seconds) or later."""

    __slots__ = ("deferred_at", "tokens")

    def __init__(self, tokens: int, deferred_at: float) -> None:
        self.tokens = tokens
        self.deferred_at = deferred_at


class _Report(CounterCall):
    """A call whose failure `_reports` handles."""

    __slots__ = ("_key_id", "_reports")

    def __init__(self, reports: CounterReports, key_id: str, arguments: tuple[str | int, ...]) -> None:
        super().__init__(redis_key(key_id), arguments)
        self._reports = reports
        self._key_id = key_id


class _Commit(_Report):
    """The end of a reservation. If it fails, its parts follow after the next connect."""

    __slots__ = ("_nano_usd", "_number", "_reservation", "_seed", "_tokens")

    def __init__(
        self,
        reports: CounterReports,
        arguments: tuple[str | int, ...],
        reservation: RedisReservation,
        tokens: int,
        nano_usd: int,
        number: int,
        seed: int,
    ) -> None:
        """`number` is that of the spending, or 0 if there is none. `seed` is 0 if that of the key is unknown."""
        super().__init__(reports, reservation.key_id, arguments)
        self._reservation = reservation
        self._tokens = tokens
        self._nano_usd = nano_usd
        self._number = number
        self._seed = seed

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        if not isinstance(reply, StoreUnavailable):
            return
        reports, reservation, is_uncertain = self._reports, self._reservation, isinstance(reply, OutcomeUnknown)
        reports.defer_release(reservation.key_id, reservation.process)
        if not is_uncertain and self._tokens != reservation.tokens:
            place = reservation.key_id, reservation.second, reservation.created
            reports.defer_tokens(place, self._tokens - reservation.tokens)
        if self._seed:
            spending = Spending(reservation.key_id, reservation.process, self._number, self._nano_usd, self._seed)
            reports.defer_spend(spending, is_uncertain=is_uncertain)


class _SpendingReport(_Report):
    """A report of money that Redis has not confirmed."""

    __slots__ = ("_is_repeat", "_spending")

    def __init__(
        self, reports: CounterReports, spending: Spending, arguments: tuple[str | int, ...], *, is_repeat: bool
    ) -> None:
        super().__init__(reports, spending.key_id, arguments)
        self._spending = spending
        self._is_repeat = is_repeat

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable):
            is_uncertain = self._is_repeat or isinstance(reply, OutcomeUnknown)
            self._reports.defer_spend(self._spending, is_uncertain=is_uncertain)


class _RaiseSpent(_Report):
    """Replaces the sum of a budget by a larger one. Later reports have the seed of that sum."""

    __slots__ = ()

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        if not isinstance(reply, StoreUnavailable) and len(reply) == 2 and isinstance(reply[1], int):
            self._reports.remember_seed(self._key_id, reply[1])


class _TokenReport(_Report):
    """A correction of tokens. It is deferred if Redis has certainly not executed it."""

    __slots__ = ("_place", "_tokens")

    def __init__(self, reports: CounterReports, place: TokenPlace, tokens: int) -> None:
        key_id, second, created = place
        super().__init__(reports, key_id, ("correct_tokens", second, created, tokens))
        self._place = place
        self._tokens = tokens

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable) and not isinstance(reply, OutcomeUnknown):
            self._reports.defer_tokens(self._place, self._tokens)


class _ProcessRelease(_Report):
    """An earlier process id leaves a key."""

    __slots__ = ("_process_id",)

    def __init__(self, reports: CounterReports, key_id: str, process_id: str) -> None:
        super().__init__(reports, key_id, ("leave", process_id))
        self._process_id = process_id

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable):
            self._reports.defer_release(self._key_id, self._process_id)
