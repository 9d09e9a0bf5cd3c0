"""Client connections. Parses HTTP/1.1 (RFC 9112) with llhttp (httptools), and enforces limits.

    idle ── first byte ──> head ── all headers ──> body ── complete ──> responding ── response sent ──> idle
      An Exchange handles POST requests to model endpoints. The ASGI application handles all other requests,
      through uvicorn's protocol (`asgi`), which gets complete requests. uvicorn takes over WebSocket connections.

The limits apply to all routes: size and number of headers, body size, time for head and body, pipelined requests.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

import httptools

from svc.dialects.endpoint import Endpoint
from svc.errors import AuthenticationFailed, InvalidRequest, MethodNotAllowed, SvcError
from svc.gateway.net.read_mode import DirectRead
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.observability.access_log import encode_client_field, peer_address
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.proxy.exchange import Exchange
from svc.gateway.server import response
from svc.gateway.server.asgi import AsgiProtocol
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.server.rejections import report_rejection
from svc.gateway.server.request import Request
from svc.gateway.server.request_parser import RequestParser
from svc.security import NO_KEY_MESSAGE
from svc.wire.http_chunk import CHUNK_SIZE_LINES, SIZE_LINE_COUNT

LINGER_TIMEOUT_SECONDS: Final = 5.0
"""Seconds for which input is discarded after an early rejection, so that the client can read the response."""
SHUTDOWN_IDLE_TIMEOUT_SECONDS: Final = 1.0
"""Seconds after which an idle connection is closed when the server stops."""
ALLOWED_METHODS: Final = "GET, HEAD, POST"
"""The methods that the gateway supports on any path. The target of CONNECT is not a path."""
WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
"""Unsent bytes to a client at which reading from the upstream pauses."""


class ClientConnection(RequestParser):
    """One client connection. It has the methods of an asyncio.Protocol. `options` are those of uvicorn's protocols."""

    __slots__ = (
        "_asgi",
        "_exchange",
        "_is_chunked",
        "_is_dispatching",
        "_is_shutting_down",
        "_is_write_paused",
        "_pending_head",
        "_unsent_bytes",
        "_uvicorn_options",
    )

    def __init__(self, context: GatewayContext, endpoints: EndpointTable, **options: Any) -> None:
        super().__init__(context, endpoints)
        self._uvicorn_options = options
        self._exchange: Exchange | None = None
        self._asgi: AsgiProtocol | None = None
        self._pending_head = b""
        """The head of a stream, until the first chunk is written."""
        self._is_chunked = False
        self._is_write_paused = False
        self._is_shutting_down = False
        self._is_dispatching = False
        """Whether `_dispatch_queued` is running."""
        self._unsent_bytes = 0
        """Bytes in the write buffer at the last check, while the client does not read."""

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        batch = self._context.upstream.io_batch
        self.socket_writer = SocketWriter(self.transport, batch)
        self._direct_read = DirectRead(self, self.transport, batch)
        self.client_field = encode_client_field(peer_address(transport))
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._context.client_connections.add(self)
        self._uvicorn_options["server_state"].connections.add(self)
        self._enter_state("idle", self._context.config.current.policy.keep_alive)

    def eof_received(self) -> None:
        """Handle the end of the client's input. `connection_lost` follows after buffered output or a timeout."""
        self._enter_state("closing", self._context.config.current.policy.write_timeout)
        self._on_disconnect()

    def connection_lost(self, exc: Exception | None) -> None:
        self.socket_writer.close()
        self._unregister()
        del self._parser, self._direct_read  # breaks reference cycles
        self._on_disconnect()
        if self._asgi is not None:
            self._asgi.connection_lost(exc)
            self._asgi = None  # breaks a reference cycle
        self._queue.clear()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._deadline = self._context.clock.now() + self._context.config.current.policy.write_timeout
        if self._exchange is not None:
            self._exchange.pause()
        elif self._asgi is not None:
            self._asgi.pause_writing()
        if self._state == "idle" and self._active_request is None:  # the response was sent at the end of a batch
            self._prepare_dispatch()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._state == "unread":
            self._resume_reading()
            self._dispatch_queued()
        elif self._active_request is not None and self._state != "closing":
            self._deadline = math.inf
        if self._exchange is not None:
            self._exchange.resume()
        if self._asgi is not None:
            self._asgi.resume_writing()

    # uvicorn

    def shutdown(self) -> None:
        """Close the connection after the current request, because the server stops."""
        self._is_shutting_down = True
        # A request that is already on its way is still served, so an idle connection closes after a timeout.
        if self._active_request is None and self._state == "idle":
            self._enter_state("idle", SHUTDOWN_IDLE_TIMEOUT_SECONDS)
        elif self._active_request is not None and self._asgi is not None and self._exchange is None:
            self._asgi.shutdown()

    # time

    def check_timeouts(self, now: float) -> None:
        """Reject a request or close the connection if the client is too slow. `now` is loop time."""
        if self._is_write_paused and (unsent_bytes := self.transport.get_write_buffer_size()) < self._unsent_bytes:
            self._unsent_bytes = unsent_bytes  # the client reads slowly
            self._deadline = now + self._context.config.current.policy.write_timeout
        if now < self._deadline:
            return
        if self._state in ("head", "body") and not self._is_write_paused:
            self._reject(InvalidRequest("The request took too long to arrive."), 408)
        elif self._state == "idle" and self._active_request is None and not self._is_write_paused:
            self._close()
        else:  # the client does not read, or does not close the connection
            self.transport.abort()

    def _close(self) -> None:
        self._enter_state("closing", self._context.config.current.policy.write_timeout)
        self.socket_writer.flush()
        self.transport.close()

    def _unregister(self) -> None:
        self._context.client_connections.discard(self)
        self._uvicorn_options["server_state"].connections.discard(self)

    def _on_disconnect(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_disconnect()

    # dispatching

    def _on_key_loaded(self, request: Request) -> None:
        """Dispatch a request after the database query for its key."""
        if self._active_request is request and request.endpoint is not None and not self.transport.is_closing():
            self._dispatch_to_endpoint(request, request.endpoint)

    def _dispatch_queued(self) -> None:
        """Dispatch complete requests in a loop. A request with an immediate response calls this recursively."""
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._active_request is None and self._prepare_dispatch():
                self._dispatch(self._queue.popleft())
        finally:
            self._is_dispatching = False

    def _prepare_dispatch(self) -> bool:
        """Return whether a request can be dispatched. Otherwise enter the state that the connection waits in."""
        if self._queue:  # responses to pipelined requests must not accumulate until the end of the batch
            self.socket_writer.flush()
        if self._is_write_paused:  # the client must read first: `pause_writing` has set `_deadline`
            if self._state != "unread" and not self.transport.is_closing():
                self._state = "unread"
                self.transport.pause_reading()
            return False
        if self._queue:
            return not self.transport.is_closing()
        if self._is_shutting_down:
            self._close()
        elif self._deferred_rejection is not None:
            self._reject(*self._deferred_rejection)
        elif self._incoming_request is None:
            self._enter_state("idle", self._context.config.current.policy.keep_alive)
        else:
            self._resume_request(self._incoming_request)
        return False

    def _dispatch(self, request: Request) -> None:
        """Pass a complete request to an exchange or to the ASGI application."""
        self._active_request = request
        self._state, self._deadline = "responding", math.inf
        if request.endpoint is not None:
            self._dispatch_to_endpoint(request, request.endpoint)
        else:
            self._dispatch_to_asgi(request)

    def _dispatch_to_endpoint(self, request: Request, endpoint: Endpoint) -> None:
        if request.is_key_loading:
            return
        request_id = self._context.request_ids.generate()
        if request.api_key is None:
            error = request.rejection or AuthenticationFailed(NO_KEY_MESSAGE)
            report_rejection(self._context, request_id, request, error, error.status, self.client_field)
            headers = response.request_id_headers(request_id, request, endpoint)
            headers += response.format_headers(error.headers)
            self.send_response(error.status, headers, endpoint.encode_error(error, request_id))
            return
        exchange = self._exchange = Exchange(
            self._context,
            self,
            endpoint,
            request.api_key,
            request_id=request_id,
            client_request_id=request.client_request_id,
        )
        exchange.forwarded_head = request.forwarded_head
        exchange.trace_context = request.trace_context
        if request.rejection is not None:
            exchange.reject(request.rejection)
        else:
            exchange.start(request.take_body())

    def _dispatch_to_asgi(self, request: Request) -> None:
        if self._asgi is None:
            self._asgi = AsgiProtocol(self._on_response_sent, **self._uvicorn_options)
            self._asgi.connection_made(self.transport)
            self._uvicorn_options["server_state"].connections.discard(self._asgi)
        self.socket_writer.mark_dirty()
        self._asgi.receive_request(request.serialize_head(), request.take_body_parts())

    def _handle_upgrade(self, trailing_data: bytes) -> None:
        """Hand a WebSocket over to uvicorn. Other upgrades are ignored (RFC 9110, section 7.8)."""
        request = self._incoming_request
        if request is None or request.method == b"CONNECT":  # llhttp reports any CONNECT as an upgrade
            self._reject(MethodNotAllowed("This server is not a forward proxy.", allow=ALLOWED_METHODS))
        elif not request.is_websocket_upgrade:
            self._incoming_request, self._parser = None, httptools.HttpRequestParser(self)
            self.data_received(request.serialize_without_upgrade() + trailing_data)
        elif self._active_request is not None:
            self._reject(InvalidRequest("An upgrade request cannot be pipelined."))
        else:
            self._hand_over_websocket(request, trailing_data)

    def _hand_over_websocket(self, request: Request, trailing_data: bytes) -> None:
        try:
            request_head = request.serialize_websocket_head()
        except SvcError as error:
            self._reject(error)
            return
        self._unregister()
        self.socket_writer.flush()
        self.socket_writer.close()  # this connection must not write between the frames of the WebSocket
        AsgiProtocol(self._on_response_sent, **self._uvicorn_options).take_over_websocket(
            self.transport, request_head, trailing_data
        )

    def _on_response_sent(self) -> None:
        """Continue with the next request after the response to `_active_request` is written."""
        request, self._active_request, self._exchange = self._active_request, None, None
        if self._state == "lingering" or request is None:
            return
        if self._is_throttled:
            self._is_throttled = False
            self._resume_reading()
        if request.keep_alive:
            self._dispatch_queued()
        else:
            self._close()

    def _reject(self, error: SvcError, status: int | None = None) -> None:
        """Reject a request that cannot be read further. The client gets time to read the response."""
        if self._active_request is not None:  # the current response has to be complete first
            self._deferred_rejection = (error, status)
            return
        if self.transport.is_closing():  # the last response has been sent
            return
        status, request_id = status or error.status, self._context.request_ids.generate()
        request, endpoint = self._incoming_request, None
        if request is not None:
            path = request.path or request.url.partition(b"?")[0]  # the head may be incomplete
            endpoint = request.endpoint or self._endpoints.find_error_format(path.decode("latin-1"), request.headers)
        report_rejection(self._context, request_id, request, error, status, self.client_field)
        self.socket_writer.write(
            response.encode_rejection(error, status, self._context.clock.date_header, request_id, request, endpoint)
        )
        self._queue.clear()
        self._enter_state("lingering", LINGER_TIMEOUT_SECONDS)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self._close()

    # Downstream

    def send_response(self, status: int, headers: str, body: bytes) -> None:
        request = self._active_request
        if request is None or self.transport.is_closing():
            return
        request.keep_alive = request.keep_alive and not self._is_shutting_down
        headers = response.add_connection_headers(headers, request, self._context.config.current.policy.cors_origins)
        encoded = response.encode_http_response(status, self._context.clock.date_header, headers, body)
        self.socket_writer.write_later(encoded)
        self._on_response_sent()

    def start_stream(self, headers: str, content_type: str) -> None:
        request = self._active_request
        if request is not None:
            request.keep_alive = request.keep_alive and request.supports_chunked and not self._is_shutting_down
            headers = response.add_connection_headers(
                headers, request, self._context.config.current.policy.cors_origins
            )
            self._is_chunked = request.supports_chunked
            self._pending_head = response.encode_stream_head(
                self._context.clock.date_header, headers, content_type, chunked=request.supports_chunked
            )

    def abort_stream(self) -> None:
        self._active_request, self._exchange = None, None
        if self.transport.is_closing():
            return
        if self._is_chunked:
            self._close()
        else:  # the end of the connection would be the end of the response, so reset it
            self.socket_writer.reset()

    def chunk_writer(self) -> SocketWriter | None:
        return self.socket_writer if self._is_chunked and not self._pending_head else None

    def write_keep_alive(self, event: bytes) -> None:
        if not self._pending_head and not self._is_write_paused and not self.transport.get_write_buffer_size():
            self.write(event, False)

    def write(self, chunk: bytes, is_last: bool) -> None:
        if self.transport.is_closing():
            return
        size = len(chunk)
        if self._is_chunked and not self._pending_head and not is_last and 0 < size < SIZE_LINE_COUNT:
            # Inlines `encode_http_chunk` for the common case: this is the hot path.
            self.socket_writer.write_later(CHUNK_SIZE_LINES[size] + chunk + b"\r\n")
            return
        chunk = (
            response.encode_http_chunk(self._pending_head, chunk, is_last)
            if self._is_chunked
            else self._pending_head + chunk
        )
        self._pending_head = b""
        if chunk:
            self.socket_writer.write_later(chunk)
        if is_last:
            self._on_response_sent()
