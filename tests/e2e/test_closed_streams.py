"""Commands whose standard streams are closed, as in cron jobs with `>&-`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.registry.conftest import make_bundle

NULL = "/dev/null"


def start(command: str, home: Path, **options: int) -> subprocess.Popen[str]:
    """Start `svc` with the redirections of a shell."""
    environment = {**os.environ, "SVC_HOME": str(home), "SVC_API_KEYS": "k"}
    return subprocess.Popen(["sh", "-c", f'exec "$0" -m svc {command}', sys.executable], env=environment, **options)


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_command_with_closed_streams_exits_0(tmp_path: Path, closed: str) -> None:
    bundle = make_bundle(tmp_path / "m.xyb")
    process = start(f"registry add '{bundle}' {closed}", tmp_path / "home", stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert (tmp_path / "home/registry/m/1.0/any/m.xyb").is_file()


def test_gateway_with_closed_streams_serves(tmp_path: Path) -> None:
    process = start("gateway --port 0 <&- 2>&-", tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert "http://" in process.stdout.readline()
        assert [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 2)] == [NULL, NULL]
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_chat_with_closed_standard_input_asks_for_a_prompt(tmp_path: Path) -> None:
    process = start("chat <&-", tmp_path, stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("svc: There is nothing to ask")
