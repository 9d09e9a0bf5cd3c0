"""Counters of one process."""

from __future__ import annotations

import pytest

from svc.stores.counters import in_process
from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.in_process import InProcessCounters, InProcessReservation
from svc.stores.counters.key_limits import KeyLimits


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters(clock: Clock) -> InProcessCounters:
    return InProcessCounters(clock=clock.monotonic)


def reserve(counters: InProcessCounters, limits: KeyLimits, tokens: int = 0) -> InProcessReservation:
    reservation = counters.reserve(limits, tokens, 0)
    assert isinstance(reservation, InProcessReservation)
    return reservation


def test_reserve_any_sixty_second_window_stays_within_limit(counters: InProcessCounters, clock: Clock) -> None:
    limits = KeyLimits(key_id="k", requests=10)
    admitted_at = []
    for step in range(3000):
        clock.now = 1000.0 + step * 0.1
        if isinstance(counters.reserve(limits, 0, 0), InProcessReservation):
            admitted_at.append(clock.now)
    assert len(admitted_at) >= 40
    for start in admitted_at:
        assert sum(start <= at < start + 60 for at in admitted_at) <= 10


def test_reserve_if_spent_known_needs_the_sum_of_a_budget_only(counters: InProcessCounters) -> None:
    limits = KeyLimits(key_id="k", requests=1, budget_nano_usd=100, period_start=7)
    assert counters.reserve_if_spent_known(limits, 0, 10) is None
    assert counters.get_usage(limits).requests == 0
    counters.set_spent(limits, 95)
    exceeded = counters.reserve_if_spent_known(limits, 0, 10)
    assert isinstance(exceeded, LimitExceeded)
    assert exceeded.limit == "budget"
    other = KeyLimits(key_id="other", requests=1)
    assert isinstance(counters.reserve_if_spent_known(other, 0, 0), InProcessReservation)


def test_commit_after_the_window_changes_no_tokens_of_a_later_one(counters: InProcessCounters, clock: Clock) -> None:
    limits = KeyLimits(key_id="k", tokens=5000)
    reservation = reserve(counters, limits, 4000)
    clock.now = 1061.0  # the same bucket as 1000
    reserve(counters, limits, 10)
    counters.commit(reservation, 500, 7)
    assert counters.get_usage(limits) == LimitUsage(1, 10, 1, None, 0)


def test_record_past_request_counts_until_its_minute_ends(counters: InProcessCounters, clock: Clock) -> None:
    limits = KeyLimits(key_id="k", requests=3, tokens=100)
    for age, tokens in ((0.0, 10), (59.5, 20), (61.5, 40)):
        counters.record_past_request("k", age, tokens)
    assert counters.get_usage(limits) == LimitUsage(2, 30, 0, None, 0)
    clock.now += 3
    assert counters.get_usage(limits) == LimitUsage(1, 10, 0, None, 0)


def test_get_usage_unknown_key_is_not_counted(counters: InProcessCounters) -> None:
    assert counters.get_usage(KeyLimits(key_id="k")) == LimitUsage()
    assert counters.needs_spent(KeyLimits(key_id="k", budget_nano_usd=1))
    assert not counters._keys


def test_many_keys_the_least_recently_used_ones_without_requests_in_flight_are_evicted(
    counters: InProcessCounters, clock: Clock
) -> None:
    running = KeyLimits(key_id="running", concurrency=1)
    reservation = reserve(counters, running)
    for number in range(in_process.MAX_COUNTED_KEYS * 3):
        clock.now = 1001.0 + number // 100
        counters.commit(reserve(counters, KeyLimits(key_id=f"k{number}", requests=1)), 0, 0)
        assert len(counters._keys) <= in_process.MAX_COUNTED_KEYS
    assert isinstance(counters.reserve(running, 0, 0), LimitExceeded)
    assert isinstance(counters.reserve(KeyLimits(key_id=f"k{number}", requests=1), 0, 0), LimitExceeded)
    counters.commit(reservation, 0, 0)
    assert counters.get_usage(running).running == 0


def test_many_keys_all_with_requests_in_flight_are_all_counted(counters: InProcessCounters) -> None:
    keys = [KeyLimits(key_id=f"k{number}", concurrency=1) for number in range(in_process.MAX_COUNTED_KEYS + 2000)]
    held = [reserve(counters, limits) for limits in keys]
    assert all(isinstance(counters.reserve(limits, 0, 0), LimitExceeded) for limits in keys)
    for reservation in held:
        counters.commit(reservation, 0, 0)
    reserve(counters, KeyLimits(key_id="next", requests=1))
    for number in range(2000):
        reserve(counters, KeyLimits(key_id=f"next{number}", requests=1))
    assert len(counters._keys) <= in_process.MAX_COUNTED_KEYS + 2000


def test_commit_of_an_evicted_key_changes_nothing(counters: InProcessCounters, clock: Clock) -> None:
    limits = KeyLimits(key_id="first", tokens=100)
    counters.commit(reserve(counters, limits, 50), 20, 0)
    for number in range(in_process.MAX_COUNTED_KEYS * 2):
        clock.now = 1000.0 + number / 1000
        counters.commit(reserve(counters, KeyLimits(key_id=f"k{number}", requests=1)), 0, 0)
    assert counters.get_usage(limits) == LimitUsage()
