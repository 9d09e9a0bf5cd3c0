"""Counters of one process."""

from __future__ import annotations

import pytest
from tests.fakes.manual_clock import ManualClock

from svc.stores.counters import in_process
from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.in_process import InProcessCounters, InProcessReservation
from svc.stores.counters.key_limits import KeyLimits


@pytest.fixture
def counters(clock: ManualClock) -> InProcessCounters:
    return InProcessCounters(clock=clock.monotonic)


def reserve(counters: InProcessCounters, limits: KeyLimits, tokens: int = 0) -> InProcessReservation:
    reservation = counters.reserve(limits, tokens, 0)
    assert isinstance(reservation, InProcessReservation)
    return reservation


def test_commit_after_the_window_changes_no_tokens_of_a_later_one(
    counters: InProcessCounters, clock: ManualClock
) -> None:
    limits = KeyLimits(key_id="k", tokens=5000)
    reservation = reserve(counters, limits, 4000)
    clock.now = 1061.0  # the same bucket as 1000
    reserve(counters, limits, 10)
    counters.commit(reservation, 500, 7)
    assert counters.get_usage(limits) == LimitUsage(1, 10, 1, None, 0)


def test_get_usage_unknown_key_is_not_counted(counters: InProcessCounters) -> None:
    assert counters.get_usage(KeyLimits(key_id="k")) == LimitUsage()
    assert counters.needs_spent(KeyLimits(key_id="k", budget_nano_usd=1))
    assert not counters._keys


def test_many_keys_the_least_recently_used_ones_without_requests_in_flight_are_evicted(
    counters: InProcessCounters, clock: ManualClock
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


def test_commit_of_an_evicted_key_changes_nothing(counters: InProcessCounters, clock: ManualClock) -> None:
    limits = KeyLimits(key_id="first", tokens=100)
    counters.commit(reserve(counters, limits, 50), 20, 0)
    for number in range(in_process.MAX_COUNTED_KEYS * 2):
        clock.now = 1000.0 + number / 1000
        counters.commit(reserve(counters, KeyLimits(key_id=f"k{number}", requests=1)), 0, 0)
    assert counters.get_usage(limits) == LimitUsage()
