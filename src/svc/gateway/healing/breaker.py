"""Stops asking a target that fails, or answers far too slowly, and finds out with real requests when it is well. Pure.

closed ── half of the last 20 or more requests failed, or were slow ──> open ── after a while ──> half-open
   ^                                                                      ^ └──────── a probe failed ────┤
   └──────────────────────────────── a probe was answered ───────────────┼──────────────────────────────┘
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

from svc.gateway.healing.window import Window

State = Literal["closed", "open", "half-open"]
_ORDER: Final[tuple[State, ...]] = ("closed", "half-open", "open")

SECONDS: Final = 10.0
NEEDED: Final = 20
"""Requests in the window before it says anything."""
SHARE: Final = 0.5
DEAD: Final = 0.9
"""The share of requests that got no answer at all from which the target is taken for dead."""
FIRST_REST, LONGEST_REST = 2.0, 60.0
"""Seconds that it stays open; twice as long after each failed probe."""
PATIENCE: Final = 60.0
"""Seconds after which a probe that was never heard of again does not hold up the next one."""
USUAL: Final = 5.0
SLOWEST_USUAL: Final = 2.0
"""Slow, when nothing is set: `USUAL` times the target's usual time to a first byte, and at least so many seconds."""
OUTRUN: Final = 2.0
"""Likewise, while it has not answered: `OUTRUN` times its usual time is slow once another target has answered."""
LEARNING: Final = 0.05
"""The weight of one answer in what is usual."""

TOTAL, FAILED, SLOW, SILENT = 0, 1, 2, 3


def worst(states: Iterable[State]) -> State:
    """Of several breakers for one place."""
    return max(states, key=_ORDER.index, default="closed")


class Breaker:
    """For one target. `slow_after`: seconds to the first byte that are slow; 0 takes the target's own usual time."""

    __slots__ = ("_probe_until", "_rest", "_retry_at", "_usual", "_window", "slow", "slow_after", "soft", "state")

    def __init__(self, *, slow_after: float = 0.0) -> None:
        self.state: State = "closed"
        self.slow = False
        """It is open for slowness."""
        self.soft = False
        """Some answers do come: a request that has nowhere else to go is better sent than refused."""
        self.slow_after = slow_after
        self._window = Window(SECONDS, 4)
        self._rest = FIRST_REST
        self._retry_at = 0.0
        self._probe_until = 0.0
        self._usual = [0.0, 0.0]

    def admits(self, now: float) -> bool:
        """Whether a request may go to the target; in half-open state the one that gets True is the probe."""
        if self.state == "closed":
            return True
        if self.state == "open":
            if now < self._retry_at:
                return False
            self.state = "half-open"
            self._probe_until = 0.0
        if now < self._probe_until:
            return False
        self._probe_until = now + PATIENCE
        return True

    def might(self, now: float) -> bool:
        """What `admits` would say; changes nothing."""
        if self.state == "open":
            return now >= self._retry_at
        return self.state == "closed" or now >= self._probe_until

    def answered(self, now: float, seconds: float, *, stream: bool) -> None:
        """A first byte (of a whole answer: the last one) after so many seconds."""
        slow = self._is_slow(seconds, stream)
        if self.state == "half-open":
            if slow and self.slow:
                self._open(now)
            else:
                self._close()
        elif self.state == "closed":
            self._window.add(now, TOTAL)
            if slow:
                self._window.add(now, SLOW)
                self._judge(now)

    def outrun(self, now: float, seconds: float, *, stream: bool) -> None:
        """Not a byte for so many seconds, then another target was faster and it was let go of: slow, or not known."""
        limit = self.slow_after or OUTRUN * self._usual[stream] or math.inf
        if seconds <= limit:
            self.forgotten()
        elif self.state == "half-open":
            self._open(now)
        elif self.state == "closed":
            self._window.add(now, TOTAL)
            self._window.add(now, SLOW)
            self._judge(now)

    def failed(self, now: float, *, counted: bool = False, silent: bool = False) -> None:
        """It failed; `counted`: a stream that was reported as answered broke later; `silent`: nothing came of it."""
        if self.state == "half-open":
            self._open(now)
        elif self.state == "closed":
            if not counted:
                self._window.add(now, TOTAL)
            self._window.add(now, FAILED)
            if silent:
                self._window.add(now, SILENT)
            self._judge(now)

    @property
    def rest(self) -> float:
        """Seconds that it stays open, from its opening on."""
        return self._rest

    def follow(self, now: float, rest: float, *, slow: bool, soft: bool) -> bool:
        """Another process has opened its own, for so many seconds more; whether that changes anything here."""
        if self.state != "closed":
            return False
        self.state, self.slow, self.soft = "open", slow, soft
        self._retry_at = now + rest
        self._window.clear()
        return True

    def forgotten(self) -> None:
        """Nothing can be said of an attempt: the client left."""
        self._probe_until = 0.0

    def _judge(self, now: float) -> None:
        total, failed, slow, silent = self._window.sums(now)
        if total >= NEEDED and failed + slow >= SHARE * total:
            self.slow = failed < slow
            self.soft = silent < DEAD * total
            self._open(now)

    def _open(self, now: float) -> None:
        self._rest = FIRST_REST if self.state == "closed" else min(LONGEST_REST, self._rest * 2)
        self.state = "open"
        self._retry_at = now + self._rest
        self._window.clear()

    def _close(self) -> None:
        self.state = "closed"
        self.slow = self.soft = False
        self._window.clear()

    def _is_slow(self, seconds: float, stream: bool) -> bool:
        if self.slow_after:
            return seconds > self.slow_after
        usual = self._usual[stream]
        slow = usual > 0 and seconds > max(SLOWEST_USUAL, USUAL * usual)
        if not slow:
            self._usual[stream] = seconds if usual == 0 else usual + LEARNING * (seconds - usual)
        return slow
