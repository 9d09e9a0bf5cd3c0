"""Serves the fake provider's scripts to tests in other languages: POST /play, GET /requests, POST /forget."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.fakes import openai_wire, responses_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, fin, reset, sse, stall

EVENTS = openai_wire.stream("Hello to all of you 🌍")
TOOLS = [("call_1", "get_weather", '{"city":"Oslo","days":2}')]
STRUCTURED = '{"city":"Oslo","days":2}'
SCRIPTS: Mapping[str, Callable[[], Script]] = {
    "whole": lambda: answer(200, openai_wire.chat("Hello")),
    "stream": lambda: sse(EVENTS),
    "stream in single bytes": lambda: sse(EVENTS, split_at=1),
    "tools": lambda: answer(200, openai_wire.chat(None, tools=TOOLS, finish="tool_calls")),
    "tool stream": lambda: sse(openai_wire.tool_stream(TOOLS)),
    "structured": lambda: answer(200, openai_wire.chat(STRUCTURED)),
    "structured wrongly": lambda: answer(200, openai_wire.chat('{"city":"Oslo","days":"two"}')),
    "reset": lambda: sse(EVENTS[:4], end=reset()),
    "closed": lambda: sse(EVENTS[:4], end=fin()),
    "without finish reason": lambda: sse(EVENTS[:4]),
    "error event": lambda: sse([*EVENTS[:4], openai_wire.event(openai_wire.error("overloaded", "server_error"))]),
    "invalid event": lambda: sse([*EVENTS[:4], b"data: {broken\n\n"]),
    "stalled": lambda: sse(EVENTS[:4], end=stall()),
    "silent": stall,
    "responses reset": lambda: sse(responses_wire.stream()[:4], end=reset()),
    "400": lambda: answer(400, openai_wire.error("A field is wrong.", param="temperature")),
    "404": lambda: answer(404, openai_wire.error("No such model.", code="model_not_found")),
    "429": lambda: answer(429, openai_wire.error("Slow down.", "rate_limit_error"), headers={"retry-after": "1"}),
    "500": lambda: answer(500, openai_wire.error("Out of order.", "server_error")),
    "not JSON": lambda: answer(200, b"<html>"),
}


class FaultServer:
    """Controls a fake provider over HTTP. `address` is `http://127.0.0.1:PORT`."""

    def __init__(self, fake: FakeProvider) -> None:
        class Handler(_Handler):
            provider = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    provider: FakeProvider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path == "/play":
            self.provider.plays(*(SCRIPTS[name]() for name in json.loads(body)))
        elif self.path == "/forget":
            self.provider.forget()
        self._respond({})

    def do_GET(self) -> None:
        self._respond(
            [
                {
                    "path": request.path,
                    "body": request.body.decode("utf-8", "replace"),
                    "disconnected": request.disconnected.is_set(),
                }
                for request in list(self.provider.requests)
            ]
        )

    def _respond(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("access-control-allow-origin", "*")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""
