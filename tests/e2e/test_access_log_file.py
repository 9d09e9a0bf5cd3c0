"""`[telemetry]`: the access log in a file that is rotated, and the level of log records."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway, run


def wait_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the lines of a file once there are `count`."""
    deadline = time.monotonic() + 20
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        assert time.monotonic() < deadline, lines
        time.sleep(0.02)


def start(start_gateway: StartGateway, path: Path, workers: int = 1) -> Gateway:
    return start_gateway(config=f'[gateway]\nworkers = {workers}\n[telemetry]\naccess_log_file = "{path}"\n')


@pytest.mark.parametrize("workers", [1, 2])
def test_access_log_file_after_rename_is_opened_again(
    start_gateway: StartGateway, tmp_path: Path, workers: int
) -> None:
    path, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    gateway = start(start_gateway, path, workers)
    first = [gateway.chat().headers["x-request-id"] for _ in range(6)]
    assert {line["request_id"] for line in wait_lines(path, 6)} == set(first)
    path.rename(rotated)
    second = [gateway.chat().headers["x-request-id"] for _ in range(6)]
    assert {line["request_id"] for line in wait_lines(path, 6)} == set(second)
    assert len(wait_lines(rotated, 6)) == 6
    assert "request_id" not in gateway.log


def test_access_log_file_stop_writes_last_lines(start_gateway: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    gateway = start(start_gateway, path)
    assert gateway.chat().status == 200
    assert gateway.stop() == 0
    assert len(wait_lines(path, 1)) == 1


def test_access_log_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text('[telemetry]\naccess_log_file = "missing/access.log"\n')
    got = run("gateway", "--port", "0", home=tmp_path)
    assert got.returncode == 2
    assert "telemetry.access_log_file: missing/access.log cannot be written" in got.stderr


@pytest.mark.parametrize(("level", "is_logged"), [("info", True), ("warning", False)])
def test_telemetry_level_selects_records(start_gateway: StartGateway, level: str, is_logged: bool) -> None:
    gateway = start_gateway(config=f'[telemetry]\nlevel = "{level}"\n')
    assert gateway.chat(model="gpt-4o-mini", temperature=9).status == 400
    gateway.logged('"http_status":400')
    assert ('"level":"info"' in gateway.log) == is_logged


def test_telemetry_unknown_level_names_the_allowed_values(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text('[telemetry]\nlevel = "loud"\n')
    got = run("gateway", "--port", "0", home=tmp_path)
    assert got.returncode == 2
    assert "telemetry" in got.stderr
    assert "warning" in got.stderr
