"""The Hugging Face Hub for tests: its API, and files that another host sends, as it does for large files.

https://huggingface.co/docs/hub/api describes the API. `X-Linked-Etag`, `X-Repo-Commit` and the redirects to another
host are those of https://huggingface.co/docs/huggingface_hub/package_reference/file_download.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubRequest(NamedTuple):
    """One request."""

    method: str
    path: str
    authorization: str | None
    range: str | None


class FakeHub(ThreadingHTTPServer):
    """`repositories` has the files of each repository. `gated` ones need the token `hf_token`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.commit = COMMIT
        self.licence = "apache-2.0"
        self.cut: list[int] = []
        """Each download ends after so many bytes, until the list is empty."""
        self.corrupt = False
        self.statuses: list[int] = []
        """Statuses of the next downloads."""
        self.requests: list[HubRequest] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.content_url = f"http://localhost:{self.server_address[1]}/content"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def downloads(self) -> list[HubRequest]:
        """The requests for the content of files."""
        return [request for request in self.requests if request.method == "GET" and request.path.startswith("/content")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers["authorization"]
        self.server.requests.append(HubRequest(self.command, path, token, self.headers["range"]))
        if path.startswith("/api/models/"):
            self._describe("/".join(path.split("/")[3:5]))
        elif path.startswith("/content/"):
            self._send_content(path.removeprefix("/content/"))
        elif path.startswith("/api/"):  # such as the list of agents for the user agent
            self._fail(404, "EntryNotFound", "Not found")
        else:
            owner, name, _, commit, *file = path.lstrip("/").split("/")
            self._resolve(f"{owner}/{name}", commit, "/".join(file))

    do_HEAD = do_GET

    def _describe(self, repository: str) -> None:
        files = self.server.repositories.get(repository)
        if files is None:
            self._fail(401, "RepoNotFound", "Repository not found")
            return
        siblings = []
        for name, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            entry = {"rfilename": name, "size": len(data), "blobId": digest[:40]}
            if name.endswith((".gguf", ".bin", ".onnx")):
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 135}
            siblings.append(entry)
        body = {"id": repository, "modelId": repository, "sha": self.server.commit, "siblings": siblings, "tags": []}
        self._answer(200, json.dumps({**body, "cardData": {"license": self.server.licence}}).encode())

    def _resolve(self, repository: str, commit: str, name: str) -> None:
        if repository in self.server.gated and self.headers["authorization"] != "Bearer hf_token":
            self._fail(403 if self.headers["authorization"] else 401, "GatedRepo", "Access is restricted")
            return
        data = self.server.repositories.get(repository, {}).get(name)
        if data is None or commit not in (self.server.commit, "main"):
            self._fail(404, "EntryNotFound", "Entry not found")
            return
        digest = hashlib.sha256(data).hexdigest()
        self._answer(
            302,
            location=f"{self.server.content_url}/{repository}/{quote(name)}",
            etag='"pointer"',
            x_linked_etag=f'"{digest}"',
            x_linked_size=str(len(data)),
            x_repo_commit=self.server.commit,
        )

    def _send_content(self, path: str) -> None:
        owner, name, *file = path.split("/")
        data = self.server.repositories[f"{owner}/{name}"]["/".join(file)]
        if self.server.corrupt:
            data = bytes(len(data))
        if self.command == "GET" and self.server.statuses:
            self._answer(self.server.statuses.pop(0))
            return
        start = int((self.headers["range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        cut = self.server.cut.pop(0) if self.server.cut and self.command == "GET" else None
        self.send_response(206 if start else 200)
        self.send_header("content-length", str(len(data) - start))
        if start:
            self.send_header("content-range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start:] if cut is None else data[start : start + cut])
            self.close_connection = cut is not None

    def _fail(self, status: int, code: str, message: str) -> None:
        self._answer(status, json.dumps({"error": message}).encode(), x_error_code=code, x_error_message=message)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
