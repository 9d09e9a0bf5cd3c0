"""One client request: limits, routing, attempts at backends, the response, and its record.

    start ── rejected, or a cache hit ───────────────> done      (no upstream request)
      └── attempting ─┬─ complete response ──────────> done
            ^   │     ├─ streaming ── end or error ──> done
            └───┘     └─ no backend left ────────────> done
           failure    on_disconnect, total timeout: from any state

An exchange runs in callbacks and has no asyncio task, which saves CPU time for each request. It runs in steps: those
of a batch of reads (`io_batch`) run together, step by step. Without a batch, each step follows the last one directly.

    request   ──> route ──> start attempts
    response  ──> record ──> send
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from svc.dialects.base import EncodedResponse, RequestBody
from svc.dialects.endpoint import Endpoint
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import EVENT_STREAM_CONTENT_TYPE, StreamTransform
from svc.dialects.validation import find_requested_model
from svc.errors import InternalError, InvalidRequest, ProviderFailed, RateLimited, SvcError
from svc.gateway.accounting.bill import Bill
from svc.gateway.accounting.record import RequestRecord, RequestStatus
from svc.gateway.cache.memory import CachedResponse
from svc.gateway.cache.recorder import ResponseRecorder
from svc.gateway.cache.response_cache import ResponseCache
from svc.gateway.limits.limit_errors import LimitReached
from svc.gateway.limits.reservation import Reservation
from svc.gateway.observability.observer import RequestStart
from svc.gateway.observability.request_content import ContentCapture, ContentSink, RequestContent
from svc.gateway.proxy.attempt import Attempt
from svc.gateway.proxy.billing import compute_bill
from svc.gateway.proxy.cached_response import ResponseReplay, backend_of_cached
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.proxy.downstream import Downstream
from svc.gateway.proxy.hedging import HedgedRetryLoop
from svc.gateway.proxy.retry import RetryLoop, RetryOwner
from svc.gateway.proxy.stored_state import StateResolution
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import AttemptFailure, RetryDecision, timeout_failure
from svc.gateway.stored_responses.description import build_stored_response
from svc.gateway.stored_responses.origins import ResponseOrigin
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.gateway.upstream.splice import StreamSink
from svc.wire.header_value import echoable_text
from svc.wire.key import ApiKey
from svc.wire.stored_response import StateReference
from svc.wire.usage import TokenUsage

log = logging.getLogger("svc.gateway")

_UNSAFE_FIELD_NAME_CHARS: Final = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_NO_BODY: Final = RequestBody(b"")
"""The body of a request that is rejected before its body is read."""
# The next step of an exchange.
_ROUTE: Final = 0
_START_ATTEMPTS: Final = 1
_RECORD_RESPONSE: Final = 2
_SEND_RESPONSE: Final = 3
_now: Final = time.monotonic  # a global, because the hot path saves the attribute lookup


class Exchange(RetryOwner):
    """Owns the retry loop of one request, and sends exactly one response to `downstream`."""

    forwarded_head: ForwardedHead | None = None
    trace_context: bytes = b""
    is_done: bool = False
    _first_byte_at: float = 0.0
    _sink: StreamSink
    """Receives the chunks of a stream."""
    _recorder: ResponseRecorder | None = None
    """The same object as `_sink` if the response is to be cached."""
    _content: RequestContent | None = None
    """Keeps the response for a span, if the request is sampled and `[telemetry] content` is true."""
    _reservation: Reservation | None = None
    _routing_info: RoutingInfo | None = None
    _response: EncodedResponse | None = None
    """The complete response, which the next steps record and send."""
    _next_step: int = _ROUTE
    _has_started_stream: bool = False
    _is_event_stream: bool = True
    """Whether the response that has started consists of events, and not of audio."""

    def __init__(
        self,
        context: GatewayContext,
        downstream: Downstream,
        endpoint: Endpoint,
        api_key: ApiKey,
        *,
        request_id: str,
        client_request_id: str | None,
    ) -> None:
        self._context = context
        self._downstream = downstream
        self._endpoint = endpoint
        self._api_key = api_key
        self.key_id = api_key.id
        self.request_id = request_id
        self.client_request_id = client_request_id
        self._started_at = _now()
        self.deadline = self._started_at + context.config.current.policy.total_timeout
        self._response_source: RetryLoop | ResponseReplay | None = None
        self._sink = downstream
        self._body = _NO_BODY
        if context.observers.on_start:
            context.observers.report_start(RequestStart(request_id, client_request_id, api_key, endpoint.path))

    def start(self, body: bytes) -> None:
        """Process a request with this body. Send an error response at once if the request is invalid."""
        self._body = RequestBody(body)
        self._context.exchanges.add(self)
        if self._context.trace_content is not None:
            self._keep_content(self._context.trace_content, body)
        self._context.upstream.io_batch.schedule_step(self)

    def _schedule_step(self, step: int) -> None:
        """Run a step after the present one of the batch's other requests."""
        self._next_step = step
        self._context.upstream.io_batch.schedule_step(self)

    def run_step(self) -> None:
        """Run the next step. Send an error response for any exception, as `run_guarded` does."""
        if self.is_done:
            return
        try:
            if self._next_step == _ROUTE:
                self._check_and_route()
            elif self._next_step == _START_ATTEMPTS:
                self._start_attempts()
            elif self._next_step == _RECORD_RESPONSE:
                self._record_response()
            else:
                self._send_response()
        except SvcError as error:
            self.reject(error)
        except Exception:  # noqa: BLE001
            self.report_internal_error()

    def _keep_content(self, capture: ContentCapture, body: bytes) -> None:
        content = capture.start(self.request_id, self._endpoint.path, self.trace_context, body)
        if content is not None:
            self._content = content
            self._sink = ContentSink(self._downstream, content)

    def run_guarded(self, step: Callable[[], None]) -> None:
        """Run a step. Send an error response for any exception, so that the connection stays usable."""
        try:
            step()
        except SvcError as error:
            self.reject(error)
        except Exception:  # noqa: BLE001
            self.report_internal_error()

    def _check_and_route(self) -> None:
        if len(self._body.raw) >= MIN_SKELETON_BODY_BYTES:  # a large body is not parsed if the key is over its limit
            self._context.rate_limiter.check_request_rate(self._api_key)
        routing_info = self._routing_info = self._endpoint.decode_routing_info(self._body)
        backends = self._context.router.route(routing_info.model, self._api_key, self._endpoint.model_kind)
        self._context.ledger.ensure_accepting()
        if routing_info.state is not None or routing_info.can_store:
            self._resolve_state(routing_info, backends)
        else:
            self._look_up_or_start(routing_info, backends)

    def _resolve_state(self, routing_info: RoutingInfo, backends: tuple[Backend, ...]) -> None:
        """Find the earlier responses that the request refers to, then continue."""
        store = self._context.response_store if self._context.config.current.settings.responses.store else None
        self._body.is_stored = routing_info.can_store and store is not None
        if routing_info.state is None:
            self._look_up_or_start(routing_info, backends)
            return

        origins, on_resolved = self._context.response_origins, partial(self._on_state_resolved, routing_info)
        StateResolution(origins, routing_info.state, self._body, self._api_key, backends, on_resolved).start(store)

    def _on_state_resolved(self, routing_info: RoutingInfo, resolved: tuple[Backend, ...] | SvcError) -> None:
        if isinstance(resolved, SvcError):
            self.reject(resolved)
        elif not self.is_done:
            self.run_guarded(partial(self._look_up_or_start, routing_info, resolved))

    def _look_up_or_start(self, routing_info: RoutingInfo, backends: tuple[Backend, ...]) -> None:
        cache = self._context.config.current.cache
        is_cacheable = self._endpoint.cache_route and not self._body.is_stored and self._body.earlier_items is None
        if cache is None or not is_cacheable:
            self._start_retry_loop(routing_info, backends)
        else:
            self._look_up_cached(cache, routing_info, backends)

    def _look_up_cached(self, cache: ResponseCache, routing_info: RoutingInfo, backends: tuple[Backend, ...]) -> None:
        """Send the cached response if a backend in `backends` produced it. Otherwise start the attempts."""
        cache_key = cache.cache_key(self._api_key, self._endpoint.cache_route, self._body.raw, self.forwarded_head)
        if cache_key is None:
            self._start_retry_loop(routing_info, backends)
            return

        start = partial(self._replay_or_start, cache, cache_key, routing_info, backends)
        cache.look_up(cache_key, partial(self._on_lookup, start))

    def _on_lookup(self, start: Callable[[CachedResponse | None], None], cached: CachedResponse | None) -> None:
        if not self.is_done:
            self.run_guarded(partial(start, cached))

    def _replay_or_start(
        self,
        cache: ResponseCache,
        cache_key: bytes,
        routing_info: RoutingInfo,
        backends: tuple[Backend, ...],
        cached: CachedResponse | None,
    ) -> None:
        backend = backend_of_cached(cached, backends)
        cache.count_lookup(is_hit=backend is not None)
        if cached is not None and backend is not None:
            self._replay_cached(cached, backend)
        else:
            self._recorder = self._sink = cache.start_recording(cache_key, self._sink)
            self._start_retry_loop(routing_info, backends)

    def _replay_cached(self, cached: CachedResponse, backend: Backend) -> None:
        """Send a cached response, which costs no tokens and no money."""
        replay = ResponseReplay(
            self, cached, backend, stream=self._routing_info is not None and self._routing_info.stream
        )
        self._count_request(partial(self._start_replay, replay))

    def _start_replay(self, replay: ResponseReplay) -> None:
        self._response_source = replay
        replay.start(_now())

    def _start_retry_loop(self, routing_info: RoutingInfo, backends: tuple[Backend, ...]) -> None:
        """Start the attempts when the limits of the key admit the request."""
        retry_loop: RetryLoop
        if len(backends) > 1 and self._context.config.current.policy.hedge_after > 0:
            retry_loop = HedgedRetryLoop(self, self._context, self._endpoint, routing_info, self._body, backends)
        else:
            retry_loop = RetryLoop(self, self._context, self._endpoint, routing_info, self._body, backends)
        self._response_source = retry_loop
        if not self._context.rate_limiter.has_limits(self._api_key):
            self._schedule_step(_START_ATTEMPTS)
        elif routing_info.is_metered:
            self._context.rate_limiter.admit(self._api_key, routing_info, self._body, backends, self._on_admission)
        else:
            self._context.rate_limiter.admit_unmetered(self._api_key, self._on_admission)

    def _on_admission(self, reservation: Reservation | SvcError) -> None:
        """Start the attempts, or send the error if a limit of the key is reached."""
        if isinstance(reservation, SvcError):
            self._send_error(reservation)
        elif self.is_done:  # the client disconnected while the limits were checked
            reservation.commit(0, 0.0)
        else:
            self._reservation = reservation
            self._schedule_step(_START_ATTEMPTS)

    def _start_attempts(self) -> None:
        if self._response_source is not None:
            self._response_source.start(_now())

    def reject(self, error: SvcError) -> None:
        """Send an error response. A request without a reservation still counts for the key's `rpm` limit.

        A LimitReached comes from counters that have counted the request already.
        """
        if self._reservation is not None or isinstance(error, LimitReached):
            self._send_error(error)
        else:
            self._count_request(lambda: self._send_error(error))

    def _count_request(self, step: Callable[[], None]) -> None:
        """Count a request without a backend, then run `step`, or send the error if the limit is reached."""
        if self._context.rate_limiter.has_request_limit(self._api_key) and not self.is_done:
            self._context.exchanges.add(self)
            self._context.rate_limiter.count_request(self._api_key, partial(self._on_counted, step))
        else:
            step()

    def _on_counted(self, step: Callable[[], None], reservation: Reservation | SvcError) -> None:
        if isinstance(reservation, SvcError):
            self._send_error(reservation)
        elif self.is_done:  # the client disconnected while the limits were checked
            reservation.commit(0, 0.0)
        else:
            self._reservation = reservation
            self.run_guarded(step)

    def report_internal_error(self) -> None:
        """Log the current exception with its traceback. The client gets only the request id."""
        log.exception("error in request %s", self.request_id)
        self._send_error(InternalError(f"Internal error. Report it with the request id {self.request_id}."))

    def on_disconnect(self) -> None:
        """Cancel the request, because the client has disconnected."""
        if not self.is_done:
            if isinstance(self._response_source, HedgedRetryLoop):
                self._response_source.bill_hedge()
            self._record_outcome("client_closed", 499, self._attempt.usage if self._attempt is not None else None)
            self._finish()

    @property
    def is_streaming(self) -> bool:
        """Whether the response is a stream that has started."""
        return self._has_started_stream and not self.is_done

    def pause(self) -> None:
        """Stop reading the response, because the client reads slowly."""
        if self._response_source is not None:
            self._response_source.pause()

    def resume(self) -> None:
        """Continue reading the response."""
        if self._response_source is not None:
            self._response_source.resume()

    def check_timeouts(self, now: float) -> None:
        """Stop the request if the total timeout has passed. `now` is loop time in seconds."""
        if now >= self.deadline:
            self.stop(timeout_failure("to complete the response"))

    def stop(self, failure: AttemptFailure) -> None:
        """End the request with an error, in any state."""
        if self.is_done:
            return
        if self._response_source is not None:
            self._response_source.stop(failure)
        else:
            self._send_error(failure.error)

    # RetryOwner

    def on_silence(self) -> None:
        if self.is_streaming and self._is_event_stream:
            self._sink.write_keep_alive(self._endpoint.keep_alive_event)

    def on_failure(self, error: SvcError) -> None:
        self._send_error(error)

    def on_response(self, response: EncodedResponse, now: float) -> None:
        if response.native_id:
            self._remember_origin(response.native_id)
        if self._body.is_stored:
            self._store_response(response.body, lambda: self._complete(response, now))
        else:
            self._complete(response, now)

    def on_stream_chunk(self, attempt: Attempt, chunk: bytes, transform: StreamTransform) -> None:
        if not self._has_started_stream and transform.native_id:
            self._remember_origin(transform.native_id)
        self._start_stream(transform.content_type)
        attempt.sink = self._sink
        if not transform.has_ended:
            self._sink.write(chunk, False)
        elif self._body.is_stored:
            self._store_response(transform.final_response, lambda: self._end_stream(chunk, transform))
        else:
            self._end_stream(chunk, transform)

    def on_intermediate_chunk(self, chunk: bytes) -> None:
        self._start_stream()
        if chunk:
            self._sink.write(chunk, False)

    # ReplayOwner, together with `on_intermediate_chunk`

    def on_replay_end(self, data: bytes, error: SvcError | None) -> None:
        if error is not None:
            self._record_outcome("cut", 200, None)
            self._downstream.write(self._endpoint.encode_stream_error(error), True)
        elif self._routing_info is not None and self._routing_info.stream:
            self._start_stream()
            self._record_outcome("ok", 200, None)
            self._downstream.write(data, True)
        else:
            self._first_byte_at = _now()
            if self._context.observers.on_first_byte:
                self._report_first_byte()
            self._record_outcome("ok", 200, None)
            self._downstream.send_response(200, self._build_headers(), data)
        self._finish()

    # the response

    def _start_stream(self, content_type: str = EVENT_STREAM_CONTENT_TYPE) -> None:
        """Send the head of the stream, unless it was sent before."""
        if not self._has_started_stream:
            self._has_started_stream = True
            self._is_event_stream = content_type == EVENT_STREAM_CONTENT_TYPE
            self._first_byte_at = _now()
            if self._context.observers.on_first_byte:
                self._report_first_byte()
            self._downstream.start_stream(self._build_headers(), content_type)

    def _report_first_byte(self) -> None:
        self._context.observers.report_first_byte(self.request_id, self._first_byte_at - self._started_at)

    def _complete(self, response: EncodedResponse, now: float) -> None:
        self._response, self._first_byte_at = response, now
        self._schedule_step(_RECORD_RESPONSE)

    def _record_response(self) -> None:
        response = self._response
        if response is None:
            return
        if self._context.observers.on_first_byte:
            self._report_first_byte()
        if self._content is not None:
            self._content.append(response.body)
        record = self._settle("ok", 200, response.usage)
        if record is not None:
            self._context.observers.report_end_in_step(record)
        self._schedule_step(_SEND_RESPONSE)

    def _send_response(self) -> None:
        response = self._response
        if response is None:
            return
        if self._recorder is not None and not response.headers:  # the cache does not keep headers
            self._recorder.append(response.body)
            self._cache_response(self._recorder)
        self._downstream.send_response(200, self._build_headers() + response.headers, response.body)
        self._finish()

    def _end_stream(self, chunk: bytes, transform: StreamTransform) -> None:
        if self._content is not None:
            self._content.append(chunk)
        self._record_outcome("cut" if transform.error else "ok", 200, transform.usage, transform.error)
        if transform.error is not None and not transform.can_encode_errors:
            self._downstream.abort_stream()
        else:
            self._sink.write(chunk, True)
        if self._recorder is not None and transform.error is None and transform.finish_reason is not None:
            self._cache_response(self._recorder)
        self._finish()

    def _cache_response(self, recorder: ResponseRecorder) -> None:
        """Cache a complete response, unless several backends produced it."""
        source = self._response_source
        if source is not None and source.backend is not None and not source.resume_count:
            recorder.finish(source.backend, source.dropped_fields)

    def _store_response(self, response: bytes, on_done: Callable[[], None]) -> None:
        """Store a response, then call `on_done`, also if the store fails: the client has paid for the response."""
        backend, settings = self._backend, self._context.config.current.settings.responses
        store = self._context.response_store
        if backend is None or store is None or not response:
            on_done()
            return
        build = partial(
            build_stored_response,
            self._endpoint,
            self._body.raw,
            response,
            key=self._api_key,
            backend=backend,
            state=self._state,
            settings=settings,
        )
        store.save(build, lambda error: None if self.is_done else self.run_guarded(on_done))

    def _remember_origin(self, native_id: str) -> None:
        """Remember who made a response of a provider, so that the next request of this key can go there."""
        backend = self._backend
        if backend is not None:
            origin = ResponseOrigin(backend.provider_name, backend.provider.account_name)
            self._context.response_origins.remember(self._api_key.owner_id, native_id, origin)

    @property
    def _state(self) -> StateReference | None:
        return self._routing_info.state if self._routing_info is not None else None

    # ending

    def _send_error(self, error: SvcError) -> None:
        if self.is_done:
            return
        if self._has_started_stream and self._response_source is not None:
            # The head has been sent, so the error is the last event of the stream.
            self._response_source.stop(AttemptFailure(error, RetryDecision.GIVE_UP))
            return
        self._record_outcome("error", error.http_status, None, error)
        headers = self._build_headers() + "".join(f"{name}: {value}\r\n" for name, value in error.http_headers.items())
        if self._backend is not None or isinstance(error, ProviderFailed):
            headers += "x-should-retry: false\r\n"
        self._downstream.send_response(error.http_status, headers, self._endpoint.encode_error(error, self.request_id))
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self._context.exchanges.discard(self)
        source, self._response_source = self._response_source, None  # breaks a reference cycle
        if source is not None:
            source.close()
        if self._recorder is not None:
            self._recorder.discard()

    @property
    def _attempt(self) -> Attempt | None:
        """The attempt whose response the client gets, if there is one."""
        return self._response_source.attempt if self._response_source is not None else None

    @property
    def _backend(self) -> Backend | None:
        """The backend of the winning attempt, or else of the last one. None before the first attempt."""
        return self._response_source.backend if self._response_source is not None else None

    def _build_headers(self) -> str:
        lines, alias_header = f"x-request-id: {self.request_id}\r\n", self._endpoint.request_id_header
        lines += f"{alias_header}: {self.request_id}\r\n" if alias_header else ""
        lines += f"x-client-request-id: {self.client_request_id}\r\n" if self.client_request_id else ""
        lines += self._reservation.header_lines if self._reservation is not None else ""
        source = self._response_source
        if source is None or source.backend is None:
            return lines
        lines += f"x-svc-provider: {source.backend.provider_name}\r\nx-svc-attempts: {source.attempt_count}\r\n"
        if self._context.config.current.cache is not None:
            lines += f"x-svc-cache: {'hit' if isinstance(source, ResponseReplay) else 'miss'}\r\n"
        if source.dropped_fields:
            lines += _dropped_fields_header(source.dropped_fields)
        return lines

    def _find_rejected_model(self, error: SvcError | None) -> str | None:
        """Return the model of a request that was rejected because of another field."""
        return find_requested_model(self._body.raw) if isinstance(error, InvalidRequest) else None

    def _record_outcome(
        self, status: RequestStatus, http_status: int, reported_usage: TokenUsage | None, error: SvcError | None = None
    ) -> None:
        """Compute the bill, and report the end to the observers. Call this before the last byte is sent."""
        record = self._settle(status, http_status, reported_usage, error)
        if record is not None:
            self._context.observers.report_end(record)

    def _settle(
        self, status: RequestStatus, http_status: int, reported_usage: TokenUsage | None, error: SvcError | None = None
    ) -> RequestRecord | None:
        """Compute the bill, and commit the reservation to it. Return the record, or None if no observer needs it."""
        context, source, now = self._context, self._response_source, _now()
        if status != "ok" and isinstance(source, RetryLoop):
            source.report_abandoned()
        is_metered = self._routing_info is None or self._routing_info.is_metered
        bill = compute_bill(source, status, reported_usage, self._body.raw, context.ledger, is_metered=is_metered)
        if self._reservation is not None:
            usage = bill.usage
            self._reservation.commit(
                usage.prompt_tokens + usage.completion_tokens if usage else 0, bill.cost_usd or 0.0
            )
        return self._create_record(status, http_status, bill, error, now) if context.observers.on_end else None

    def _create_record(
        self, status: RequestStatus, http_status: int, bill: Bill, error: SvcError | None, now: float
    ) -> RequestRecord:
        """Return the record of the request, which ends at `now` (`time.monotonic`)."""
        source = self._response_source
        backend = source.backend if source is not None else None
        upstream_request_id: bytes | None = None
        attempt = source.attempt if source is not None else None
        if attempt is not None:
            upstream_request_id = attempt.response_headers.get(attempt.backend.dialect.request_id_header)
        return RequestRecord(
            self._api_key,
            self._endpoint.path,
            self._routing_info.model if self._routing_info else self._find_rejected_model(error),
            status,
            http_status,
            time=self._context.ledger.timestamp(),
            request_id=self.request_id,
            client_request_id=self.client_request_id,
            model=backend.model_id if backend else None,
            provider=backend.provider_name if backend else None,
            attempt_count=source.attempt_count if source is not None else 0,
            duration_seconds=now - self._started_at,
            first_byte_seconds=self._first_byte_at - self._started_at if self._first_byte_at else None,
            code=error.code if error is not None else None,
            bill=bill,
            from_cache=isinstance(source, ResponseReplay),
            resume_count=source.resume_count if source is not None else 0,
            attempt_records=source.attempt_records if source is not None else (),
            last_attempt=source.last_attempt if source is not None else None,
            limit_name=error.limit if error is not None and isinstance(error, RateLimited) else "",
            limit_state=error.state if isinstance(error, LimitReached) else None,
            error_message=error.message if error is not None else "",
            client_field=self._downstream.client_field,
            upstream_request_id=echoable_text(upstream_request_id) if upstream_request_id else None,
            trace_context=self.trace_context,
        )


def _dropped_fields_header(field_names: Sequence[str]) -> str:
    """Return the header line with the request fields that were dropped or changed for the upstream."""
    return f"x-svc-dropped: {','.join(_UNSAFE_FIELD_NAME_CHARS.sub('?', name[:64]) for name in field_names[:32])}\r\n"
