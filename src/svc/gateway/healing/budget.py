"""How many retries a provider may get: a share of its recent requests, so that they cannot pile up. Pure."""

from __future__ import annotations

from typing import Final

from svc.gateway.healing.window import Window

SECONDS: Final = 10.0
ALWAYS: Final = 10
"""Retries in the window that are allowed whatever the traffic is."""
REQUESTS, RETRIES = 0, 1


class Budget:
    """For one provider. Times are loop times."""

    __slots__ = ("_window", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._window = Window(SECONDS, 2)

    def asked(self, now: float) -> None:
        """A request goes to the provider for the first time."""
        self._window.add(now, REQUESTS)

    def take(self, now: float) -> bool:
        """Whether one more retry may be made; it counts if so."""
        requests, retries = self._window.sums(now)
        if retries >= max(ALWAYS, self.share * requests):
            return False
        self._window.add(now, RETRIES)
        return True
