"""An S3 server for tests: SeaweedFS, from its Python package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.fakes.ports import closed_ports

ROLES = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
ATTEMPTS = 3


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
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
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
