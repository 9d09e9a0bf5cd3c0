"""The WebSocket protocol of uvicorn with backpressure, and with rejections in the gateway's error format."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from svc.errors import InternalError, InvalidRequest, SvcError
from svc.gateway.observability.access_log import encode_client_field, peer_address
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.server.rejections import report_rejection
from svc.wire.error import encode_error_body

MAX_WEBSOCKET_BYTES_PER_TURN: Final = 16 * 1024
"""Bytes that are parsed in one iteration of the event loop. A read of 256 KB can contain 40,000 pings."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Runs the ASGI application for an upgraded connection.

    Reading and parsing pause while output waits for the client. Otherwise pongs would fill the memory.
    """

    def __init__(self, context: GatewayContext, **options: Any) -> None:
        super().__init__(**options)
        self._backlog = b""
        """Input that is parsed in a later iteration of the event loop. Reading pauses until then."""
        self._write_timeout = context.config.current.policy.write_timeout
        self._has_received = False
        """Whether the client has sent anything since the last ping or check of the pong."""
        self._unsent_bytes = 0
        self._unsent_timer: asyncio.TimerHandle | None = None
        self.conn = self._handshake = _WebSocketHandshake(context, max_size=self.config.ws_max_size)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._handshake.client_field = encode_client_field(peer_address(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._backlog = b""
        self._stop_unsent_timer()
        super().connection_lost(exc)

    # reading

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        if self._backlog or len(data) > MAX_WEBSOCKET_BYTES_PER_TURN:
            self._backlog += data
            self._parse_backlog()
        else:
            super().data_received(data)

    def _parse_backlog(self) -> None:
        """Parse a part of the backlog. Continue in the next iteration of the loop, or when the client reads."""
        if not self._backlog or self.transport.is_closing():
            return
        self.transport.pause_reading()
        if self.read_paused or not self.writable.is_set():
            return
        data, self._backlog = self._backlog[:MAX_WEBSOCKET_BYTES_PER_TURN], self._backlog[MAX_WEBSOCKET_BYTES_PER_TURN:]
        super().data_received(data)
        if self._backlog:
            self.loop.call_soon(self._parse_backlog)
        else:
            self._resume_reading()

    @property
    def _can_read(self) -> bool:
        """Whether no message waits for the application, no output for the client, and there is no backlog."""
        return not (self.read_paused or self._backlog) and self.writable.is_set()

    def _resume_reading(self) -> None:
        if self._can_read and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> Any:
        """Return the next message as uvicorn does, but do not resume reading while output waits."""
        message = await super().receive()
        if self._backlog:
            self._parse_backlog()
        elif not self.writable.is_set() and not self.transport.is_closing():
            self.transport.pause_reading()
        return message

    # keep-alive

    def send_keepalive_ping(self) -> None:
        self._has_received = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Close the connection if its client is silent. The pong of a client that sends may wait behind its data."""
        if self.ping_timeout is not None and (self._has_received or not self._can_read):
            self._has_received = False
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    # writing

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.transport.is_closing():
            self.transport.pause_reading()
        self._start_unsent_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unsent_timer()
        if self._backlog:
            self._parse_backlog()
        else:
            self._resume_reading()

    def _start_unsent_timer(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._unsent_timer = self.loop.call_later(self._write_timeout, self._check_unsent)

    def _stop_unsent_timer(self) -> None:
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None

    def _check_unsent(self) -> None:
        """Abort the connection if the client has read nothing for `write_timeout`."""
        if self.transport.get_write_buffer_size() >= self._unsent_bytes:
            self.transport.abort()
        else:
            self._start_unsent_timer()

    def handle_parser_exception(self) -> None:
        """Abort the connection for invalid input before the handshake response, which uvicorn does not handle."""
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
        else:
            self.handshake_complete = self.disconnected = True
            self.transport.abort()

    async def send(self, message: Any) -> None:
        """Send a message as uvicorn does. In addition, a rejected upgrade completes the handshake."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True


class _WebSocketHandshake(ServerProtocol):
    """The handshake of websockets. A rejection is a JSON error with a request id."""

    def __init__(self, context: GatewayContext, *, max_size: int) -> None:
        super().__init__(max_size=max_size, logger=logging.getLogger("uvicorn.error"))
        self._context = context
        self.client_field = encode_client_field(None)

    def reject(self, status: StatusLike, text: str) -> Response:
        message = text.partition("\n")[0]
        error: SvcError = InvalidRequest(message) if int(status) < 500 else InternalError("The upgrade failed.")
        response = super().reject(status, encode_error_body(error).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        response.headers["x-request-id"] = request_id = self._context.request_ids.generate()
        report_rejection(self._context, request_id, None, error, int(status), self.client_field)
        return response
