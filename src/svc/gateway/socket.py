"""A WebSocket's connection: uvicorn's protocol, with refusals in our own shape. What is said on it is not here."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from svc.errors import InternalError, InvalidRequest, SvcError
from svc.gateway.access_log import log_end, peer_of
from svc.wire.problem import encode_problem

if TYPE_CHECKING:
    from svc.gateway.plane import Plane


class Socket(WebSocketsSansIOProtocol):
    """Runs the ASGI application for an upgraded connection."""

    def __init__(self, plane: Plane, **options: Any) -> None:
        super().__init__(**options)
        self.conn = self._handshake = _Handshake(plane, max_size=self.config.ws_max_size)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._handshake.log_end = log_end(peer_of(transport))

    def handle_parser_exception(self) -> None:
        """Also for what comes before the answer, which uvicorn does not think of: the connection is cut off."""
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
        else:
            self.handshake_complete = self.disconnected = True
            self.transport.abort()

    async def send(self, message: Any) -> None:
        """Knows, beyond uvicorn, that an application that has refused the upgrade is done."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True


class _Handshake(ServerProtocol):
    """websockets' own; what it refuses is a JSON error with a request id."""

    def __init__(self, plane: Plane, *, max_size: int) -> None:
        super().__init__(max_size=max_size, logger=logging.getLogger("uvicorn.error"))
        self._plane = plane
        self.log_end = log_end(None)

    def reject(self, status: StatusLike, text: str) -> Response:
        words = text.partition("\n")[0]
        error: SvcError = InvalidRequest(words) if int(status) < 500 else InternalError("The upgrade failed.")
        response = super().reject(status, encode_problem(error).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        response.headers["x-request-id"] = request_id = self._plane.new_request_id()
        self._plane.refused(request_id, None, error, int(status), self.log_end)
        return response
