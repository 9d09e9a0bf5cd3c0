"""Registries of a definition: what `--check` reads, timeouts and retries."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.conftest import run

from svc.bundles.pack import pack
from svc.cli import main

NUMBERS = {"type": "Onnx", "model_file": "m.onnx"}


class Registry(http.server.ThreadingHTTPServer):
    """Serves bundles as a registry does, after `failures` failures."""

    daemon_threads = True
    failures = 0
    failure_mode = "refuse"
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bundles: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.sent = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: the tests do so."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["range"]))
        if self.server.failures:
            self.server.failures -= 1
            if self.server.failure_mode == "hang":
                time.sleep(3)
            elif self.server.failure_mode == "503":
                self.send_error(503)
            return
        if self.path.startswith("/index"):
            self.send(200, json.dumps({key: self.entry(key) for key in self.server.bundles}).encode())
            return
        data = self.server.bundles[self.path.removeprefix("/bundles/").rpartition("/")[0]]
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d+)?", self.headers["range"] or "")
        if byte_range and self.server.ranges:
            first, last = int(byte_range[1]), min(int(byte_range[2] or len(data)), len(data) - 1)
            self.send(206, data[first : last + 1], f"bytes {first}-{last}/{len(data)}")
        else:
            self.send(200, data)

    def entry(self, key: str) -> dict[str, Any]:
        model_id, version, target = key.split("/")
        about = {"model_id": model_id, "version": version, "target": target, "path": f"{key}/{model_id}.xyb"}
        return {**about, "size_bytes": len(self.server.bundles[key])}

    def send(self, status: int, body: bytes, range_: str = "") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if range_:
            self.send_header("content-range", range_)
        self.end_headers()
        self.wfile.write(body)
        self.server.sent += len(body)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def packed_bundle(template: dict[str, Any], **about: Any) -> bytes:
    folder = Path("thing")
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(b"weights" * 100_000)
    metadata = {"model_id": "thing", "version": "1.0.0", "execution_template": template, "files": ["m.onnx"], **about}
    (folder / "model_metadata.json").write_text(json.dumps(metadata))
    pack(folder, Path("thing.xyb"))
    return Path("thing.xyb").read_bytes()


def pipeline(registry: str, stages: str = "[thing@1.0.0]") -> str:
    return f"name: x\nregistry: {registry}\nstages: {stages}\n"


def downloaded() -> bool:
    return any(Path("home").rglob("content/*")) or any(Path("home").rglob("*.xyb"))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"template": {"type": "CoreMl"}}, "the type 'CoreMl', which is not supported"),
        ({"template": NUMBERS, "preprocessing": [{"type": "Phonemize"}]}, "has the unknown step 'Phonemize'"),
        ({"template": {"type": "Onnx"}}, "has no `model_file`"),
    ],
)
def test_check_unsupported_remote_bundle_is_rejected_without_download(
    registry: Registry, capsys: pytest.CaptureFixture[str], about: dict[str, Any], message: str
) -> None:
    registry.bundles["thing/1.0.0/any"] = packed_bundle(**about)
    served = Path("served/thing/1.0.0/any/thing.xyb")
    served.parent.mkdir(parents=True)
    served.write_bytes(registry.bundles["thing/1.0.0/any"])
    for location in (registry.url, f"file://{Path('served').absolute()}"):
        assert run(pipeline(location), "--check") == 1
        error = capsys.readouterr().err
        assert ": Stage 'thing': " in error
        assert message in error
    assert not downloaded()
    assert registry.sent < 100_000


def test_check_remote_bundle_kind_mismatch_is_rejected_without_download(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.bundles["thing/1.0.0/any"] = packed_bundle(NUMBERS, preprocessing=[{"type": "AudioDecode"}])
    after = "[thing@1.0.0, {id: ask, target: integration, model: gpt-4o-mini}]"
    assert run(pipeline(registry.url, after), "--check") == 0
    assert "0.7 MB to download" in capsys.readouterr().out
    assert (
        run(pipeline(registry.url, "[{id: ask, target: integration, model: gpt-4o-mini}, thing@1.0.0]"), "--check") == 1
    )
    assert "Stage 'thing': it takes audio, but gets text" in capsys.readouterr().err
    assert run(pipeline(registry.url, after) + "input: Text", "--check") == 1
    assert "Stage 'thing': it takes audio, but gets text" in capsys.readouterr().err
    assert not downloaded()


def test_check_registry_without_range_requests_passes_without_download(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.ranges = False
    registry.bundles["thing/1.0.0/any"] = packed_bundle({"type": "CoreMl"})
    assert run(pipeline(registry.url), "--check") == 0
    assert "MB to download" in capsys.readouterr().out
    assert not downloaded()


@pytest.mark.parametrize("failure_mode", ["refuse", "503"])
def test_registry_failure_is_retried_up_to_retry_attempts(
    registry: Registry, capsys: pytest.CaptureFixture[str], failure_mode: str
) -> None:
    registry.bundles["thing/1.0.0/any"] = packed_bundle({"type": "CoreMl"})
    registry.failure_mode, registry.failures = failure_mode, 2
    twice = f"{{remote: {{base_url: '{registry.url}', retry_attempts: 2}}}}"
    assert run(pipeline(twice), "--check") == 1
    assert "CoreMl" in capsys.readouterr().err
    assert [path for path, _ in registry.requests[:3]] == ["/index/thing"] * 3
    registry.requests.clear()
    registry.failures = 9
    once = f"{{remote: {{base_url: '{registry.url}', retry_attempts: 1}}}}"
    assert run(pipeline(once), "--input", "x") == 1
    assert "Stage 'thing': " in capsys.readouterr().err
    assert len(registry.requests) == 2


def test_registry_without_response_times_out(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    registry.bundles["thing/1.0.0/any"] = packed_bundle({"type": "CoreMl"})
    registry.failure_mode, registry.failures = "hang", 1
    for arguments in (["--check"], ["--input", "x"]):
        began = time.monotonic()
        assert run(pipeline(f"{{remote: {{base_url: '{registry.url}', timeout_ms: 200}}}}"), *arguments) == 1
        assert "cannot be reached: timed out" in capsys.readouterr().err
        assert 0.2 <= time.monotonic() - began < 2.5
        registry.failures = 1


def test_registry_local_path_bundle_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    packed_bundle({"type": "CoreMl"})
    assert main(["registry", "add", "thing.xyb", "--root", "own"]) == 0
    assert run(pipeline(f"{{local_path: {Path('own').absolute()}}}"), "--check") == 1
    assert "CoreMl" in capsys.readouterr().err
