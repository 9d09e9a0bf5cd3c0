"""The bill of a request, summed over its attempts."""

from __future__ import annotations

from svc.gateway.accounting.bill import EMPTY_BILL, ZERO_BILL, Bill
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.accounting.record import RequestStatus
from svc.gateway.proxy.cached_response import ResponseReplay
from svc.gateway.proxy.retry import RetryLoop
from svc.wire.usage import TokenUsage


def compute_bill(
    source: RetryLoop | ResponseReplay | None,
    status: RequestStatus,
    reported_usage: TokenUsage | None,
    raw: bytes,
    ledger: Ledger,
    *,
    is_metered: bool,
) -> Bill:
    """Return the bill for all parts of the response. `reported_usage` is the usage that the provider reported."""
    if source is None or source.backend is None:
        return EMPTY_BILL
    if isinstance(source, ResponseReplay) or not is_metered:
        return ZERO_BILL
    attempt, usage = source.attempt, reported_usage
    is_estimated = attempt is not None and attempt.usage_is_estimated and usage is not None
    if attempt is not None and attempt.is_done and not attempt.received_bytes:
        attempt = None  # it failed, and the request was waiting for its retry
    is_incomplete = status != "ok" or reported_usage is None or (attempt is not None and attempt.has_only_start_usage)
    if attempt is not None and status != "error" and is_incomplete:
        usage, is_guess = attempt.billable_usage(reported_usage, raw)
        is_estimated = is_estimated or is_guess
    bill = Bill(usage, ledger.compute_cost(source.backend, usage), is_estimated) if usage is not None else EMPTY_BILL
    if source.interrupted_parts or source.hedge_losses:
        for part in (*source.interrupted_parts, *source.hedge_losses):
            bill = bill.add(Bill(part.usage, ledger.compute_cost(part.backend, part.usage), part.is_estimated))
    return bill
