"""Every request that is not hot: uvicorn's own protocol, fed one whole request at a time by the door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class AsgiProtocol(HttpToolsProtocol):
    """Runs the ASGI application for a connection that stays the door's. `answered` is called after each answer."""

    def __init__(self, on_response_sent: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_response_sent = on_response_sent

    def take_over_websocket(self, transport: asyncio.Transport, request_head: bytes, trailing_data: bytes) -> None:
        """Takes the connection over with the request for a WebSocket, and what came after it."""
        self.connection_made(transport)
        self.data_received(request_head)
        if trailing_data and not transport.is_closing():
            transport.get_protocol().data_received(trailing_data)  # type: ignore[attr-defined]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # unused connections are the door's to close
        self.cycle = None  # type: ignore[assignment]  # it has the body, and this: no garbage collector is needed
        self._on_response_sent()
