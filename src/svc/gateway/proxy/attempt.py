"""One attempt at one backend: sends the request and reads the response, or reports an AttemptFailure.

waiting ── 200, event stream ──> streaming ── last event ──> draining ── on_end ──> done
   │ ├──── 200 ───────────────> collecting ── on_end ──> response reported
   │ └──── another status ────> collecting ── on_end ──> failed
   └────── connection lost, timeout ──> failed
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from io import BytesIO
from typing import Final

from svc.dialects.base import EncodedRequest, EncodedResponse
from svc.dialects.endpoint import Codec
from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.token_estimate import (
    billable_usage,
    estimate_completion_tokens,
    estimate_response_tokens,
    find_text_chunk,
)
from svc.dialects.upstream_errors import redact_error
from svc.errors import InternalError, ProviderFailed, SvcError
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import (
    INTERRUPTED_MESSAGE,
    AttemptFailure,
    RetryDecision,
    classify_error_response,
    classify_status,
    connection_failure,
    invalid_response_failure,
    no_socket_failure,
    timeout_failure,
)
from svc.gateway.routing.local_errors import describe_local_stream_error
from svc.gateway.routing.min_pace import PaceMonitor
from svc.gateway.routing.request_policy import RequestPolicy
from svc.gateway.routing.strategies import BackendLoad
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.gateway.upstream.pool import UpstreamPool
from svc.gateway.upstream.queued_call import QueuedCall
from svc.gateway.upstream.splice import Splice, StreamSink
from svc.wire.usage import TokenUsage

MAX_PROVIDER_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a response that is not a stream."""
MAX_PROVIDER_ERROR_BYTES: Final = 64 * 1024
"""Bytes of an error response that are kept. The rest is ignored."""
_NO_HEADERS: Final[Mapping[bytes, bytes]] = {}
MIN_TEXT_EVENT_BYTES: Final = 64
"""Shorter chunks are comments and pings, or parts of an event. They are no samples of text."""
RECENT_CHUNKS: Final = 4
MAX_SAMPLE_BYTES: Final = 8192
"""Number and size of the recent chunks that an attempt keeps."""
DRAIN_TIMEOUT_SECONDS: Final = 1.0
"""Seconds to wait for the end of the HTTP response after the last event, so that the connection can be reused."""


class AttemptOwner(ABC):
    """The retry loop that an attempt belongs to."""

    __slots__ = ()

    @abstractmethod
    def on_attempt_resend(self, attempt: Attempt) -> None:
        """Called when the request is sent again, see `ResponseReceiver.on_resend`."""

    @abstractmethod
    def on_attempt_failed(self, attempt: Attempt, failure: AttemptFailure) -> None:
        """Handle a failure before any byte was sent to the client."""

    @abstractmethod
    def on_attempt_silent(self) -> None:
        """Called when the attempt has given the client nothing for `stream_keep_alive` seconds, and again."""

    @abstractmethod
    def on_attempt_response(self, attempt: Attempt, response: EncodedResponse) -> None:
        """Handle a complete response that is not a stream."""

    @abstractmethod
    def on_attempt_chunk(self, attempt: Attempt, chunk: bytes, transform: StreamTransform) -> None:
        """Handle the first chunk of a stream, each one until `sink` is set, and the last (`transform.has_ended`)."""


class Attempt(ResponseReceiver):
    """Sends a request to one backend and reads its response."""

    deadline: float = math.inf
    """Loop time in seconds at which the attempt times out."""
    is_done: bool = False
    sent_at: float = 0.0
    """Loop time in seconds."""
    _active_transform: StreamTransform | None = None
    """The transform, from the head of a streamed response until its last event."""
    received_bytes: int = 0
    """Bytes of a 200 response, without the chunks that the splice forwarded."""
    first_chunk: bytes = b""
    """The first chunk of a stream. If it is interrupted, tokens are estimated from the text density of its chunks."""
    _recent_chunks: deque[bytes] | None = None
    """The beginnings of the last chunks. The sample is the last one with text: events before an error have none."""
    _response_usage: TokenUsage | None = None
    """The usage that the provider has reported in a response that is no stream."""
    _response_tokens: int | None = None
    """The estimated tokens of a complete response that is no stream and states no usage."""
    _splice: Splice | None = None
    """Forwards chunks that bypass `on_body`."""
    _call: UpstreamCall | None = None
    _min_pace: PaceMonitor | None = None
    _load: BackendLoad | None = None
    """Counts this attempt as in flight, until the end of its HTTP message."""
    _is_paused: bool = False
    http_status: int = 0
    """The status of the provider's response, or 0 before its head."""
    local_request: bytes | None = None
    """The client's body for a model of this machine, whose errors name no field. None for other backends."""
    is_retry: bool = False
    """Whether the request had attempts before this one."""
    response_headers: Mapping[bytes, bytes] = _NO_HEADERS
    """Headers of the provider's response. Empty before its head."""
    _single_body_chunk: bytes = b""
    """The body while it consists of one chunk, which is the common case."""
    _body: BytesIO | None = None
    _had_activity: bool = False
    """Whether chunks were received since the last `check_timeouts`."""
    _had_hidden_input: bool = False
    """Whether chunks were received that the client does not get, such as comments of the provider."""
    _request_body: bytes = b""
    """The body of the request, from which a missing usage is estimated. Empty if the client needs none."""
    _has_estimated_usage: bool = False
    """Whether the usage of a response that is not a stream is an estimate."""
    connect_seconds: float | None = None
    """Seconds until a new connection was open. None for one that was open before."""
    silent_since: float = 0.0
    """Loop time in seconds of the client's last byte or keep-alive, as of the last `check_timeouts`."""

    def __init__(
        self,
        owner: AttemptOwner,
        backend: Backend,
        codec: Codec,
        policy: RequestPolicy,
        routing_info: RoutingInfo,
        request_id: str,
        transform: StreamTransform | None = None,
    ) -> None:
        self.backend = backend
        self._owner: AttemptOwner | None = owner
        self._codec = codec
        self._policy = policy
        self._idle_timeout = policy.idle_timeout
        # Without a stream, a local model sends the first byte when the whole response is complete.
        self._first_byte_timeout: float = (
            policy.total_timeout
            if backend.origin.local_model and not routing_info.stream
            else policy.first_byte_timeout
        )
        self._is_stream: bool = routing_info.stream
        self._has_completion: bool = routing_info.has_completion
        self._transform: StreamTransform | None = transform or (
            codec.create_stream_transform(routing_info, backend.profile) if routing_info.stream else None
        )
        if self._transform is not None:
            self._transform.api_key = backend.provider.key
            self._transform.request_id = request_id
            if backend.origin.local_model:
                self._transform.map_error = describe_local_stream_error
            if not policy.uses_fast_paths:
                self._transform.disable_fast_paths()

    def set_min_pace(self, tokens_per_second: float) -> None:
        """Abort the stream if it is slower than this."""
        self._min_pace = PaceMonitor(tokens_per_second)

    def estimate_missing_usage(self, request_body: bytes) -> None:
        """Estimate the usage if the upstream reports none, since the client's response states it."""
        self._request_body = request_body
        if self._transform is not None:
            self._transform.request_body = request_body

    def set_load(self, load: BackendLoad) -> None:
        """Count this attempt as in flight from now until it ends. Call this after `send`."""
        self._load = load
        load.in_flight += 1

    def send(
        self,
        upstream: UpstreamPool,
        encoded: EncodedRequest,
        now: float,
        forwarded_head: ForwardedHead | None = None,
        trace_context: bytes = b"",
        key_id: str = "",
    ) -> None:
        """Send the request. `now` is loop time in seconds. `trace_context` are the header lines of the trace.

        With a queue, the backend gets the request when it is the turn of the key.
        """
        self.sent_at = self.silent_since = now
        self.deadline = now + self._first_byte_timeout
        path = self._codec.upstream_path
        queue = self.backend.queue
        if queue is not None:
            queued_call = QueuedCall(
                upstream,
                self.backend,
                path,
                encoded,
                self,
                key_id,
                stream=self._is_stream,
                forwarded=forwarded_head,
                trace_context=trace_context,
            )
            self._call = queued_call
            queued_call.enqueue(queue)
            return
        self._call = upstream.send(
            self.backend,
            path,
            encoded.body,
            self,
            stream=self._is_stream,
            forwarded=forwarded_head,
            trace_context=trace_context,
        )

    @property
    def is_draining(self) -> bool:
        """Whether the response is reported, and only the end of the HTTP message is missing."""
        return self._owner is None and not self.is_done

    @property
    def estimated_tokens(self) -> int:
        """Tokens of the completion so far, estimated from all bytes. Images and other results count as well."""
        if not self._has_completion:
            return 0
        if self._response_tokens is not None:
            return self._response_tokens
        forwarded_tokens = self._splice.forwarded_tokens if self._splice is not None else 0
        last_chunk = find_text_chunk(self._recent_chunks) if self._recent_chunks else self.first_chunk
        return estimate_completion_tokens(self.received_bytes, self.first_chunk, last_chunk) + forwarded_tokens

    def billable_usage(self, reported_usage: TokenUsage | None, request_body: bytes) -> tuple[TokenUsage, bool]:
        """Return the billable usage of an interrupted response, and whether it is an estimate."""
        transform = self._transform
        if reported_usage is not None and (
            transform.has_final_usage if transform is not None else self._response_usage is not None
        ):
            return reported_usage, False
        if reported_usage is None and transform is not None and transform.input_usage is not None:
            return transform.input_usage, True
        text_tokens = transform.text_tokens if transform is not None else None
        tokens = text_tokens if text_tokens is not None else self.estimated_tokens
        return billable_usage(reported_usage, request_body, tokens)

    def cancel(self) -> None:
        """Close the upstream connection at once. No callback follows."""
        self._owner = self._active_transform = self.sink = None
        call = self._call
        self._finish()
        if call is not None:
            call.cancel()

    def pause(self) -> None:
        """Stop reading, because the client reads slowly. The idle timeout is suspended."""
        if self._owner is None:  # draining: the client receives nothing more
            return
        self._is_paused = True
        if self._call is not None:
            self._call.pause()

    def resume(self, now: float) -> None:
        """Continue reading. `now` is loop time in seconds."""
        if self._is_paused and self._call is not None:
            self._is_paused = False
            self.deadline = now + self._idle_timeout
            self.silent_since = now
            self._call.resume()

    def check_timeouts(self, now: float) -> None:
        """Abort the attempt if it is past its deadline or too slow. `now` is loop time in seconds.

        Called a few times per second. It extends the deadline after activity, so that chunks need not do it.
        """
        min_pace = self._min_pace if self.first_chunk and self._owner is not None else None
        if min_pace is not None and min_pace.is_too_slow(now, self.estimated_tokens, paused=self._is_paused):
            self.stop(timeout_failure("to send its response: it is slower than routing.min_pace"))
            return
        call = self._call
        if call is not None and call.is_waiting:
            self.deadline = now + self._first_byte_timeout
            return
        splice = self._splice
        has_forwarded = splice is not None and splice.take_activity()
        if self._had_activity or has_forwarded:
            self._had_activity = False
            self.deadline = now + self._idle_timeout
            self.silent_since = now
            return
        if self._had_hidden_input:
            self._had_hidden_input = False
            self.deadline = now + self._idle_timeout
        elif now >= self.deadline and not self._is_paused:
            self._on_timeout()
            return
        if now - self.silent_since >= self._policy.stream_keep_alive:
            self.silent_since = now
            if self._owner is not None:
                self._owner.on_attempt_silent()

    @property
    def usage(self) -> TokenUsage | None:
        """The usage that the provider has reported so far."""
        return self._transform.usage if self._transform is not None else self._response_usage

    @property
    def has_only_start_usage(self) -> bool:
        """Whether `usage` is that of the start of a stream, with only the first tokens of the completion."""
        return self._transform is not None and self._transform.has_only_start_usage

    @property
    def usage_is_estimated(self) -> bool:
        """Whether `usage` is not the provider's own."""
        return self._has_estimated_usage or (self._transform is not None and self._transform.usage_is_estimated)

    def stop(self, failure: AttemptFailure) -> None:
        """Close the connection, then report the failure. A stream that has started ends with an error event."""
        transform = self._transform
        owner = self._owner
        self.cancel()
        self._owner = owner
        if transform is not None and transform.has_started:
            self._interrupt_stream(transform, failure.error)
        else:
            self._fail(failure)

    def _on_timeout(self) -> None:
        if self._owner is None:  # draining
            self.cancel()
            return
        awaits_start = not self.http_status or (self._transform is not None and not self._transform.has_started)
        self.stop(timeout_failure("to begin its response" if awaits_start else "between two chunks of its response"))

    # ResponseReceiver

    def on_resend(self) -> None:
        if self._owner is not None:
            self._owner.on_attempt_resend(self)

    def on_connected(self, seconds: float) -> None:
        self.connect_seconds = seconds

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.http_status = status
        self.response_headers = headers
        if (
            self._is_stream
            and status == 200
            and self._transform is not None
            and not self._transform.accept_head(headers.get(b"content-type", b""))
        ):
            self._is_stream = False  # `_report_response` tells an error object from a completion
        if self._is_stream and status == 200:
            self._active_transform = self._transform
        else:
            self._had_activity = True

    def on_body(self, data: bytes) -> None:
        transform = self._active_transform
        if transform is None:
            self._collect_body(data)
            return
        self.received_bytes += len(data)
        if self.first_chunk and len(data) >= MIN_TEXT_EVENT_BYTES:
            if self._recent_chunks is None:
                self._recent_chunks = deque(maxlen=RECENT_CHUNKS)
            self._recent_chunks.append(data if len(data) <= MAX_SAMPLE_BYTES else data[:MAX_SAMPLE_BYTES])
        if self._request_body:
            self._count_spliced_tokens(transform)
        try:
            client_bytes = transform.feed(data)
        except SvcError as error:
            self.stop(invalid_response_failure(error))
            return
        if self.sink is not None and not transform.has_ended:
            if client_bytes:
                self._had_activity = True
                self.sink.write(client_bytes, False)
            else:
                self._had_hidden_input = True
            if transform.passthrough_template is not None:
                self._enable_splice(transform.passthrough_template, self.sink)
            return
        self._had_activity = True
        self.first_chunk = self.first_chunk or data
        self._report_chunk(transform, client_bytes)
        # The first chunk can already provide the template.
        if self.sink is not None and transform.passthrough_template is not None:
            self._enable_splice(transform.passthrough_template, self.sink)

    def _enable_splice(self, template: ChunkTemplate, sink: StreamSink) -> None:
        if self._splice is not None:
            self._splice.set_template(template)
        elif (writer := sink.chunk_writer()) is not None:
            self._splice = Splice(writer, template)
        if self._splice is not None and self._call is not None:
            self._call.enable_splice(self._splice)

    def _report_chunk(self, transform: StreamTransform, chunk: bytes) -> None:
        """Report a chunk to the owner, unless the stream has not started yet."""
        owner = self._owner
        if transform.has_ended:
            self._drain(transform)
            if owner is not None:
                owner.on_attempt_chunk(self, chunk, transform)
        elif not transform.has_started:
            self._had_activity = False
        elif chunk and owner is not None:
            owner.on_attempt_chunk(self, chunk, transform)

    def on_end(self) -> None:
        self._finish()
        if self._owner is None:
            return
        if self.http_status != 200:
            body, headers = self._collected_body(), self.response_headers
            self._fail(classify_error_response(self._codec, self.http_status, headers, body, self.local_request))
        elif self._is_stream and self._transform is not None:
            self._end_stream(self._transform)
        else:
            self._report_response(self._collected_body())

    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        self._finish()
        if self._owner is None:
            return
        if timed_out:
            self._fail(timeout_failure("to accept a connection", reason, kind="Connection"))
        elif self.http_status and self.http_status != 200:
            self._fail(classify_status(self.http_status, self.response_headers, None))
        elif self._transform is not None and self._transform.has_started:
            self._interrupt_stream(self._transform, ProviderFailed(INTERRUPTED_MESSAGE, reason=reason))
        else:
            self._fail(connection_failure(reason, connected=connected, is_local=bool(self.backend.origin.local_model)))

    def on_load_failed(self, error: ProviderFailed) -> None:
        self._finish()
        self._fail(AttemptFailure(error, RetryDecision.NEXT_BACKEND))

    def on_no_socket(self, reason: str) -> None:
        self._finish()
        self._fail(no_socket_failure(reason))

    def on_internal_error(self) -> None:
        self._finish()
        failure = AttemptFailure(InternalError("Internal error."), RetryDecision.GIVE_UP)
        if self._transform is not None and self._transform.has_started and not self._transform.has_ended:
            self._interrupt_stream(self._transform, failure.error)
        else:
            self._fail(failure)

    def _collect_body(self, data: bytes) -> None:
        if self._owner is None:
            return
        self._had_activity = True
        if self.http_status != 200:
            self._append_body(data, MAX_PROVIDER_ERROR_BYTES)
            return
        self.received_bytes += len(data)
        if self.received_bytes <= MAX_PROVIDER_RESPONSE_BYTES:
            self._append_body(data, MAX_PROVIDER_RESPONSE_BYTES)
        else:
            self.stop(invalid_response_failure(ProviderFailed("The provider's response is too long.")))

    def _append_body(self, data: bytes, max_bytes: int) -> None:
        if self._body is None and not self._single_body_chunk:
            self._single_body_chunk = data[:max_bytes]
            return
        if self._body is None:  # one growing block: a list of small blocks would fragment the heap
            self._body = BytesIO()
            self._body.write(self._single_body_chunk)
        self._body.write(data[: max_bytes - self._body.tell()])

    def _collected_body(self) -> bytes:
        return self._single_body_chunk if self._body is None else self._body.getvalue()

    def _drain(self, transform: StreamTransform) -> None:
        self._owner = self._active_transform = self.sink = None
        if transform.error is not None:
            self.cancel()
        else:
            self._had_activity = True
            self._idle_timeout = DRAIN_TIMEOUT_SECONDS

    def _count_spliced_tokens(self, transform: StreamTransform) -> None:
        if self._splice is not None:
            transform.spliced_tokens = self._splice.forwarded_tokens

    def _end_stream(self, transform: StreamTransform) -> None:
        self._count_spliced_tokens(transform)
        try:
            chunk = transform.end()
        except SvcError as error:
            self._fail(invalid_response_failure(error))
            return
        if not transform.has_started:
            self._fail(invalid_response_failure(transform.error or ProviderFailed("The provider's response is empty.")))
        elif self._owner is not None:
            self._owner.on_attempt_chunk(self, chunk, transform)

    def _report_response(self, body: bytes) -> None:
        try:
            encoded = self._codec.decode_response(body)  # raises the error of a 200 response with an error object
            if self._transform is not None:
                raise ProviderFailed("The provider did not respond with a stream.")
            if encoded.usage is None and self._has_completion:
                self._response_tokens = estimate_response_tokens(body)
            if encoded.usage is None and self._request_body:
                usage, self._has_estimated_usage = billable_usage(None, self._request_body, self.estimated_tokens)
                encoded = self._codec.decode_response_with_usage(body, usage)
            self._response_usage = encoded.usage
        except SvcError as error:
            self._fail(invalid_response_failure(error))
            return
        if self._owner is not None:
            self._owner.on_attempt_response(self, encoded)

    def _interrupt_stream(self, transform: StreamTransform, error: SvcError) -> None:
        """End a stream that has started, which cannot be retried, with an error event.

        After the finish reason the completion is whole, so the stream ends normally.
        """
        self._count_spliced_tokens(transform)
        chunk = transform.fail(error) if transform.finish_reason is None else transform.end()
        if self._owner is not None:
            self._owner.on_attempt_chunk(self, chunk, transform)

    def _fail(self, failure: AttemptFailure) -> None:
        encoding = self.response_headers.get(b"content-encoding", b"identity").lower()
        if encoding != b"identity" and self.http_status == 200 and isinstance(failure.error, ProviderFailed):
            failure.error.message = (
                f"The provider's response has the Content-Encoding {encoding[:20].decode('latin-1')!r}, which the "
                "gateway did not ask for and cannot read."
            )
        redact_error(failure.error, self.backend.provider.key)
        if self._owner is not None:
            self._owner.on_attempt_failed(self, failure)

    def _finish(self) -> None:
        self.is_done = True
        self.deadline = math.inf
        if self._load is not None:
            self._load.in_flight -= 1
            self._load = None
        self._call = None  # breaks a reference cycle: the call holds this attempt
