"""Starts and commands while the disk of SVC_HOME has no room. One that fills up under load: tests/soak/disk.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Gateway, provider_environment, run
from tests.fakes.provider import FakeProvider
from tests.soak import disk


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 24 MiB; making one takes rights that not every machine gives."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(disk.small_disk("24m"))
        except subprocess.CalledProcessError:
            pytest.skip("no file system can be mounted here")
        yield path


def test_gateway_started_on_a_full_disk_answers_and_keeps_its_entries(
    small_disk: Path, fakes: dict[str, FakeProvider]
) -> None:
    assert run("keys", "ls", home=small_disk).returncode == 0  # makes the database
    full, free = disk.by_filling(small_disk)
    full()
    gateway = Gateway(small_disk, env=provider_environment(fakes), config=None)
    gateway.log_path = Path("/dev/shm") / f"svc-test-{os.getpid()}.log"
    try:
        gateway.start()
        assert [gateway.chat().status for _ in range(3)] == [200] * 3
        free()
        assert gateway.stop(20) == 0
        said = gateway.log
    finally:
        gateway.log_path.unlink(missing_ok=True)
    assert "since its disk is full" in said
    assert "Traceback" not in said
    listed = run("usage", "--json", home=small_disk)
    assert listed.stdout.count('"request_id"') == 3


def test_workers_on_a_full_disk_are_not_started_and_the_reason_is_named(small_disk: Path) -> None:
    assert run("keys", "ls", home=small_disk).returncode == 0
    disk.by_filling(small_disk)[0]()
    done = run("gateway", "--port", "0", "--workers", "2", home=small_disk)
    assert done.returncode == 1
    assert "The counters that workers share need" in done.stderr
    assert "No space left on device" in done.stderr


def test_command_on_a_full_disk_names_the_reason(small_disk: Path) -> None:
    assert run("keys", "ls", home=small_disk).returncode == 0
    disk.by_filling(small_disk)[0]()
    done = run("keys", "create", "--name", "late", home=small_disk)
    assert done.returncode == 1
    assert "since its disk is full" in done.stderr
