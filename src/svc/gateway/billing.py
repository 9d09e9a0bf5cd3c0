"""The bill of a request, summed over its attempts."""

from __future__ import annotations

from svc.gateway.bill import FREE, NOTHING, Bill
from svc.gateway.cache.replay import Replay
from svc.gateway.estimate import owed
from svc.gateway.ledger import Ledger
from svc.gateway.record import Status
from svc.gateway.tries import Tries
from svc.wire.usage import Usage


def bill_of(tries: Tries | Replay | None, status: Status, told: Usage | None, raw: bytes, ledger: Ledger) -> Bill:
    """Return the bill for all parts of the answer. `told` is the usage that the provider reported."""
    if tries is None or tries.offer is None:
        return NOTHING
    if isinstance(tries, Replay):
        return FREE
    attempt, usage, guessed = tries.attempt, told, False
    if attempt is not None and attempt.over and not attempt.received:
        attempt = None  # it has failed, and the next one was waited for
    if attempt is not None and (status != "error") and (status != "ok" or told is None):
        usage, guessed = owed(told, raw, attempt.tokens)
    bill = Bill(usage, ledger.cost(tries.offer, usage), guessed) if usage is not None else NOTHING
    if tries.parts or tries.losses:
        for part in (*tries.parts, *tries.losses):
            bill = bill.plus(Bill(part.usage, ledger.cost(part.offer, part.usage), part.guessed))
    return bill
