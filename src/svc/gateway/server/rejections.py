"""Reports requests that the server rejects before an exchange begins."""

from __future__ import annotations

from svc.errors import RateLimited, SvcError
from svc.gateway.limits.reservation import Reservation
from svc.gateway.observability.access_log import AccessLogEntry, truncate_path
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.server.authentication import cached_api_key
from svc.gateway.server.request import Request


def report_rejection(
    context: GatewayContext,
    request_id: str,
    request: Request | None,
    error: SvcError,
    status: int,
    client_field: bytes,
) -> None:
    """Report a rejected request to the observers. `request` is None if its head was not understood.

    A request with a known key counts for the key's `rpm` limit.
    """
    key = request.api_key if request else None
    if request and key is None and request.rejection is None:
        key = cached_api_key(request, context.keyring)
    if (
        key is not None
        and request is not None
        and request.endpoint is not None
        and context.rate_limiter.has_request_limit(key)
    ):
        context.rate_limiter.count_request(key, _release_reservation)
    context.observers.report_other_response(
        AccessLogEntry(
            time=context.ledger.timestamp(),
            request_id=request_id,
            client_request_id=request.client_request_id if request else None,
            key_id=key.id if key else None,
            key_name=key.name if key else None,
            method=request.method.decode("latin-1") if request else "",
            endpoint=truncate_path(request.path.decode("latin-1")) if request else "",
            status="error",
            http_status=status,
            code=error.code,
            message=error.message,
            tags=key.tags if key else {},
        ),
        client_field,
        error.limit if isinstance(error, RateLimited) else "",
    )


def _release_reservation(reservation: Reservation | SvcError) -> None:
    """End a reservation that was made to count a request."""
    if isinstance(reservation, Reservation):
        reservation.commit(0, 0.0)
