"""Counters in shared memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.manual_clock import ManualClock

from svc.errors import CommandFailed
from svc.stores.counters import shared_memory
from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.shared_memory import SharedCounters, SharedMemoryReservation


@pytest.fixture
def counters(clock: ManualClock, tmp_path: Path) -> Iterator[SharedCounters]:
    found = SharedCounters(tmp_path / "counters", workers=1, clock=clock.monotonic)
    yield found
    found.close()


def test_commit_after_the_slot_was_lost_and_assigned_again_leaves_no_tokens_behind(
    counters: SharedCounters, clock: ManualClock
) -> None:
    limits = KeyLimits(key_id="k", tokens=5000)
    reservation = counters.reserve(limits, 4000, 0)
    assert isinstance(reservation, SharedMemoryReservation)
    for number in range(shared_memory.SLOT_COUNT * 2):
        clock.now = 1001.0 + number / 1e6
        counters.reserve(KeyLimits(key_id=f"k{number}", requests=1), 0, 0)
    clock.now = 1002.0
    again = counters.reserve(limits, 0, 0)
    assert isinstance(again, SharedMemoryReservation)
    assert counters.get_usage(limits).tokens == 0  # the reserved tokens are lost with the slot
    counters.commit(SharedMemoryReservation(again.slot, again.key_hash, reservation.second, 4000, 0, 0, 0, 0.0), 500, 0)
    assert counters.get_usage(limits).tokens == 0
    for second in range(1003, 1100):
        clock.now = float(second)
        counters.reserve(limits, 0, 0)
    assert counters.get_usage(limits).tokens == 0


def test_commit_slot_reassigned_to_another_key_changes_nothing(counters: SharedCounters, clock: ManualClock) -> None:
    reservation = counters.reserve(KeyLimits(key_id="first", concurrency=1), 0, 0)
    assert isinstance(reservation, SharedMemoryReservation)
    for number in range(shared_memory.SLOT_COUNT * 2):
        clock.now = 1000.0 + number / 1000
        counters.reserve(KeyLimits(key_id=f"k{number}", requests=1), 0, 0)
    counters.commit(reservation, 0, 0)
    assert isinstance(counters.reserve(KeyLimits(key_id="k1", requests=5), 0, 0), SharedMemoryReservation)


WORKER = """
import sys, time
from pathlib import Path
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.shared_memory import SharedCounters, SharedMemoryReservation
counters = SharedCounters(Path(sys.argv[1]), worker=int(sys.argv[2]), workers=4)
limits = KeyLimits(key_id="k", requests=600, concurrency=1000)
print("ready", flush=True)
sys.stdin.readline()
through = 0
for _ in range(2000):
    got = counters.reserve(limits, 0, 0)
    if isinstance(got, SharedMemoryReservation):
        through += 1
        counters.commit(got, 0, 0)
print(through, flush=True)
if sys.argv[3] == "stay":
    held = [counters.reserve(KeyLimits(key_id="other", concurrency=5), 0, 0) for _ in range(5)]
    print(sum(isinstance(each, SharedMemoryReservation) for each in held), flush=True)
    time.sleep(60)
"""


def test_reserve_several_processes_share_one_limit(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    command = [sys.executable, "-c", WORKER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen([*command, str(number), "go"], text=True, **pipes) for number in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    through = [int(process.communicate(timeout=30)[0]) for process in processes]
    assert sum(through) == 600


def test_shared_counters_killed_worker_reservations_are_freed_by_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    command = [sys.executable, "-c", WORKER, str(path), "1", "stay"]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(3)] == ["ready\n", "600\n", "5\n"]
    first = SharedCounters(path, worker=0, workers=4)
    limits = KeyLimits(key_id="other", concurrency=5)
    assert isinstance(first.reserve(limits, 0, 0), LimitExceeded)
    process.kill()
    process.wait(5)
    assert isinstance(first.reserve(limits, 0, 0), LimitExceeded)
    restarted = SharedCounters(path, worker=1, workers=4)
    assert isinstance(first.reserve(limits, 0, 0), SharedMemoryReservation)
    assert isinstance(first.reserve(KeyLimits(key_id="k", requests=600), 0, 0), LimitExceeded)
    restarted.close()
    first.close()


def test_get_usage_unknown_key_takes_no_slot(counters: SharedCounters) -> None:
    for number in range(shared_memory.SLOT_COUNT + 1):
        assert counters.get_usage(KeyLimits(key_id=f"k{number}")) == LimitUsage()
    assert counters.needs_spent(KeyLimits(key_id="k0", budget_nano_usd=1))


def test_shared_counters_sums_corrupted_by_crash_are_recomputed(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "counters"
    limits = KeyLimits(key_id="k", requests=10, tokens=100)
    first = SharedCounters(path, worker=0, workers=2, clock=clock.monotonic)
    second = SharedCounters(path, worker=1, workers=2, clock=clock.monotonic)
    second.reserve(limits, 40, 0)
    second._words[second._slot_for_key("k")[0] * second._slot_words + shared_memory._REQUEST_SUM] += 3
    assert first.get_usage(limits).requests == 4
    restarted = SharedCounters(path, worker=1, workers=2, clock=clock.monotonic)
    assert first.get_usage(limits) == LimitUsage(1, 40, 0, None, 0)
    for each in (first, second, restarted):
        each.close()


def test_reserve_and_commit_take_less_than_200_microseconds(tmp_path: Path) -> None:
    counters = SharedCounters(tmp_path / "counters", workers=4)
    limits = KeyLimits(key_id="k", requests=10**6, tokens=10**9, concurrency=100)
    started_at = time.process_time()
    for _ in range(2000):
        reservation = counters.reserve(limits, 50, 0)
        assert isinstance(reservation, SharedMemoryReservation)
        counters.commit(reservation, 10, 0)
    assert (time.process_time() - started_at) / 2000 < 200e-6
    counters.close()


def test_shared_counters_without_disk_space_report_required_size(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CommandFailed, match=r"need \d+ MiB in .*: File too large") as failure:
            SharedCounters(path, workers=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path) in failure.value.message
    assert not path.exists()
