"""A web server for tests. A function gives the responses, and the server records the requests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple


class WebRequest(NamedTuple):
    """One request."""

    method: str
    path: str
    authorization: str | None
    body: bytes = b""


class Answer(NamedTuple):
    """One response; `content-length` is added unless there is one."""

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


class WebServer(ThreadingHTTPServer):
    """A server on loopback, with TLS if `tls` is given. Use it as a context manager."""

    daemon_threads = True

    def __init__(
        self, answer: Callable[[WebRequest], Answer], tls: ssl.SSLContext | None = None, name: str = ""
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.requests: list[WebRequest] = []
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.host = f"{name or '127.0.0.1'}:{self.server_address[1]}"
        self.url = f"{'http' if tls is None else 'https'}://{self.host}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        request = WebRequest(self.command, self.path, self.headers["authorization"], body)
        self.server.requests.append(request)
        status, headers, body = self.server.answer(request)
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_GET
