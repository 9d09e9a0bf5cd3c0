"""Retries and fallbacks of one request over its backends, in order. `hedging` adds parallel attempts.

    attempting ── response, or first chunk of a stream ──> won
      │ ^ └── failure ── retry, or next backend ──┐
      │ └─────────────────────────────────────────┘
      └────── no backend left ──> failed

The owner gets the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from svc.dialects.base import EncodedRequest, EncodedResponse, RequestBody
from svc.dialects.endpoint import Codec, Endpoint
from svc.dialects.resume import ResumableTranslation
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_features import select_dialect
from svc.errors import ProviderFailed, RateLimited, SvcError
from svc.gateway.accounting.bill import PartialUsage
from svc.gateway.accounting.record import AttemptOutcome, AttemptRecord
from svc.gateway.proxy.attempt import Attempt, AttemptOwner
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.circuit_breaker import UNTIMED
from svc.gateway.routing.failures import (
    MAX_RETRY_WAIT_SECONDS,
    RETRY_BACKOFF,
    AttemptFailure,
    RetryDecision,
)
from svc.gateway.routing.local_requests import check_local_request
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.wire.usage import TokenUsage

log = logging.getLogger("svc.gateway")


class RetryOwner(ABC):
    """The exchange that a retry loop belongs to."""

    __slots__ = ()

    request_id: str
    forwarded_head: ForwardedHead | None
    """The part of the client's request head that is forwarded to a backend with the same dialect."""
    trace_context: bytes
    """The header lines of the client's trace, which are forwarded to every backend."""
    key_id: str
    """The id of the client's key. Backends with a queue divide their time between keys."""

    @abstractmethod
    def on_response(self, response: EncodedResponse, now: float) -> None:
        """Handle a complete response that is not a stream. `now` is loop time in seconds."""

    @abstractmethod
    def on_stream_chunk(self, attempt: Attempt, chunk: bytes, transform: StreamTransform) -> None:
        """Handle the first chunk of a stream, or the last one (`transform.has_ended`)."""

    @abstractmethod
    def on_intermediate_chunk(self, chunk: bytes) -> None:
        """Handle the last chunk of an attempt whose stream another backend resumes. It may be empty."""

    @abstractmethod
    def on_silence(self) -> None:
        """Send a keep-alive if the response is a stream that has started."""

    @abstractmethod
    def on_failure(self, error: SvcError) -> None:
        """Handle the error after the last attempt."""

    @abstractmethod
    def run_guarded(self, step: Callable[[], None]) -> None:
        """Run a step, and send its error to the client as a response."""


class RetryLoop(AttemptOwner):
    """Runs the attempts of one request.

    `attempt_count` is the value of x-svc-attempts. `attempt` is the attempt whose response the client gets.
    """

    _decoded_request: Any = None
    """The decoded request body. None until a codec has to translate it."""
    _backend_index: int = 0
    _backend_attempt_count: int = 0
    _backoff_seconds: float = 0.0
    _has_winner: bool = False
    _is_paused: bool = False
    """Whether the client connection's write buffer is full."""
    _stop_failure: AttemptFailure | None = None
    """The argument of `stop`: why the gateway ended the request."""
    _used_accounts: tuple[Backend, ...] = ()
    """Accounts with an attempt, if a backend has several."""
    _interrupted_stream: ResumableTranslation | None = None
    """The part of an interrupted stream that the client has received."""
    _interrupted_attempt: Attempt | None = None
    """The attempt that sent the last part of the interrupted stream."""
    _retry_timer: asyncio.TimerHandle | None = None
    attempt: Attempt | None = None
    attempt_count: int = 0
    attempt_records: tuple[AttemptRecord, ...] = ()
    """Attempts that ended. Empty for one attempt that succeeded: the record of the request describes it."""
    last_attempt: AttemptRecord | None = None
    """The last attempt that ended."""
    dropped_fields: tuple[str, ...] = ()
    """Fields of the request that the backend's dialect lacks."""
    backend: Backend | None = None
    """The backend of the winning attempt, or else of the last one."""
    interrupted_parts: tuple[PartialUsage, ...] = ()
    """Usage of the attempts before the stream was resumed."""
    hedge_losses: tuple[PartialUsage, ...] = ()
    """Usage of a cancelled hedge attempt."""
    resume_count: int = 0
    """How often the stream was resumed."""

    def __init__(
        self,
        owner: RetryOwner,
        context: GatewayContext,
        endpoint: Endpoint,
        routing_info: RoutingInfo,
        body: RequestBody,
        backends: tuple[Backend, ...],
    ) -> None:
        self._owner = owner
        self._context = context
        self._endpoint = endpoint
        self._routing_info = routing_info
        self._body = body
        self._backends = backends
        self._min_tokens_per_second = context.config.current.policy.min_pace
        self._can_resume = context.config.current.policy.resumes_streams and routing_info.stream

    def start(self, now: float) -> None:
        """Start the first attempt. `now` is loop time in seconds. Raises SvcError if no backend can be used."""
        load_balancer = self._context.load_balancer
        if len(self._backends) > 1 and load_balancer.strategies.is_enabled:
            self._backends = load_balancer.strategies.order(self._backends, self._body, self._routing_info, now)
        self._backend_index = load_balancer.select_first(self._backends, self._body, self._routing_info, now)
        try:
            self._attempt_current_backend(now)
        except SvcError:
            if len(self._backends) == 1 or not self._start_at_other_backend(now):
                raise

    def _start_at_other_backend(self, now: float) -> bool:
        """Start at another backend, because the dialect of the selected one cannot express the request.

        Return False if there is none. While the first backend is usable, only others of the same model replace it.
        Raises SvcError if only unusable backends are left, and they fail at once.
        """
        rejected_index = self._backend_index
        end = len(self._backends)
        while rejected_index == 0 and self._backends[end - 1].model_id != self._backends[0].model_id:
            end -= 1
        while (index := self._next_backend_index(self._backend_index, end)) >= 0:
            if self._try_backend_at(index):
                return True
        if rejected_index == 0:
            return False
        skipped = self._backends[:rejected_index]
        self._backend_index = self._context.load_balancer.select_last_resort(skipped)
        self._attempt_current_backend(now)
        return True

    def pause(self) -> None:
        """Stop reading the response, because the client reads slowly."""
        self._is_paused = True
        if self.attempt is not None:
            self.attempt.pause()

    def resume(self) -> None:
        """Continue reading the response."""
        self._is_paused = False
        if self.attempt is not None:
            self.attempt.resume(self._context.clock.now())

    def stop(self, failure: AttemptFailure) -> None:
        """End the request with an error. The current attempt counts as failed."""
        self._stop_failure = failure
        if self.attempt is not None and not self.attempt.is_done:
            self.attempt.stop(failure)
        elif self._interrupted_stream is not None or not self._has_winner:
            self._give_up(failure.error)

    def close(self) -> None:
        """Cancel the attempt and the timer that are still active."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        attempt, self.attempt = self.attempt, None
        self._interrupted_attempt = None  # breaks a reference cycle
        if attempt is None:
            return
        if attempt.is_done:
            # Freed now, not at the next tick: the next request reuses the memory while the CPU caches it.
            self._context.attempts.discard(attempt)
        elif not attempt.is_draining:
            attempt.cancel()
            if not self._has_winner or self._awaits_resume:
                self._context.load_balancer.record_abandoned(attempt.backend)

    # one attempt

    def _attempt_current_backend(self, now: float) -> None:
        self._retry_timer = None
        backend = self._backends[self._backend_index]
        if backend.queue is not None:
            refusal = backend.queue.find_refusal(self._owner.key_id)
            if refusal is not None:
                self._context.load_balancer.record_abandoned(backend)
                self._advance_backend(AttemptFailure(refusal, RetryDecision.NEXT_BACKEND))
                return
        codec, encoded = self._encode_request(backend)
        self.dropped_fields = encoded.dropped_fields
        if encoded.local_response is not None:
            self._respond_locally(backend, encoded.local_response, now)
            return
        self.attempt = self._launch_attempt(backend, codec, encoded, now)

    def _respond_locally(self, backend: Backend, response: EncodedResponse, now: float) -> None:
        """Send a response that the gateway has made itself. It counts as no attempt."""
        self._context.load_balancer.record_abandoned(backend)  # it may have been the probe of a circuit breaker
        self.backend = backend
        self._has_winner = True
        self._owner.on_response(response, now)

    def _launch_attempt(self, backend: Backend, codec: Codec, encoded: EncodedRequest, now: float) -> Attempt:
        context = self._context
        if backend.account_backends:
            backend = context.load_balancer.select_account(backend, self._used_accounts, now)
            self._used_accounts = (*self._used_accounts, backend)
        attempt = self._create_attempt(backend, codec)
        self.backend = backend
        self.attempt_count += 1
        self._backend_attempt_count += 1
        attempt.is_retry = self.attempt_count > 1
        if self._backend_attempt_count == 1:
            context.load_balancer.record_request(backend, now)
        context.attempts.add(attempt)
        forwarded_head = self._owner.forwarded_head if codec.forwards_head else None
        trace_context = self._owner.trace_context
        if encoded.header_lines:
            forwarded_head = ForwardedHead(b"", encoded.header_lines)
            if backend.kind == "speech" and backend.provider_name == LOCAL_PROVIDER:
                trace_context = b"%bx-request-id: %b\r\n" % (trace_context, self._owner.request_id.encode())
        attempt.send(context.upstream, encoded, now, forwarded_head, trace_context, self._owner.key_id)
        if self._interrupted_attempt is not None:
            attempt.silent_since = self._interrupted_attempt.silent_since
        if context.load_balancer.strategies.tracks_load:
            attempt.set_load(context.load_balancer.strategies.load_of(backend))
        return attempt

    def _create_attempt(self, backend: Backend, codec: Codec) -> Attempt:
        routing_info, policy = self._routing_info, self._context.config.current.policy
        transform = self._resumable_transform(codec) if self._can_resume else None
        attempt = Attempt(self, backend, codec, policy, routing_info, self._owner.request_id, transform)
        if self._min_tokens_per_second and routing_info.stream and routing_info.has_completion:
            attempt.set_min_pace(self._min_tokens_per_second)
        if codec.requires_usage:
            attempt.estimate_missing_usage(self._body.raw)
        if backend.origin.local_model:
            attempt.local_request = self._body.raw
        return attempt

    def _encode_request(self, backend: Backend) -> tuple[Codec, EncodedRequest]:
        """Return the codec of an attempt and the request for the backend, whose accounts all get the same request.

        Raises InvalidRequest if the backend's dialect cannot express the request.
        """
        body, info, profile = self._body, self._routing_info, backend.profile
        try:
            codec = self._select_codec(backend)
            if self._interrupted_stream is not None:
                encoded = codec.encode_resume_request(self._interrupted_stream, profile, self._decode_request)
            else:
                encoded = codec.encode_request(body, info, profile, self._decode_request)
            if backend.origin.local_model:
                check_local_request(encoded, body, info, backend.context_window, codec.map_field_name)
            if codec.needs_request:
                codec = codec.for_request(self._decode_request, profile)
        except SvcError:
            self._context.load_balancer.record_abandoned(backend)  # it may have been the probe of a circuit breaker
            raise
        return codec, encoded

    def _select_codec(self, backend: Backend) -> Codec:
        dialect, profile = backend.dialect, backend.profile
        if self._interrupted_stream is not None:
            return self._endpoint.select_resume_codec(dialect, profile)
        if profile.lacks_features:
            dialect = select_dialect(dialect, profile, self._endpoint, self._body, self._decode_request)
        return self._endpoint.select_codec(dialect, profile)

    def _decode_request(self) -> Any:
        if self._decoded_request is None:
            self._decoded_request = self._endpoint.decode_request(self._body)
        return self._decoded_request

    def _retry_now(self) -> None:
        self._owner.run_guarded(lambda: self._attempt_current_backend(self._context.clock.now()))

    def _accept_winner(self, winner: Attempt, now: float) -> None:
        """Record the first chunk of a stream, or another complete response, as the success of the attempt."""
        self._has_winner = True
        context = self._context
        is_metered: bool = self._routing_info.is_metered
        seconds = now - winner.sent_at if is_metered else UNTIMED
        context.load_balancer.record_success(winner.backend, seconds, now, stream=self._routing_info.stream)
        if winner.backend.account_number and is_metered:
            context.load_balancer.record_rate_limits(winner.backend, winner.response_headers, now)

    def _log_provider_error(self, attempt: Attempt, error: SvcError) -> None:
        """Log the error, unless the gateway stopped the attempt for a reason other than a timeout."""
        context = self._context
        if self._stop_failure is None or self._stop_failure.counts_as_outage:
            context.upstream_error_log.log_error(
                attempt.backend.provider_name, error, self._owner.request_id, context.clock.now()
            )

    def report_abandoned(self) -> None:
        """Report the attempts that `close` cancels. Call this before the request's end is reported."""
        attempt = self.attempt
        if attempt is not None and not attempt.is_done and not attempt.is_draining:
            self._report_attempt(attempt, "abandoned")

    def _report_attempt(
        self,
        attempt: Attempt,
        outcome: AttemptOutcome,
        code: str | None = None,
        *,
        now: float = 0.0,
        is_retry: bool | None = None,
    ) -> None:
        """Tell the observers that an attempt ended, and keep it for the ledger.

        `now` is loop time, read from the clock if it is left out.
        """
        context, backend = self._context, attempt.backend
        is_recorded = outcome != "ok" or self.attempt_count > 1 or attempt.connect_seconds is not None
        if not is_recorded and not context.observers.on_attempt:
            return
        ended_at = now or context.clock.now()
        record = AttemptRecord(
            self._owner.request_id,
            backend.provider_name,
            backend.model_id,
            backend.account_number or None,
            outcome,
            code,
            attempt.http_status or None,
            (ended_at - attempt.sent_at) * 1000,
            is_retry=attempt.is_retry if is_retry is None else is_retry,
            ended_at=ended_at,
            connect_seconds=attempt.connect_seconds,
        )
        if is_recorded:
            self.attempt_records = (*self.attempt_records, record)
        self.last_attempt = record
        context.observers.report_attempt(record)

    def _bill_part(self, attempt: Attempt, reported_usage: TokenUsage | None) -> PartialUsage:
        usage, is_estimated = attempt.billable_usage(reported_usage, self._body.raw)
        return PartialUsage(attempt.backend, usage, is_estimated)

    # AttemptOwner

    def on_attempt_resend(self, attempt: Attempt) -> None:
        self.attempt_count += 1
        self._report_attempt(attempt, "failed", ProviderFailed.code, is_retry=False)

    def on_attempt_silent(self) -> None:
        self._owner.on_silence()

    def on_attempt_failed(self, attempt: Attempt, failure: AttemptFailure) -> None:
        self._report_attempt(attempt, "failed", failure.error.code)
        self._log_provider_error(attempt, failure.error)
        if attempt.backend.account_number and self._routing_info.is_metered:
            self._context.load_balancer.record_rate_limits(
                attempt.backend, attempt.response_headers, self._context.clock.now()
            )
        self._retry_or_advance(attempt, failure)

    def _retry_or_advance(self, attempt: Attempt, failure: AttemptFailure) -> None:
        """Retry after a failed attempt, use the next backend, or give up."""
        context, now = self._context, self._context.clock.now()
        if self._has_other_account(failure, now):
            self._record_failure(attempt, failure, now)
            self._retry_now()
        elif self._can_retry(failure) and context.load_balancer.acquire_retry(attempt.backend, now):
            self._backoff_seconds = max(RETRY_BACKOFF.decorrelated(self._backoff_seconds), failure.retry_after or 0.0)
            self._retry_timer = context.clock.loop.call_later(self._backoff_seconds, self._retry_now)
        else:
            self._record_failure(attempt, failure, now)
            self._owner.run_guarded(lambda: self._advance_backend(failure))

    def _record_failure(self, attempt: Attempt, failure: AttemptFailure, now: float) -> None:
        """Record the failure of a backend. Providers limit the rate of token counts separately from that of chats."""
        if isinstance(failure.error, RateLimited) and not self._routing_info.is_metered:
            self._context.load_balancer.record_abandoned(attempt.backend)
        else:
            self._context.load_balancer.record_failure(attempt.backend, failure, now)

    def _advance_backend(self, failure: AttemptFailure) -> None:
        """Use the next backend, or give up. Skip a backend whose dialect cannot express the request.

        The gateway itself writes the request that resumes a stream. A backend that rejects it is skipped as well:
        some models accept no partial assistant message.
        """
        if failure.retry_decision is not RetryDecision.GIVE_UP or self._interrupted_stream is not None:
            while (index := self._next_backend_index(self._backend_index)) >= 0:
                if self._try_backend_at(index):
                    return
        self._give_up(failure.error)

    def _try_backend_at(self, index: int) -> bool:
        """Start an attempt at a backend. Return False if the backend's dialect cannot express the request."""
        self._backend_index = index
        self._backend_attempt_count = 0
        self._backoff_seconds = 0.0
        try:
            self._attempt_current_backend(self._context.clock.now())
        except SvcError:
            return False
        return True

    def _give_up(self, error: SvcError) -> None:
        interrupted, attempt = self._interrupted_stream, self._interrupted_attempt
        if interrupted is None or attempt is None:
            self._owner.on_failure(error)
            return
        self.attempt, self.backend = attempt, attempt.backend  # no backend resumed the stream
        self.interrupted_parts = self.interrupted_parts[:-1]
        if self._stop_failure is None and interrupted.error is not None:
            # Not the error of the failed resumption: a 429 there is not a limit of this request.
            error = interrupted.error
        self._owner.on_stream_chunk(attempt, interrupted.give_up(error), interrupted)

    def _can_retry(self, failure: AttemptFailure) -> bool:
        if failure.retry_decision is not RetryDecision.SAME_BACKEND or self._stop_failure is not None:
            return False
        return (
            self._backend_attempt_count <= self._context.config.current.policy.max_retries
            and (failure.retry_after or 0.0) <= MAX_RETRY_WAIT_SECONDS
        )

    def _has_other_account(self, failure: AttemptFailure, now: float) -> bool:
        """Whether another account can be used. Each account gets one attempt."""
        if failure.retry_decision is RetryDecision.GIVE_UP or self._stop_failure is not None:
            return False
        return self._context.load_balancer.has_other_account(
            self._backends[self._backend_index], self._used_accounts, now
        )

    def _next_backend_index(self, index: int, end: int | None = None) -> int:
        """Return the index of the next usable backend before `end`, or -1."""
        context = self._context
        if self._stop_failure is not None:
            return -1
        return context.load_balancer.select_next(
            self._backends[:end], index + 1, self._body, self._routing_info, context.clock.now()
        )

    def on_attempt_response(self, attempt: Attempt, response: EncodedResponse) -> None:
        now = self._context.clock.now()
        self._accept_winner(attempt, now)
        self._report_attempt(attempt, "ok", now=now)
        self._owner.on_response(response, now)

    def on_attempt_chunk(self, attempt: Attempt, chunk: bytes, transform: StreamTransform) -> None:
        if not self._has_winner:
            self._accept_winner(attempt, self._context.clock.now())
        elif self._awaits_resume:
            self._on_resumed(attempt)
        if transform.error is not None:
            failure = self._stop_failure or AttemptFailure(transform.error, RetryDecision.NEXT_BACKEND)
            self._report_attempt(attempt, "failed", transform.error.code)
            self._log_provider_error(attempt, transform.error)
            self._context.load_balancer.record_failure(
                attempt.backend, failure, self._context.clock.now(), already_counted=True
            )
            if isinstance(transform, ResumableTranslation):
                self._on_interrupted(attempt, chunk, transform, failure)
                return
        elif transform.has_ended:
            self._report_attempt(attempt, "ok")
        self._owner.on_stream_chunk(attempt, chunk, transform)

    # resuming an interrupted stream

    def _resumable_transform(self, codec: Codec) -> StreamTransform | None:
        """Return the transform of a stream that can be resumed, or that resumes another. None selects the default."""
        if self._interrupted_stream is not None:
            return codec.continue_stream(self._interrupted_stream)
        if len(self._backends) == 1:
            return None
        return codec.create_resumable_transform(self._routing_info, self._decode_request)

    @property
    def _awaits_resume(self) -> bool:
        """Whether the stream was interrupted, and no backend has resumed it yet."""
        return self.resume_count < len(self.interrupted_parts)

    def _on_resumed(self, attempt: Attempt) -> None:
        if self._is_paused:  # paused between the attempts
            attempt.pause()
        context, now = self._context, self._context.clock.now()
        context.load_balancer.record_success(attempt.backend, now - attempt.sent_at, now, stream=True)
        self.resume_count += 1
        log.info("request %s: resumed by %s", self._owner.request_id, attempt.backend.provider_name)

    def _on_interrupted(
        self, attempt: Attempt, chunk: bytes, transform: ResumableTranslation, failure: AttemptFailure
    ) -> None:
        """Resume the stream at the next backend, if there is one. The client gets no text twice."""
        self._interrupted_stream = transform
        if transform.is_resumable and self._stop_failure is None:
            self._interrupted_attempt = attempt
            self.interrupted_parts = (*self.interrupted_parts, self._bill_part(attempt, transform.usage))
            self._owner.on_intermediate_chunk(chunk)
            self._owner.run_guarded(lambda: self._advance_backend(failure))
        else:
            self._owner.on_stream_chunk(attempt, chunk + transform.give_up(failure.error), transform)
