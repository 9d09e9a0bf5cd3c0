"""Counters that several processes share."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.errors import CommandFailed
from svc.stores.counters import shared_memory
from svc.stores.counters.base import KeyLimits, LimitExceeded, LimitUsage
from svc.stores.counters.shared_memory import SharedCounters, SharedMemoryReservation


class Clock:
    """As the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters(clock: Clock) -> Iterator[SharedCounters]:
    found = SharedCounters(clock=clock.monotonic)
    yield found
    found.close()


def test_no_sixty_seconds_have_more_than_the_limit(counters: SharedCounters, clock: Clock) -> None:
    limits = KeyLimits(key_id="k", requests=10)
    let_through = []
    for step in range(3000):
        clock.now = 1000.0 + step * 0.1
        if isinstance(counters.reserve(limits, 0, 0), SharedMemoryReservation):
            let_through.append(clock.now)
    assert len(let_through) >= 40
    for start in let_through:
        assert sum(start <= at < start + 60 for at in let_through) <= 10


def test_a_slot_that_went_to_another_key_is_not_settled(counters: SharedCounters, clock: Clock) -> None:
    taken = counters.reserve(KeyLimits(key_id="first", concurrency=1), 0, 0)
    assert isinstance(taken, SharedMemoryReservation)
    for number in range(shared_memory.SLOT_COUNT * 2):
        clock.now = 1000.0 + number / 1000
        counters.reserve(KeyLimits(key_id=f"k{number}", requests=1), 0, 0)
    counters.commit(taken, 0, 0)
    assert isinstance(counters.reserve(KeyLimits(key_id="k1", requests=5), 0, 0), SharedMemoryReservation)


WORKER = """
import sys, time
from pathlib import Path
from svc.stores.counters.base import KeyLimits
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


def test_processes_share_a_limit(tmp_path: Path) -> None:
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


def test_what_a_killed_worker_had_running_is_freed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    command = [sys.executable, "-c", WORKER, str(path), "1", "stay"]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(3)] == ["ready\n", "600\n", "5\n"]
    here = SharedCounters(path, worker=0, workers=4)
    limits = KeyLimits(key_id="other", concurrency=5)
    assert isinstance(here.reserve(limits, 0, 0), LimitExceeded)
    process.kill()
    process.wait(5)
    assert isinstance(here.reserve(limits, 0, 0), LimitExceeded)
    again = SharedCounters(path, worker=1, workers=4)
    assert isinstance(here.reserve(limits, 0, 0), SharedMemoryReservation)
    assert isinstance(here.reserve(KeyLimits(key_id="k", requests=600), 0, 0), LimitExceeded)
    again.close()
    here.close()


def test_a_key_that_is_looked_at_takes_no_place(counters: SharedCounters) -> None:
    for number in range(shared_memory.SLOT_COUNT + 1):
        assert counters.get_usage(KeyLimits(key_id=f"k{number}")) == LimitUsage()
    assert counters.needs_spent(KeyLimits(key_id="k0", budget_nano_usd=1))


def test_sums_that_a_death_in_the_middle_has_left_wrong_are_mended(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "counters"
    limits = KeyLimits(key_id="k", requests=10, tokens=100)
    here = SharedCounters(path, worker=0, workers=2, clock=clock.monotonic)
    there = SharedCounters(path, worker=1, workers=2, clock=clock.monotonic)
    there.reserve(limits, 40, 0)
    there._words[there._slot_for_key("k")[0] * there._slot_words + shared_memory._REQUEST_SUM] += 3
    assert here.get_usage(limits).requests == 4
    again = SharedCounters(path, worker=1, workers=2, clock=clock.monotonic)
    assert here.get_usage(limits) == LimitUsage(1, 40, 0, None, 0)
    for each in (here, there, again):
        each.close()


def test_what_another_has_let_through_counts_until_its_minute_is_over(counters: SharedCounters, clock: Clock) -> None:
    limits = KeyLimits(key_id="k", requests=3, tokens=100)
    for age, tokens in ((0.0, 10), (59.5, 20), (61.5, 40)):
        counters.record_past_request("k", age, tokens)
    assert counters.get_usage(limits) == LimitUsage(2, 30, 0, None, 0)
    clock.now += 3
    assert counters.get_usage(limits) == LimitUsage(1, 10, 0, None, 0)


def test_a_reservation_is_cheap(tmp_path: Path) -> None:
    counters = SharedCounters(tmp_path / "counters", workers=4)
    limits = KeyLimits(key_id="k", requests=10**6, tokens=10**9, concurrency=100)
    began = time.process_time()
    for _ in range(2000):
        taken = counters.reserve(limits, 50, 0)
        assert isinstance(taken, SharedMemoryReservation)
        counters.commit(taken, 10, 0)
    assert (time.process_time() - began) / 2000 < 200e-6
    counters.close()


def test_counters_without_room_on_the_disk_say_how_much_they_need(tmp_path: Path) -> None:
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
