"""Starts and commands with a full disk under SVC_HOME. tests/soak/disk.py fills the disk under load."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Gateway, provider_environment, run
from tests.e2e.registry.conftest import make_bundle
from tests.fakes.provider import FakeProvider
from tests.soak import disk


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 24 MiB. Mounting it requires root."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(disk.small_disk("24m"))
        except subprocess.CalledProcessError:
            pytest.skip("no file system can be mounted here")
        yield path


def test_full_disk_at_start_gateway_answers_and_keeps_ledger_entries(
    small_disk: Path, fakes: dict[str, FakeProvider], tmp_path: Path
) -> None:
    assert run("keys", "ls", home=small_disk).returncode == 0  # creates the database
    bundle = make_bundle(tmp_path / "m.xyb")
    assert run("registry", "add", str(bundle), home=small_disk).returncode == 0
    full, free = disk.by_filling(small_disk)
    full()
    gateway = Gateway(small_disk, env=provider_environment(fakes), config=None)
    gateway.log_path = Path("/dev/shm") / f"svc-test-{os.getpid()}.log"
    try:
        gateway.start()
        assert [gateway.chat().status for _ in range(3)] == [200] * 3
        assert gateway.request("GET", "/v1/models").status == 200
        free()
        assert gateway.stop(20) == 0
        log = gateway.log
    finally:
        gateway.log_path.unlink(missing_ok=True)
    assert "since its disk is full" in log
    assert "Traceback" not in log
    listed = run("usage", "--json", home=small_disk)
    assert listed.stdout.count('"request_id"') == 3


def test_full_disk_at_start_workers_exit_1_with_reason(small_disk: Path) -> None:
    assert run("keys", "ls", home=small_disk).returncode == 0
    disk.by_filling(small_disk)[0]()
    done = run("gateway", "--port", "0", "--workers", "2", home=small_disk)
    assert done.returncode == 1
    assert "The counters that workers share need" in done.stderr
    assert "No space left on device" in done.stderr


def test_full_disk_command_exits_1_with_reason(small_disk: Path) -> None:
    assert run("keys", "ls", home=small_disk).returncode == 0
    disk.by_filling(small_disk)[0]()
    done = run("keys", "create", "--name", "late", home=small_disk)
    assert done.returncode == 1
    assert "since its disk is full" in done.stderr
    status = os.statvfs(small_disk)
    limit = f"remount,nr_inodes={status.f_files - status.f_ffree}"
    subprocess.run(["mount", "-o", limit, small_disk], check=True)
    done = run("keys", "ls", home=small_disk, env={"SVC_HOME": str(small_disk / "other")})
    assert done.returncode == 2
    assert "No space left on device. Free space on the disk, or set SVC_HOME to a folder on another one." in done.stderr


@pytest.mark.parametrize("reserve", [0, 60 * 1024])
def test_full_disk_backup_and_restore_name_the_full_disk(small_disk: Path, tmp_path: Path, reserve: int) -> None:
    assert run("keys", "ls", home=tmp_path).returncode == 0
    backup = tmp_path / "backup.tar"
    assert run("backup", str(backup), home=tmp_path).returncode == 0
    assert run("keys", "ls", home=small_disk).returncode == 0  # creates the folder
    (small_disk / "reserve").write_bytes(b"0" * reserve)
    disk.by_filling(small_disk)[0]()
    (small_disk / "reserve").unlink()
    done = run("backup", str(small_disk / "backup.tar"), home=tmp_path)
    assert done.returncode == 1
    assert f"svc: The disk of {small_disk} is full, so the backup was not written." in done.stderr
    done = run("restore", "--force", str(backup), home=small_disk)
    assert done.returncode == 1
    assert f"svc: The disk of {small_disk / 'svc'} is full, so nothing was restored." in done.stderr


def test_full_disk_doctor_reports_what_cannot_be_written(small_disk: Path, tmp_path: Path) -> None:
    assert run("registry", "add", str(make_bundle(tmp_path / "m.xyb")), home=small_disk).returncode == 0
    (small_disk / "svc/journal").mkdir()
    disk.by_filling(small_disk)[0]()
    done = run("doctor", "--json", home=small_disk)
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    names = ("blob store", "journal", "disk space")
    assert {name: found[name]["state"] for name in names} == dict.fromkeys(names, "bad")
    assert "can be read, but not written" in found["blob store"]["says"]
    assert "No space left on device" in found["journal"]["says"]
    assert found["disk space"]["says"].startswith("0 MiB are free in ")
