"""Counters of one process and counters in shared memory decide alike."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.local import LocalCounters, LocalReservation
from svc.stores.counters.shared_memory import SharedCounters

OPERATIONS = ("reserve", "force", "reserve if known", "commit", "commit", "spent", "past", "usage", "wait", "period")
WAITS = (0.1, 0.9, 5.0, 59.0, 60.0, 61.0, 200.0)


class Player:
    """Random operations on two keys. `play` repeats them on other counters with the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.now = 1000.25

    def monotonic(self) -> float:
        return self.now

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
