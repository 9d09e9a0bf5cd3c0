"""The clock of one event loop: its time, the value of the Date header, and a regular tick."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

TICK_SECONDS: Final = 0.25
"""Seconds between two ticks. Timeouts are exact to this."""


class Clock:
    """Belongs to one event loop, from `start` to `stop`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = time.monotonic
        """Loop time in seconds, not rounded."""
        self.date_header = ""
        """The value of the Date header."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, on_tick: Callable[[float], None]) -> None:
        """Call `on_tick` with the loop time, now and every TICK_SECONDS."""
        self._timer = self.loop.call_later(TICK_SECONDS, self.start, on_tick)  # first: `on_tick` may raise
        self.date_header = formatdate(usegmt=True)
        on_tick(self.now())

    def stop(self) -> None:
        """End the ticks."""
        if self._timer is not None:
            self._timer.cancel()
