"""An S3 server for tests: SeaweedFS, from its Python package."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.fakes.ports import closed_ports

ROLES = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
ATTEMPTS = 3
READER = {"accessKey": "reader", "secretKey": "readerreader"}
"""Credentials that may only read the bucket."""


class Died(Exception):
    """The server exited, because another process took one of its ports first."""


@contextmanager
def bucket_server() -> Iterator[dict[str, str]]:
    """Start a server and yield the environment variables for an empty bucket."""
    folder = Path(tempfile.mkdtemp(prefix="svc-s3-"))
    try:
        for attempt in range(ATTEMPTS):
            process, environ = _start(folder / str(attempt))
            try:
                _make_bucket(environ, process, folder / str(attempt) / "log")
                yield environ
                return
            except Died:
                if attempt == ATTEMPTS - 1:
                    raise
            finally:
                process.kill()
                process.wait(10)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    folder.mkdir()
    ports = closed_ports(len(ROLES) + 2)
    identity = {
        "name": "t",
        "credentials": [{"accessKey": "test", "secretKey": "testtest"}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    reader = {"name": "r", "credentials": [READER], "actions": ["Read:bundles", "List:bundles"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
    weed = Path(sys.executable).with_name("weed")
    command = [weed, "-logtostderr=false", f"-logdir={folder}", "server", f"-dir={folder}", "-ip=127.0.0.1", "-s3"]
    command += [f"-{role}={port}" for role, port in zip(ROLES, ports, strict=False)]
    command += [f"-s3.port={ports[-2]}", f"-s3.port.grpc={ports[-1]}", f"-s3.config={folder / 's3.json'}"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=20", "-master.telemetry=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # a second server needs ports of its own
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    return process, {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testtest",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports[-2]}",
        "SVC_BLOB_URL": "s3://bundles/prefix",
    }


def _make_bucket(environ: dict[str, str], process: subprocess.Popen[bytes], log: Path) -> None:
    import obstore
    from obstore.store import S3Store

    root = S3Store(
        "bundles",
        endpoint=environ["AWS_ENDPOINT_URL"],
        access_key_id="test",
        secret_access_key="testtest",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    deadline = time.monotonic() + 60
    while True:
        if process.poll() is not None:
            raise Died(log.read_text()[-2000:])
        try:
            url = obstore.sign(root, "PUT", "", timedelta(minutes=5))
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()
            obstore.put(root, "first", b"1")
            obstore.delete(root, "first")
            return
        except (OSError, urllib.error.HTTPError, obstore.exceptions.BaseError):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)


class LateFailureServer(ThreadingHTTPServer):
    """Forwards to an S3 server. The first PUT of a path with `path` takes effect, and gets 503 all the same.

    With `misses`, that many HEAD requests get 404 instead, as from a server that shows a new object later.
    """

    daemon_threads = True

    def __init__(self, environ: dict[str, str], path: str, *, misses: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _LateFailureHandler)
        self.target = urlsplit(environ["AWS_ENDPOINT_URL"]).netloc
        self.path, self.misses, self.fails_put = path, misses, misses == 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _LateFailureHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LateFailureServer

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        connection = http.client.HTTPConnection(self.server.target, timeout=30)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        status, data, headers = response.status, response.read(), response.headers
        connection.close()
        if self.server.path in self.path:
            if self.command == "PUT" and self.server.fails_put:
                self.server.fails_put = False
                status, data = 503, b"<Error><Code>SlowDown</Code></Error>"
            elif self.command == "HEAD" and self.server.misses:
                self.server.misses -= 1
                status = 404
        self.send_response_only(status)
        for name in ("etag", "last-modified", "content-type", "content-range"):
            if name in headers:
                self.send_header(name, headers[name])
        length = headers["content-length"] if self.command == "HEAD" else len(data)
        self.send_header("content-length", str(length or 0))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward
