"""Request hedging: starts a second attempt if the first has sent no byte within `hedge_after` seconds.

one ── no first byte within `hedge_after` ──> two ── first byte of either ──> one      (the other is cancelled)
                                               └── one of them fails ───────> one      (the other continues)
"""

from __future__ import annotations

import asyncio

from svc.dialects.base import RequestBody
from svc.dialects.endpoint import Endpoint
from svc.dialects.routing_info import RoutingInfo
from svc.errors import SvcError
from svc.gateway.proxy.attempt import Attempt
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.proxy.retry import RetryLoop, RetryOwner
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import AttemptFailure, RetryDecision


class HedgedRetryLoop(RetryLoop):
    """A retry loop with hedging. `attempt` is the first attempt until the hedge wins or is the only one left."""

    __slots__ = ("_hedge_attempt", "_hedge_backend_index", "_hedge_dropped_fields", "_hedge_timer")

    def __init__(
        self,
        owner: RetryOwner,
        context: GatewayContext,
        endpoint: Endpoint,
        routing_info: RoutingInfo,
        body: RequestBody,
        backends: tuple[Backend, ...],
    ) -> None:
        super().__init__(owner, context, endpoint, routing_info, body, backends)
        self._hedge_timer: asyncio.TimerHandle | None = None
        self._hedge_attempt: Attempt | None = None
        self._hedge_backend_index = 0
        self._hedge_dropped_fields: tuple[str, ...] = ()

    def start(self, now: float) -> None:
        super().start(now)
        if self._backend_index + 1 < len(self._backends):
            context = self._context
            self._hedge_timer = context.clock.loop.call_later(
                context.config.current.policy.hedge_after, self._start_hedge
            )

    def close(self) -> None:
        self._cancel_hedge_timer()
        hedge_attempt, self._hedge_attempt = self._hedge_attempt, None
        if hedge_attempt is not None and not hedge_attempt.is_done:
            hedge_attempt.cancel()
            self._context.load_balancer.record_abandoned(hedge_attempt.backend)
        super().close()

    def report_abandoned(self) -> None:
        super().report_abandoned()
        if self._hedge_attempt is not None and not self._hedge_attempt.is_done:
            self._report_attempt(self._hedge_attempt, "abandoned")

    def bill_hedge(self) -> None:
        """Bill the hedge as well, for a client that disconnects before either attempt has won."""
        if self._hedge_attempt is not None:
            self.hedge_losses = (self._bill_part(self._hedge_attempt, self._hedge_attempt.usage),)

    def _retry_or_advance(self, attempt: Attempt, failure: AttemptFailure) -> None:
        if (
            self._hedge_attempt is None
            or self._stop_failure is not None
            or not self._continue_with_survivor(self._hedge_attempt, attempt, failure)
        ):
            super()._retry_or_advance(attempt, failure)

    def _cancel_hedge_timer(self) -> None:
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()
            self._hedge_timer = None

    def _start_hedge(self) -> None:
        """Start an attempt at the next backend, in parallel to the first."""
        self._hedge_timer = None
        if self._has_winner or self.attempt is None or self.attempt.is_done:
            return
        index = self._next_backend_index(self._backend_index)
        if index < 0:
            return
        try:
            codec, encoded = self._encode_request(self._backends[index])
        except SvcError:  # the backend's dialect cannot express the request: continue without a hedge
            return
        if encoded.local_response is not None:  # it is only a substitute for the provider's own response
            return
        first_backend = self.backend
        self._backend_attempt_count = 0
        self._hedge_attempt = self._launch_attempt(self._backends[index], codec, encoded, self._context.clock.now())
        self._hedge_backend_index, self._hedge_dropped_fields = index, encoded.dropped_fields
        self.backend = first_backend

    def _continue_with_survivor(self, hedge_attempt: Attempt, failed: Attempt, failure: AttemptFailure) -> bool:
        """Continue with the other attempt after one of two failed. Return False if the request has to fail."""
        if failed is hedge_attempt:  # the first backend decides, even about whether the request is valid
            self._backends = (
                self._backends[: self._hedge_backend_index] + self._backends[self._hedge_backend_index + 1 :]
            )
        elif failure.retry_decision is RetryDecision.GIVE_UP:
            return False
        else:
            self._promote_hedge(hedge_attempt)
            self._backend_attempt_count = 1
        self._hedge_attempt = None
        self._context.load_balancer.record_failure(failed.backend, failure, self._context.clock.now())
        return True

    def _promote_hedge(self, hedge_attempt: Attempt) -> None:
        self.attempt, self._backend_index = hedge_attempt, self._hedge_backend_index
        self.backend, self.dropped_fields = hedge_attempt.backend, self._hedge_dropped_fields

    def _accept_winner(self, winner: Attempt, now: float) -> None:
        super()._accept_winner(winner, now)
        self._cancel_hedge_timer()
        hedge_attempt, self._hedge_attempt = self._hedge_attempt, None
        if hedge_attempt is None:
            return
        loser = self.attempt if winner is hedge_attempt else hedge_attempt
        if winner is hedge_attempt:
            self._promote_hedge(hedge_attempt)
        if loser is not None and not loser.is_done:
            self._cancel_loser(loser)

    def _cancel_loser(self, loser: Attempt) -> None:
        """Cancel an attempt, and bill the output that it has sent so far. No output costs nothing."""
        loser.cancel()
        self._report_attempt(loser, "hedge_loss")
        if loser.received_bytes and (part := self._bill_part(loser, loser.usage)).usage.completion_tokens:
            self.hedge_losses = (part,)
        context, now = self._context, self._context.clock.now()
        context.load_balancer.record_hedge_loss(
            loser.backend, now - loser.sent_at, now, stream=self._routing_info.stream
        )
