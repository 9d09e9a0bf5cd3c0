"""An OCI registry for tests: the parts of the distribution specification for push and pull, with tokens."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class OciServer(ThreadingHTTPServer):
    """`contents` has blobs and manifests by name. If `cut` is set, a blob is truncated once at `cut` bytes.

    The next reads of blobs get `statuses`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.cut: int | None = None
        self.statuses: list[int] = []
        self.ranges: list[str | None] = []
        self.host = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Require a token for every path except the token endpoint."""

    protocol_version = "HTTP/1.1"
    server: OciServer

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _allowed(self) -> bool:
        if self.headers["authorization"] == "Bearer t0ken":
            return True
        if length := int(self.headers["content-length"] or 0):
            self.rfile.read(length)
        challenge = f'Bearer realm="http://{self.server.host}/token",service="s",scope="repository:team/m:pull,push"'
        self._say(401, www_authenticate=challenge)
        return False

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if path.path == "/token":
            query = parse_qs(path.query)
            right = self.headers["authorization"] == "Basic dTpw" and query["scope"] == ["repository:team/m:pull,push"]
            self._say(200 if right else 401, json.dumps({"token": "t0ken"}).encode())
        elif self._allowed():
            self._content(self.server.contents.get(path.path.rpartition("/")[2]))

    do_HEAD = do_GET

    def _content(self, data: bytes | None) -> None:
        if data is None:
            self._say(404)
            return
        if "/blobs/" in self.path and self.command == "GET":
            if self.server.statuses:
                self._say(self.server.statuses.pop(0))
                return
            self.server.ranges.append(self.headers["range"])
        start = int((self.headers["range"] or "bytes=0-")[6:-1])
        cut, self.server.cut = (
            (self.server.cut, None) if self.command == "GET" and len(data) > 10_000 else (None, self.server.cut)
        )
        self.send_response(206 if start else 200)
        self.send_header("content-length", str(len(data) - start))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start:cut])
            self.close_connection = cut is not None

    def do_POST(self) -> None:
        if self._allowed():
            self._say(202, location="/v2/team/m/blobs/uploads/1?state=x")

    def do_PUT(self) -> None:
        if not self._allowed():
            return
        data = self.rfile.read(int(self.headers["content-length"]))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path = urlsplit(self.path)
        if "/blobs/" in path.path and parse_qs(path.query)["digest"] != [digest]:
            self._say(400)
            return
        if "/manifests/" in path.path:
            self.server.contents[path.path.rpartition("/")[2]] = data
        self.server.contents[digest] = data
        self._say(201, location="/x", docker_content_digest=digest)
