"""Runs the ASGI application for requests to all but the model endpoints, through uvicorn's protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakMethod

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_BODY_PART_BYTES: Final = 4 * HIGH_WATER_LIMIT
"""Maximum size of a part of a large body. uvicorn and the application copy a part several times, in about 1 ms."""


class AsgiProtocol(HttpToolsProtocol):
    """Gets one complete request at a time from a `ClientConnection`, and calls `on_response_sent` after each."""

    def __init__(self, on_response_sent: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_response_sent = on_response_sent
        self._unread_body: deque[bytes | memoryview] = deque()
        """The parts of a large body that the application has not asked for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A strong reference would be a cycle, which keeps the memory of closed connections until the next collection.
        self.flow = _BodyFlowControl(transport, WeakMethod(self._pass_body_parts))

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread_body.clear()
        super().connection_lost(exc)

    def receive_request(self, head: bytes, body: list[bytes]) -> None:
        """Pass a request to the application: a large body in parts, whenever the application waits for one.

        All of it at once would block the event loop for a tenth of a second.
        """
        if sum(map(len, body)) <= MAX_BODY_PART_BYTES:
            self.data_received(head + b"".join(body))
        else:
            self._unread_body.extend(body)
            self.data_received(head)
            self._pass_body_parts()

    def _pass_body_parts(self) -> None:
        while self._unread_body and not self.flow.read_paused:
            part = memoryview(self._unread_body.popleft())
            if len(part) > MAX_BODY_PART_BYTES:
                self._unread_body.appendleft(part[MAX_BODY_PART_BYTES:])
            self.data_received(part[:MAX_BODY_PART_BYTES])  # type: ignore[arg-type]  # the parser takes any buffer

    def take_over_websocket(self, transport: asyncio.Transport, request_head: bytes, trailing_data: bytes) -> None:
        """Take over a connection, with the head of the upgrade request and the data after it."""
        self.connection_made(transport)
        self.data_received(request_head)
        if trailing_data and not transport.is_closing():
            transport.get_protocol().data_received(trailing_data)  # type: ignore[attr-defined]

    def on_response_complete(self) -> None:
        if self._unread_body:  # the application has responded without reading it
            self._unread_body.clear()
            self.parser = httptools.HttpRequestParser(self)
        super().on_response_complete()
        self._unset_keepalive_if_required()  # `ClientConnection` closes idle connections
        self.cycle = None  # type: ignore[assignment]  # breaks a reference cycle, and frees the body
        self._on_response_sent()


class _BodyFlowControl(FlowControl):
    """Calls `on_resume` in the next iteration of the event loop after the application has read what it had."""

    def __init__(self, transport: asyncio.Transport, on_resume: WeakMethod[Callable[[], None]]) -> None:
        super().__init__(transport)
        self._on_resume = on_resume

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            if (on_resume := self._on_resume()) is not None:
                asyncio.get_running_loop().call_soon(on_resume)
