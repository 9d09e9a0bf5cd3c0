"""Reads the requests of a client connection: HTTP/1.1, parsed by llhttp (httptools), with limits.

    head ── all headers ──> body ── complete ──> `_dispatch` of the subclass
                              └── long, with a valid key ──> the rest is read straight into its buffer ──> `_dispatch`

`ClientConnection` is the subclass. It dispatches requests, and rejects those that cannot be parsed.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import deque
from io import BytesIO
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import httptools

from svc.dialects.endpoint import Endpoint
from svc.errors import InvalidRequest, SvcError
from svc.gateway.net import allocator
from svc.gateway.net.read_mode import DirectRead
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.observability.access_log import encode_client_field
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.proxy.downstream import Downstream
from svc.gateway.server import response
from svc.gateway.server.authentication import authenticate, check_large_body_allowed
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.server.request import (
    MAX_PIPELINED_REQUESTS_PER_READ,
    Request,
    exceeds_pipeline_limits,
    head_too_large,
)
from svc.gateway.server.request_head_cache import RequestHeadCache
from svc.gateway.upstream.forwarded_head import extract_forwarded_head
from svc.gateway.upstream.pool import READ_BUFFER_BYTES
from svc.wire.request_line import RequestLineChecker

MAX_UNAUTHENTICATED_BODY_BYTES: Final = 64 * 1024
"""Maximum bytes of a body that are kept before the API key is checked."""
MIN_UNPARSED_BODY_BYTES: Final = 64 * 1024
"""If at least this many bytes of a body are missing, they are read without the parser, which saves a copy."""


ConnectionState = Literal["idle", "head", "body", "responding", "unread", "lingering", "closing"]
"""What a client connection waits for. It is closed if that takes too long.

idle        the first byte of a request
head, body  the rest of the request
responding  the end of the response, whose own timeouts apply
unread      the client, to read a response before its next request is dispatched
lingering   the client, to read the error of a request that is not read further
closing     the client, to read the end of the output
"""


class RequestParser(Downstream):
    """The reading half of a client connection. It has the methods of asyncio.BufferedProtocol."""

    __deletable__ = ("_direct_read", "_parser")
    __slots__ = (
        "_active_request",
        "_awaits_turn",
        "_body_space",
        "_context",
        "_deadline",
        "_deferred_rejection",
        "_direct_read",
        "_endpoints",
        "_endpoints_by_path",
        "_head_bytes",
        "_head_cache",
        "_incoming_request",
        "_is_throttled",
        "_last_request",
        "_long_body",
        "_parser",
        "_queue",
        "_request_lines",
        "_state",
        "socket_writer",
        "transport",
    )

    transport: asyncio.Transport
    socket_writer: SocketWriter
    _direct_read: DirectRead
    """The protocol for small reads. `connection_made` sets it."""

    def __init__(self, context: GatewayContext, endpoints: EndpointTable) -> None:
        fast_paths = context.config.current.policy.uses_fast_paths
        self.client_field = encode_client_field(None)
        self._context = context
        self._endpoints = endpoints
        self._endpoints_by_path = endpoints.served_by_path
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._active_request: Request | None = None
        """The request whose response is not complete."""
        self._incoming_request: Request | None = None
        """The request that is being read."""
        self._long_body: BytesIO | None = None
        """A long body that is being read without the parser."""
        self._body_space: memoryview | None = None
        """The part of `_long_body` that is not received yet, without its last byte."""
        self._head_bytes = 0
        self._request_lines = RequestLineChecker()
        self._head_cache = RequestHeadCache(is_enabled=fast_paths)
        self._last_request: Request | None = None
        """The last complete request of the current read."""
        self._is_throttled = False
        """Whether reading is paused, because the pipelined requests exceed the limits."""
        self._awaits_turn = False
        """Whether reading is paused until `on_turn`."""
        self._deferred_rejection: tuple[SvcError, int | None] | None = None
        """The error of an invalid pipelined request, which is sent after the current response."""
        self._state: ConnectionState = "idle"
        self._deadline = math.inf

    # implemented by ClientConnection

    @abstractmethod
    def _dispatch_queued(self) -> None:
        """Dispatch the next queued request. No response is in progress."""

    @abstractmethod
    def _dispatch(self, request: Request) -> None:
        """Dispatch a complete request. No response is in progress or unsent."""

    @abstractmethod
    def _on_key_loaded(self, request: Request) -> None:
        """Handle the end of the database query for the request's key."""

    @abstractmethod
    def _handle_upgrade(self, trailing_data: bytes) -> None:
        """Handle a request for another protocol. `trailing_data` was received after its head."""

    @abstractmethod
    def _reject(self, error: SvcError, status: int | None = None) -> None:
        """Send an error and close the connection, because its input cannot be read further."""

    # the methods of asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return self._context.upstream.buffer if self._body_space is None else self._body_space

    def buffer_updated(self, nbytes: int) -> None:
        if self._body_space is None:
            if nbytes == READ_BUFFER_BYTES:
                self.wait_turn()
            self.receive(self._context.upstream.view[:nbytes].tobytes())
        elif self._state != "lingering" and self._deferred_rejection is None:
            self._advance_body_space(self._body_space, nbytes)

    def wait_turn(self) -> None:
        """Pause reading until a later turn of the loop, after a large read."""
        if not (self._awaits_turn or self.transport.is_closing()):
            self._awaits_turn = True
            self.transport.pause_reading()
            self._context.upstream.read_scheduler.schedule(self)

    def on_turn(self) -> None:
        """Continue reading, unless it is paused for another reason."""
        self._awaits_turn = False
        if not self._is_throttled and self._state != "unread":
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not (self._awaits_turn or self.transport.is_closing()):
            self.transport.resume_reading()

    def receive(self, data: bytes) -> None:
        """Handle received data, except the inside of a long body."""
        if self._state == "lingering" or self._deferred_rejection is not None:
            return
        if self._long_body is not None and self._incoming_request is not None:
            self._finish_long_body(self._incoming_request, self._long_body, data)
        else:
            self._parse_data(data)

    def data_received(self, data: bytes) -> None:
        """Handle received data as asyncio.Protocol does.

        Event loops that require a subclass of asyncio.BufferedProtocol call it. So does `_handle_upgrade`.
        """
        offset = 0
        while offset < len(data):
            free_space = memoryview(self.get_buffer(-1))
            size = min(len(free_space), len(data) - offset)
            free_space[:size] = data[offset : offset + size]
            self.buffer_updated(size)
            offset += size

    def _parse_data(self, data: bytes) -> None:
        is_new_request = self._state == "idle" and self._active_request is None
        if is_new_request:
            if self._head_cache.request is not None and self._try_cached_head(data):
                return
            self._enter_state("head", self._context.config.current.policy.header_timeout)
        request = self._incoming_request
        if request is None or not request.is_head_complete:
            self._head_bytes += len(data)
        self._request_lines.add(
            data, is_between_requests=request is None, is_in_head=request is not None and not request.is_head_complete
        )
        previous_body_bytes = request.body_bytes if request is not None else 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._last_request = None
            self._handle_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            rejection = error.__context__ if isinstance(error.__context__, SvcError) else None
            self._reject(rejection or InvalidRequest("The request is not valid HTTP."))
            return
        # Trailers and chunk extensions count towards the limit of the head.
        if request is not None and request is self._incoming_request and request.is_head_complete:
            self._head_bytes = self._head_bytes + len(data) if request.body_bytes == previous_body_bytes else 0
        if self._incoming_request is None or self._incoming_request.is_head_complete:
            self._request_lines.clear()
        last_request, self._last_request = self._last_request, None
        if is_new_request and last_request is not None:
            if last_request.api_key is not None and self._incoming_request is None:
                self._head_cache.learn(data, last_request)
            else:
                self._head_cache.forget()
        self._check_incomplete_request()

    def _try_cached_head(self, data: bytes) -> bool:
        """Dispatch `data` without the parser if its head is cached."""
        context = self._context
        request = self._head_cache.match(data, context.config.current.policy.max_body_bytes, context.keyring)
        if request is None:
            return False
        self._direct_read.use_direct(len(data))
        self._dispatch(request)
        return True

    def _enter_state(self, state: ConnectionState, seconds: float) -> None:
        self._state = state
        self._deadline = self._context.clock.now() + seconds

    # long bodies

    def _read_body_unparsed(self, request: Request) -> None:
        """Read the rest of a long body straight into its buffer."""
        self._direct_read.use_buffered()
        request.keep_alive = self._parser.should_keep_alive()
        self._parser = httptools.HttpRequestParser(self)
        self._long_body = BytesIO(allocator.allocate_uninitialized(request.content_length))
        view = self._long_body.getbuffer()
        view[: request.body_bytes] = b"".join(request.body)
        self._body_space = view[request.body_bytes : -1]

    def _advance_body_space(self, free_space: memoryview, nbytes: int) -> None:
        self._body_space = free_space[nbytes:] if nbytes < len(free_space) else None

    def _finish_long_body(self, request: Request, long_body: BytesIO, data: bytes) -> None:
        """Add the last byte, and dispatch the request. `data` starts with this byte.

        The last byte is read separately. No view of the buffer exists then, so `getvalue` need not copy.
        """
        self._incoming_request = self._long_body = None
        long_body.getbuffer()[-1:] = data[:1]
        request.body_bytes = request.content_length
        request.body = [long_body.getvalue()]
        self._enqueue(request)
        if len(data) > 1:
            self._parse_data(data[1:])

    # llhttp

    def on_message_begin(self) -> None:
        self._incoming_request = Request()

    def on_url(self, url: bytes) -> None:
        if self._incoming_request is not None:
            self._incoming_request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A header after the head is a trailer, which must not be merged into the headers (RFC 9110, section 6.5.1).
        if self._incoming_request is not None and not self._incoming_request.is_head_complete:
            self._incoming_request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._incoming_request
        if request is None:
            return
        policy = self._context.config.current.policy
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if not self._request_lines.matches(method, request.url, version):
            raise InvalidRequest("The request line must be 'METHOD TARGET HTTP/1.1' with single spaces.")
        request.process_head(method, version, policy.max_header_bytes)
        self._head_bytes = 0
        if request.method == b"POST":
            request.endpoint = self._endpoints_by_path.get(request.path)
            if request.endpoint is None and b"%" in request.path:
                self._match_decoded_path(request)
        # A local variable: mypyc would assume that the attribute stays None, but `authenticate` sets it.
        rejection = request.rejection
        if rejection is not None:
            raise rejection
        if request.content_length > policy.max_body_bytes:
            raise policy.body_too_large_error()
        endpoint: Endpoint | None = request.endpoint
        if endpoint is not None:
            if endpoint.forwarded_headers:
                request.forwarded_head = extract_forwarded_head(
                    request.url, request.headers, endpoint.forwarded_headers
                )
            authenticate(request, endpoint, self._context.keyring, self._on_key_loaded)
        if request.expects_continue and self._active_request is None and not self._parser.should_upgrade():
            if request.rejection is not None:
                raise request.rejection
            self.socket_writer.write(response.CONTINUE_RESPONSE)

    def _match_decoded_path(self, request: Request) -> None:
        """Look up the endpoint of a percent-encoded path (RFC 3986, section 2.1), which is decoded once."""
        path = unquote_to_bytes(request.path)
        request.endpoint = self._endpoints_by_path.get(path)
        if request.endpoint is not None:
            request.path = path

    def on_body(self, data: bytes) -> None:
        request = self._incoming_request
        if request is None:
            return
        request.body_bytes += len(data)
        if request.body_bytes > self._context.config.current.policy.max_body_bytes:
            raise self._context.config.current.policy.body_too_large_error()
        if (
            request.body_bytes > MAX_UNAUTHENTICATED_BODY_BYTES
            and request.endpoint is None
            and not request.is_key_checked
        ):
            check_large_body_allowed(request, self._context.keyring, self._endpoints_by_path)
        if request.rejection is None:
            request.body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():  # `_handle_upgrade` follows and needs `_incoming_request`
            return
        request, self._incoming_request = self._incoming_request, None
        if request is None:
            return
        request.keep_alive = self._parser.should_keep_alive()
        self._last_request = request
        if len(self._queue) >= MAX_PIPELINED_REQUESTS_PER_READ:
            raise InvalidRequest("Too many requests are pipelined on this connection.")
        self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        self._queue.append(request)
        if self._active_request is None:
            self._dispatch_queued()

    def _check_incomplete_request(self) -> None:
        """Apply timeouts and limits to the incomplete request after each read."""
        request = self._incoming_request
        policy = self._context.config.current.policy
        if (
            self._active_request is not None
            and not self._is_throttled
            and exceeds_pipeline_limits(self._queue, request)
        ):
            self._is_throttled = True
            self.transport.pause_reading()
        if request is not None and self._active_request is None:
            if self._state == "idle":  # the request before it in the same read got an immediate response
                self._enter_state("head", policy.header_timeout)
            if self._state == "head" and request.is_head_complete:
                self._enter_state("body", policy.body_timeout)
                if (
                    request.api_key is not None
                    and request.rejection is None
                    and policy.uses_fast_paths
                    and request.content_length - request.body_bytes >= MIN_UNPARSED_BODY_BYTES
                ):
                    self._read_body_unparsed(request)
        if self._head_bytes > policy.max_header_bytes:
            self._reject(head_too_large(policy.max_header_bytes))

    def _resume_request(self, request: Request) -> None:
        """Continue to read a request whose first part was received during the previous response."""
        policy = self._context.config.current.policy
        if request.is_head_complete:
            self._enter_state("body", policy.body_timeout)
        else:
            self._enter_state("head", policy.header_timeout)
        if request.expects_continue and not request.body_bytes:
            if request.rejection is not None:
                self._reject(request.rejection)
            else:
                self.socket_writer.write(response.CONTINUE_RESPONSE)
