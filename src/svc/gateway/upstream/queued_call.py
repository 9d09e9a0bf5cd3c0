"""A request that waits for its turn in the queue of a server of this machine, as a whole or part by part.

waiting ── start_turn ──> sending a part ── 200 ──> waiting for the next part, or done
                              └── failed ──> done
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from svc.dialects.base import EncodedRequest, RequestParts
from svc.errors import ProviderFailed
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.fair_queue import FairQueue
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall, report_end
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.gateway.upstream.pool import UpstreamPool
from svc.gateway.upstream.splice import Splice

_NO_PART_HEADERS: Final[Mapping[bytes, bytes]] = {}


class QueuedCall(UpstreamCall):
    """A call that gets its turns from the queue of its backend.

    The receiver gets one response, also for several parts: their joined response, or the first error.
    """

    def __init__(
        self,
        upstream: UpstreamPool,
        backend: Backend,
        path: bytes,
        encoded: EncodedRequest,
        receiver: ResponseReceiver,
        key_id: str,
        *,
        stream: bool,
        forwarded: ForwardedHead | None,
        trace_context: bytes,
    ) -> None:
        super().__init__(receiver, ())
        self._upstream = upstream
        self._backend = backend
        self._path = path
        self._body = encoded.body
        self._parts: RequestParts | None = encoded.parts
        self._stream = stream
        self._forwarded = forwarded
        self._trace_context = trace_context
        self._call: UpstreamCall | None = None
        """The call of the current turn."""
        self._next_part = 0
        self._place = _QueuePlace(self, key_id)

    def enqueue(self, queue: FairQueue) -> None:
        """Wait for the first turn."""
        self._place.queue = queue
        queue.add(self._place)

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return self._parts.count if self._parts is not None else 1

    @property
    def remaining_parts(self) -> int:
        """The number of parts without a response. 0 after the call is cancelled or has failed."""
        return self.part_count - self._next_part if self.receiver is not None else 0

    def send_part(self) -> None:
        """Send the next part."""
        body = self._parts.encode_part(self._next_part) if self._parts is not None else self._body
        self._call = self._upstream.send(
            self._backend,
            self._path,
            body,
            _PartReceiver(self) if self._parts is not None else _StreamReceiver(self),
            stream=self._stream,
            forwarded=self._forwarded,
            trace_context=self._trace_context,
        )

    # UpstreamCall

    @property
    def is_waiting(self) -> bool:
        return self._call is None or self._call.is_waiting

    def cancel(self) -> None:
        self.receiver = None
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        self._place.leave_queue()

    def pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    def enable_splice(self, splice: Splice) -> None:
        if self._call is not None:
            self._call.enable_splice(splice)

    # the end of a turn

    def on_part_response(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> None:
        """Keep the response of a part, and send the joined response after the last one."""
        parts, receiver = self._parts, self.receiver
        if parts is None or receiver is None:
            return
        self._call = None
        if status == 200:
            try:
                parts.add_response(self._next_part, raw)
            except ProviderFailed:
                raw = b""  # the receiver reports an invalid response
            else:
                self._next_part += 1
                if self._next_part < parts.count:
                    self._place.end()
                    return
                raw = parts.join_responses()
        else:
            raw = parts.name_input(self._next_part, raw)
        self.take_receiver()
        receiver.on_head(status, headers)
        receiver.on_body(raw)
        report_end(receiver)

    def take_receiver(self) -> ResponseReceiver | None:
        """Leave the queue, and return the receiver for its last callback."""
        receiver, self.receiver, self._call = self.receiver, None, None
        self._place.leave_queue()
        return receiver


class _QueuePlace:
    """The place of a call in the queue: a `QueuedRequest`."""

    __slots__ = ("_call", "key_id", "queue")

    def __init__(self, call: QueuedCall, key_id: str) -> None:
        self._call: QueuedCall | None = call
        self.key_id = key_id
        self.queue: FairQueue | None = None

    @property
    def remaining_turns(self) -> int:
        """The parts that the call has still to send."""
        return self._call.remaining_parts if self._call is not None else 0

    def start_turn(self) -> None:
        """Send the next part."""
        if self._call is not None:
            self._call.send_part()

    def end(self) -> None:
        """End a turn that another one follows."""
        if self.queue is not None:
            self.queue.end_turn(self)

    def leave_queue(self) -> None:
        """Leave the queue for good."""
        queue, self.queue, self._call = self.queue, None, None  # breaks a reference cycle
        if queue is not None:
            queue.remove(self)


class _StreamReceiver(ResponseReceiver):
    """Forwards all callbacks, and ends the turn before the last one."""

    def __init__(self, call: QueuedCall) -> None:
        self._call = call

    def on_connected(self, seconds: float) -> None:
        if self._call.receiver is not None:
            self._call.receiver.on_connected(seconds)

    def on_resend(self) -> None:
        if self._call.receiver is not None:
            self._call.receiver.on_resend()

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        if self._call.receiver is not None:
            self._call.receiver.on_head(status, headers)

    def on_body(self, data: bytes) -> None:
        if self._call.receiver is not None:
            self._call.receiver.on_body(data)

    def on_end(self) -> None:
        receiver = self._call.take_receiver()
        if receiver is not None:
            report_end(receiver)

    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        receiver = self._call.take_receiver()
        if receiver is not None:
            receiver.on_connection_lost(reason, timed_out=timed_out, connected=connected)

    def on_load_failed(self, error: ProviderFailed) -> None:
        receiver = self._call.take_receiver()
        if receiver is not None:
            receiver.on_load_failed(error)

    def on_no_socket(self, reason: str) -> None:
        receiver = self._call.take_receiver()
        if receiver is not None:
            receiver.on_no_socket(reason)

    def on_internal_error(self) -> None:
        receiver = self._call.take_receiver()
        if receiver is not None:
            receiver.on_internal_error()


class _PartReceiver(_StreamReceiver):
    """Collects the response of one part."""

    def __init__(self, call: QueuedCall) -> None:
        super().__init__(call)
        self._status = 0
        self._headers: Mapping[bytes, bytes] = _NO_PART_HEADERS
        self._chunks: list[bytes] = []

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status, self._headers = status, headers

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)

    def on_end(self) -> None:
        self._call.on_part_response(self._status, self._headers, b"".join(self._chunks))
