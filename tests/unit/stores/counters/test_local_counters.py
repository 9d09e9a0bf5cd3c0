"""What holds for counters of one process and for counters in shared memory. They decide alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.manual_clock import ManualClock

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.local import LocalCounters, LocalReservation
from svc.stores.counters.shared_memory import SharedCounters

OPERATIONS = ("reserve", "force", "reserve if known", "commit", "commit", "spent", "past", "usage", "wait", "period")
WAITS = (0.1, 0.9, 5.0, 59.0, 60.0, 61.0, 200.0)


@pytest.fixture(params=["in process", "shared memory"])
def counters(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[LocalCounters]:
    found: LocalCounters = InProcessCounters(clock=clock.monotonic)
    if request.param == "shared memory":
        found = SharedCounters(tmp_path / "counters", workers=1, clock=clock.monotonic)
    yield found
    found.close()


def test_reserve_any_sixty_second_window_stays_within_limit(counters: LocalCounters, clock: ManualClock) -> None:
    limits = KeyLimits(key_id="k", requests=10)
    admitted_at = []
    for step in range(3000):
        clock.now = 1000.0 + step * 0.1
        if isinstance(counters.reserve(limits, 0, 0), LocalReservation):
            admitted_at.append(clock.now)
    assert len(admitted_at) >= 40
    for start in admitted_at:
        assert sum(start <= at < start + 60 for at in admitted_at) <= 10


def test_reserve_if_spent_known_needs_the_sum_of_a_budget_only(counters: LocalCounters) -> None:
    limits = KeyLimits(key_id="k", requests=1, budget_nano_usd=100, period_start=7)
    assert counters.reserve_if_spent_known(limits, 0, 10) is None
    assert counters.get_usage(limits).requests == 0
    counters.set_spent(limits, 95)
    exceeded = counters.reserve_if_spent_known(limits, 0, 10)
    assert isinstance(exceeded, LimitExceeded)
    assert exceeded.limit == "budget"
    other = KeyLimits(key_id="other", requests=1)
    assert isinstance(counters.reserve_if_spent_known(other, 0, 0), LocalReservation)


def test_record_past_request_counts_until_its_minute_ends(counters: LocalCounters, clock: ManualClock) -> None:
    limits = KeyLimits(key_id="k", requests=3, tokens=100)
    for age, tokens in ((0.0, 10), (59.5, 20), (61.5, 40)):
        counters.record_past_request("k", age, tokens)
    assert counters.get_usage(limits) == LimitUsage(2, 30, 0, None, 0)
    clock.now += 3
    assert counters.get_usage(limits) == LimitUsage(1, 10, 0, None, 0)


class Player(ManualClock):
    """Random operations on two keys. Two players with the same seed play the same operations."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now += 0.25
        self._random = random.Random(seed)

    def play(self, counters: LocalCounters, steps: int) -> list[Any]:
        """Return the results of the operations."""
        pick, results = self._random.choice, []
        reservations: list[LocalReservation] = []
        period_start = 100
        for _ in range(steps):
            operation, tokens, nano_usd = pick(OPERATIONS), pick((0, 1, 50, 99)), pick((0, 1, 50, 499))
            limits = KeyLimits(
                pick(("a", "b")),
                requests=pick((0, 3, 50)),
                tokens=pick((0, 100, 1000)),
                concurrency=pick((0, 2, 20)),
                budget_nano_usd=pick((0, 500, 5000)),
                period=pick(("day", "day", "month")),
                period_start=period_start,
            )
            got: Any = None
            if operation == "reserve if known":
                got = counters.reserve_if_spent_known(limits, tokens, nano_usd)
            elif operation in ("reserve", "force"):
                got = counters.reserve(limits, tokens, nano_usd, force=operation == "force")
            elif operation == "commit" and reservations:
                counters.commit(reservations.pop(self._random.randrange(len(reservations))), tokens, nano_usd)
            elif operation == "spent":
                got = counters.needs_spent(limits), counters.get_spent_nano_usd(limits)
                counters.set_spent(limits, nano_usd)
            elif operation == "past":
                counters.record_past_request(limits.key_id, pick((0.0, 30.0, 59.9, 60.9, 100.0)), tokens)
            elif operation == "usage":
                got = counters.get_usage(limits)
            elif operation == "wait":
                self.now += pick(WAITS)
            elif operation == "period":
                period_start += pick((0, 10))
            if isinstance(got, LocalReservation):
                reservations.append(got)
                got = got.second, got.requests_left, got.tokens_left, got.reset_seconds
            results.append((operation, got))
        return results


@pytest.mark.parametrize("seed", range(20))
def test_local_counters_of_both_kinds_decide_alike(seed: int, tmp_path: Path) -> None:
    one, other = Player(seed), Player(seed)
    expected = one.play(InProcessCounters(clock=one.monotonic), 600)
    shared = SharedCounters(tmp_path / "counters", workers=1, clock=other.monotonic)
    assert other.play(shared, 600) == expected
    shared.close()
