"""The amounts that a request reserves from its key's limits, until its actual usage is known. On the hot path."""

from __future__ import annotations

from svc.gateway.accounting.cost import to_nano_usd
from svc.stores.counters.local import LocalCounters, LocalReservation
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.redis_types import RedisReservation


class Reservation:
    """A reservation in the counters of this machine, for the duration of a request.

    Each line in `header_lines` ends in CRLF.
    """

    __slots__ = ("_counters", "_local_reservation", "header_lines")

    def __init__(self, counters: LocalCounters, local_reservation: LocalReservation | None, header_lines: str) -> None:
        self._counters = counters
        self._local_reservation = local_reservation
        self.header_lines = header_lines

    def commit(self, tokens: int, cost_usd: float) -> None:
        """End the reservation with the actual usage. Further calls have no effect."""
        local_reservation, self._local_reservation = self._local_reservation, None
        if local_reservation is not None:
            self._counters.commit(local_reservation, tokens, to_nano_usd(cost_usd))


class MirroredReservation(Reservation):
    """A reservation in Redis that the counters of this machine mirror.

    `redis_reservation` is None if Redis was unavailable. Then only the cost is committed to Redis. It is None as well
    until `set_outcome`, if Redis was slow and `awaits_redis` is true.
    """

    __slots__ = ("_awaits_redis", "_key_id", "_late_usage", "_redis_counters", "_redis_reservation")

    def __init__(
        self,
        counters: LocalCounters,
        local_reservation: LocalReservation,
        header_lines: str,
        redis_counters: RedisCounters,
        key_id: str,
        redis_reservation: RedisReservation | None = None,
        *,
        awaits_redis: bool = False,
    ) -> None:
        super().__init__(counters, local_reservation, header_lines)
        self._redis_counters = redis_counters
        self._key_id = key_id
        self._redis_reservation = redis_reservation

        self._awaits_redis = awaits_redis
        self._late_usage: tuple[int, int] | None = None
        """Tokens and nano-USD of a request that ended before the reply of Redis."""

    def commit(self, tokens: int, cost_usd: float) -> None:
        if self._local_reservation is not None:
            self._commit_to_redis(tokens, to_nano_usd(cost_usd))
        super().commit(tokens, cost_usd)

    def set_outcome(self, redis_reservation: RedisReservation | None) -> None:
        """Continue with the late reply of Redis. None means that Redis has no reservation."""
        self._awaits_redis = False
        self._redis_reservation = redis_reservation
        late_usage, self._late_usage = self._late_usage, None
        if late_usage is not None:
            self._commit_to_redis(late_usage[0], late_usage[1])

    def _commit_to_redis(self, tokens: int, nano_usd: int) -> None:
        if self._awaits_redis:
            self._late_usage = (tokens, nano_usd)
        elif self._redis_reservation is not None:
            self._redis_counters.commit(self._redis_reservation, tokens, nano_usd)
        else:
            self._redis_counters.record_spend(self._key_id, nano_usd)


class EphemeralReservation(Reservation):
    """The reservations of an ephemeral key and of its parent."""

    __slots__ = ("_own", "_parent")

    def __init__(self, counters: LocalCounters, own: Reservation, parent: Reservation) -> None:
        lines = own.header_lines
        for line in parent.header_lines.splitlines(keepends=True):
            if not (lines and "-requests: " in line):  # the own limit hides that of the parent
                lines += line
        super().__init__(counters, None, lines)
        self._own = own
        self._parent = parent

    def commit(self, tokens: int, cost_usd: float) -> None:
        self._own.commit(tokens, cost_usd)
        self._parent.commit(tokens, cost_usd)
