"""Shares circuit breaker states between machines through Redis. A process follows the others within a second.

No request waits for Redis: each uses the state in its own process.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Final

from svc.gateway.routing.circuit_breaker import MAX_OPEN_SECONDS
from svc.gateway.routing.load_balancer import BackendHealth, LoadBalancer
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import RedisClient, RedisReply

BREAKER_POLL_SECONDS: Final = 1.0


class SharedBreakers:
    """Publishes and polls the breaker states of one event loop, from `start` to `close`.

    The caller closes the Redis connection.
    """

    def __init__(self, load_balancer: LoadBalancer, redis: RedisClient) -> None:
        self._load_balancer = load_balancer
        self._redis = redis
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Publish changes, and poll the others' every BREAKER_POLL_SECONDS."""
        self._load_balancer.on_breaker_change = self._publish
        self._task = asyncio.get_running_loop().create_task(self._run(), name="breakers")

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BREAKER_POLL_SECONDS)
            names = list(self._load_balancer.breaker_states())
            if names:
                self._redis.send(functools.partial(self._apply_states, names), ("MGET", *map(_redis_key, names)))

    def _publish(self, health: BackendHealth) -> None:
        """Write the state of a breaker that this process has opened or closed."""
        breaker = health.breaker
        if breaker.state == "open":
            open_seconds = breaker.open_seconds
            state_value = (
                f"{time.time() + open_seconds} {int(breaker.opened_for_slowness)} {int(breaker.has_responses)}"
            )
            self._redis.send(
                _ignore_reply, ("SET", _redis_key(health.name), state_value, "PX", int(open_seconds * 1000))
            )
        elif breaker.state == "closed":
            self._redis.send(_ignore_reply, ("DEL", _redis_key(health.name)))

    def _apply_states(self, names: list[str], reply: RedisReply | StoreUnavailable) -> None:
        if not isinstance(reply, list) or len(reply) != len(names):
            return
        now = asyncio.get_running_loop().time()
        for name, state_value in zip(names, reply, strict=True):
            if isinstance(state_value, bytes):
                until, _, flags = state_value.partition(b" ")
                try:
                    open_seconds = float(until) - time.time()
                except ValueError:  # not written by a gateway
                    continue
                if 0 < open_seconds <= MAX_OPEN_SECONDS:
                    self._load_balancer.open_from_peer(
                        name, now, open_seconds, is_slow=flags[:1] == b"1", has_responses=flags[2:] == b"1"
                    )


def _redis_key(name: str) -> str:
    return f"svc:{{breakers}}:{name}"  # one slot of a cluster, for MGET


def _ignore_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: a process that misses a state change detects the failure itself."""
