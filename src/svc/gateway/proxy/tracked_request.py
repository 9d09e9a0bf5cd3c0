"""Limits and accounting for requests that other packages serve, such as speech.

track ── rejected: a limit of the key ──> done
  └── TrackedRequest.finish: releases the reservation, and writes the ledger entry
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from svc.errors import RateLimited, SvcError
from svc.gateway.accounting.record import AttemptRecord, RequestRecord, RequestStatus
from svc.gateway.limits.limit_errors import LimitReached
from svc.gateway.limits.reservation import Reservation
from svc.gateway.observability.access_log import encode_client_field
from svc.gateway.observability.observer import RequestStart
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.wire.key import ApiKey
from svc.wire.request_identity import RequestIdentity


class TrackedRequest:
    """One request. The handler calls `finish` before the last byte is sent. Further calls have no effect."""

    def __init__(
        self,
        context: GatewayContext,
        key: ApiKey,
        endpoint: str,
        identity: RequestIdentity,
        reservation: Reservation | None,
        *,
        is_long_lived: bool,
    ) -> None:
        self._context = context
        self._key = key
        self._endpoint = endpoint
        self._identity = identity
        self._is_long_lived = is_long_lived
        self._reservation = reservation
        self._started_at = time.monotonic()
        self._is_done = False
        if context.observers.on_start:
            context.observers.report_start(RequestStart(identity.request_id, identity.client_request_id, key, endpoint))

    @property
    def headers(self) -> Mapping[str, str]:
        """The rate limit headers of the response."""
        lines = self._reservation.header_lines.split("\r\n") if self._reservation is not None else []
        return {name: value for name, _, value in (line.partition(": ") for line in lines) if name}

    def finish(
        self,
        status: RequestStatus,
        http_status: int,
        *,
        requested_model: str | None,
        model: str | None = None,
        first_byte_at: float | None = None,
        code: str | None = None,
        rejection: SvcError | None = None,
    ) -> None:
        """Report the end of the request.

        `code` is that of the error that ended it, and `rejection` this error if it came before the handler.
        `model` is the model that served the request, or None. `first_byte_at` is a value of `time.monotonic`.
        """
        if self._is_done:
            return
        self._is_done = True
        if self._reservation is not None:
            self._reservation.commit(0, 0.0)
        now = time.monotonic()
        context = self._context
        context.tracked_request_ids.add(self._identity.request_id)
        if first_byte_at is not None:
            context.observers.report_first_byte(self._identity.request_id, first_byte_at - self._started_at)
        attempt: AttemptRecord | None = None
        attempt_records: tuple[AttemptRecord, ...] = ()
        if model is not None:
            attempt = self._attempt_record(model, status, code, now - self._started_at)
            context.observers.report_attempt(attempt)
            if status != "ok":
                attempt_records = (attempt,)
        context.observers.report_end(
            RequestRecord(
                self._key,
                self._endpoint,
                requested_model,
                status,
                http_status,
                time=context.ledger.timestamp(),
                request_id=self._identity.request_id,
                client_request_id=self._identity.client_request_id,
                model=model,
                provider=LOCAL_PROVIDER if model else None,
                attempt_count=1 if model else 0,
                duration_seconds=now - self._started_at,
                first_byte_seconds=None if first_byte_at is None else first_byte_at - self._started_at,
                code=code,
                attempt_records=attempt_records,
                last_attempt=attempt,
                limit_name=rejection.limit if isinstance(rejection, RateLimited) else "",
                limit_state=rejection.state if isinstance(rejection, LimitReached) else None,
                error_message=rejection.message if rejection is not None else "",
                client_field=encode_client_field(self._identity.client_address),
                is_timed=not self._is_long_lived,
                trace_context=self._identity.trace_context,
            )
        )

    def _attempt_record(self, model: str, status: RequestStatus, code: str | None, seconds: float) -> AttemptRecord:
        return AttemptRecord(
            self._identity.request_id,
            LOCAL_PROVIDER,
            model,
            None,
            "ok" if status == "ok" else "abandoned" if status == "client_closed" else "failed",
            code,
            None,
            seconds * 1000,
            is_timed=status == "ok" and not self._is_long_lived,
        )


class RequestTracker:
    """Starts tracked requests."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def track(
        self, key: ApiKey, endpoint: str, identity: RequestIdentity, *, is_long_lived: bool = False
    ) -> TrackedRequest:
        """Reserve the key's limits, and return the tracked request.

        The client determines the duration of an `is_long_lived` request, so latency metrics exclude it.
        Raises RateLimited if a limit of the key is reached. The ledger has an entry for that rejection.
        """
        context = self._context
        try:
            context.ledger.ensure_accepting()
            reservation = await self._reserve(key) if context.rate_limiter.has_limits(key) else None
        except SvcError as error:
            tracked = TrackedRequest(context, key, endpoint, identity, None, is_long_lived=is_long_lived)
            tracked.finish("error", error.status, requested_model=None, code=error.code, rejection=error)
            raise
        return TrackedRequest(context, key, endpoint, identity, reservation, is_long_lived=is_long_lived)

    async def _reserve(self, key: ApiKey) -> Reservation:
        """Reserve one request. Local models use no tokens and no money, so only request limits apply."""
        admission: asyncio.Future[Reservation | SvcError] = self._context.clock.loop.create_future()

        def on_admission(reservation: Reservation | SvcError) -> None:
            if not admission.cancelled():
                admission.set_result(reservation)
            elif isinstance(reservation, Reservation):  # the caller was cancelled
                reservation.commit(0, 0.0)

        self._context.rate_limiter.admit_unmetered(key, on_admission)
        reservation = await admission
        if isinstance(reservation, SvcError):
            raise reservation
        return reservation
