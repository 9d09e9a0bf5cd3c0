"""Runs the ASGI application for requests to all but the model endpoints, through uvicorn's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class AsgiProtocol(HttpToolsProtocol):
    """Gets one complete request at a time from a `ClientConnection`, and calls `on_response_sent` after each."""

    def __init__(self, on_response_sent: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_response_sent = on_response_sent

    def take_over_websocket(self, transport: asyncio.Transport, request_head: bytes, trailing_data: bytes) -> None:
        """Take over a connection, with the head of the upgrade request and the data after it."""
        self.connection_made(transport)
        self.data_received(request_head)
        if trailing_data and not transport.is_closing():
            transport.get_protocol().data_received(trailing_data)  # type: ignore[attr-defined]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # `ClientConnection` closes idle connections
        self.cycle = None  # type: ignore[assignment]  # breaks a reference cycle, and frees the body
        self._on_response_sent()
