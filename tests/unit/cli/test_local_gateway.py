"""svc.cli._local_gateway: the key and the URL that `svc up` records for other commands."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from svc.cli import _local_gateway
from svc.errors import UsageError


def test_ensure_api_key_creates_one_private_file(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    key = _local_gateway.ensure_api_key(home)
    assert re.fullmatch(r"svc_sk_[A-Za-z0-9_-]{43}", key)
    assert _local_gateway.ensure_api_key(home) == key == _local_gateway.read_local_api_key(home)
    assert (home / "api_key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == ["api_key"]
    assert home.stat().st_mode & 0o777 == 0o700


def test_ensure_api_key_world_readable_file_becomes_private(tmp_path: Path) -> None:
    _local_gateway.ensure_api_key(tmp_path)
    (tmp_path / "api_key").chmod(0o644)
    _local_gateway.ensure_api_key(tmp_path)
    assert (tmp_path / "api_key").stat().st_mode & 0o777 == 0o600


def test_ensure_api_key_concurrent_processes_create_one_key(tmp_path: Path) -> None:
    code = "from svc.cli import _local_gateway; from pathlib import Path; "
    code += f"print(_local_gateway.ensure_api_key(Path({str(tmp_path)!r})))"

    def make(_: int) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(make, range(4)))) == 1


@pytest.mark.parametrize("text", ["", "oops", "svc_sk_short", "svc_sk_" + "é" * 43, "svc_sk_" + "a" * 44])
def test_ensure_api_key_malformed_file_raises_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "api_key").write_text(text, encoding="utf-8")
    assert _local_gateway.read_local_api_key(tmp_path) is None
    with pytest.raises(UsageError, match="api_key"):
        _local_gateway.ensure_api_key(tmp_path)


def test_find_gateway_returns_url_until_record_is_removed(tmp_path: Path) -> None:
    assert _local_gateway.find_gateway(tmp_path) is None
    _local_gateway.write_gateway_record(tmp_path, "http://127.0.0.1:1/v1")
    assert _local_gateway.find_gateway(tmp_path) == "http://127.0.0.1:1/v1"
    _local_gateway.remove_gateway_record(tmp_path)
    assert _local_gateway.find_gateway(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "7", '{"url": "x"}', '{"url": "x", "pid": "y"}', '{"url":"x","pid":-1}']
)
def test_find_gateway_malformed_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "gateway.json").write_text(text)
    assert _local_gateway.find_gateway(tmp_path) is None


def test_remove_gateway_record_of_other_process_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "gateway.json").write_text(json.dumps({"url": "http://127.0.0.1:2/v1", "pid": os.getppid()}))
    _local_gateway.remove_gateway_record(tmp_path)
    assert _local_gateway.find_gateway(tmp_path) == "http://127.0.0.1:2/v1"


def test_find_gateway_record_of_dead_process_is_ignored(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "gateway.json").write_text(json.dumps({"url": "http://127.0.0.1:2/v1", "pid": dead.pid}))
    assert _local_gateway.find_gateway(tmp_path) is None


def start_lock_holder(home: Path) -> subprocess.Popen[str]:
    code = (
        "import sys, time; from pathlib import Path; from svc.cli import _local_gateway\n"
        f"home = Path({str(home)!r})\n"
        "with _local_gateway.hold_up_lock(home):\n"
        "    _local_gateway.write_gateway_record(home, 'http://127.0.0.1:4/v1')\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_hold_up_lock_second_process_is_rejected_until_first_exits(tmp_path: Path) -> None:
    first = start_lock_holder(tmp_path)
    try:
        with (
            pytest.raises(UsageError, match="is already running at http"),
            _local_gateway.hold_up_lock(tmp_path),
        ):
            pass
        assert _local_gateway.find_gateway(tmp_path) == "http://127.0.0.1:4/v1"
    finally:
        first.kill()
        first.communicate()
    with _local_gateway.hold_up_lock(tmp_path):
        assert _local_gateway.find_gateway(tmp_path) is None
