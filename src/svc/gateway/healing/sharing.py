"""Breakers that several machines share, through Redis: who opens one says so, and the others follow within a second.

Nothing waits for this: a request is steered by what its own process knows.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Final

from svc.gateway.healing.breaker import LONGEST_REST
from svc.gateway.healing.steering import Health, Steering
from svc.stores.base import StoreDown
from svc.stores.redis import Redis
from svc.stores.resp import Reply

LOOK_SECONDS: Final = 1.0


class Sharing:
    """Belongs to one event loop, from `start` to `close`. Does not own the connection."""

    def __init__(self, steering: Steering, redis: Redis) -> None:
        self._steering = steering
        self._redis = redis
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._steering.tell = self._tell
        self._task = asyncio.get_running_loop().create_task(self._run(), name="breakers")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            names = list(self._steering.states())
            if names:
                self._redis.send(functools.partial(self._heard, names), "MGET", *map(_place, names))

    def _tell(self, health: Health) -> None:
        """A breaker of this process has opened or closed."""
        breaker = health.breaker
        if breaker.state == "open":
            rest = breaker.rest
            what = f"{time.time() + rest} {int(breaker.slow)} {int(breaker.soft)}"
            self._redis.send(_unheard, "SET", _place(health.name), what, "PX", int(rest * 1000))
        elif breaker.state == "closed":
            self._redis.send(_unheard, "DEL", _place(health.name))

    def _heard(self, names: list[str], reply: Reply | StoreDown) -> None:
        if not isinstance(reply, list) or len(reply) != len(names):
            return
        now = asyncio.get_running_loop().time()
        for name, what in zip(names, reply, strict=True):
            if isinstance(what, bytes):
                until, _, flags = what.partition(b" ")
                try:
                    rest = float(until) - time.time()
                except ValueError:  # not ours
                    continue
                if 0 < rest <= LONGEST_REST:
                    self._steering.follow(name, now, rest, slow=flags[:1] == b"1", soft=flags[2:] == b"1")


def _place(name: str) -> str:
    return f"svc:breaker:{name}"


def _unheard(reply: Reply | StoreDown) -> None:
    """Whoever missed it finds out for itself."""
