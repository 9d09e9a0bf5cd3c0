"""Divides the slots of a server of this machine between API keys, turn by turn. No I/O.

The next turn goes to the key with the fewest turns in progress. Keys that have equally many take turns, and so do the
requests of one key. A request gets further turns until its parts are complete, so that a short request waits for
about one part of a long one.

A key may have as many requests in the queue as the queue has free places. So one key alone fills half of it, and there
is always a place for a key that has none.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Protocol

from svc.errors import RateLimited

MIN_QUEUE_RETRY_SECONDS: Final = 1.0
MAX_QUEUE_RETRY_SECONDS: Final = 60.0
TURN_SECONDS_WEIGHT: Final = 0.2
"""The weight of the last turn in the moving average of the duration of a turn."""
QUEUE_LIMIT_NAME: Final = "queue"


class QueuedRequest(Protocol):
    """A request that needs one turn or more."""

    key_id: str
    """The key that the turns count for."""

    @property
    def remaining_turns(self) -> int:
        """The turns that the request still needs, with the current one."""

    def start_turn(self) -> None:
        """Begin a turn. `FairQueue.end_turn` or `FairQueue.remove` ends it."""


class _KeyQueue:
    """The requests of one key."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        """Turns in progress."""
        self.waiting: deque[QueuedRequest] = deque()
        """Requests that wait for a turn, in the order in which they get it."""


class FairQueue:
    """The requests to one server that are waiting or in progress."""

    def __init__(self, name: str) -> None:
        """`name` describes the server in errors, such as `The model all-minilm-l6-v2`."""
        self._name = name
        self._slots = 1
        self._slots_per_key = 1
        self._size = 1
        self._keys: dict[str, _KeyQueue] = {}
        """In the order in which keys with equally many turns in progress get their next one."""
        self._requests: set[QueuedRequest] = set()
        self._turn_starts: dict[QueuedRequest, float] = {}
        self._turn_seconds = 0.0

    def configure(self, *, slots: int, size: int, slots_per_key: int = 0) -> None:
        """Set the turns at a time, of all keys and of one key (0 means no limit), and the requests in the queue."""
        self._slots = slots
        self._slots_per_key = slots_per_key or slots
        self._size = size
        self._start_turns()

    @property
    def length(self) -> int:
        """The number of requests that are waiting or in progress."""
        return len(self._requests)

    def find_refusal(self, key_id: str) -> RateLimited | None:
        """Return the error for a further request of a key, or None if there is a place for it."""
        own = sum(request.key_id == key_id for request in self._requests)
        if own < self._size - len(self._requests):
            return None
        turns = sum(request.remaining_turns for request in self._requests)
        seconds = turns * self._turn_seconds / self._slots / max(1, len(self._requests))
        return RateLimited(
            f"{self._name} is busy: the queue has no place for another request of this key ({QUEUE_LIMIT_NAME}).",
            retry_after=min(MAX_QUEUE_RETRY_SECONDS, max(MIN_QUEUE_RETRY_SECONDS, seconds)),
            limit=QUEUE_LIMIT_NAME,
        )

    def add(self, request: QueuedRequest) -> None:
        """Add a request, which gets a turn at once if a slot is free."""
        self._requests.add(request)
        self._enqueue(request)
        self._start_turns()

    def end_turn(self, request: QueuedRequest) -> None:
        """End the current turn of a request. It gets another one later, unless it needs none."""
        self._release_slot(request)
        if request.remaining_turns > 0:
            self._enqueue(request)
        else:
            self._requests.discard(request)
        self._start_turns()

    def remove(self, request: QueuedRequest) -> None:
        """Remove a request, waiting or not. It may be removed already."""
        if request not in self._requests:
            return
        self._requests.discard(request)
        if request in self._turn_starts:
            self._release_slot(request)
        else:
            key = self._keys[request.key_id]
            key.waiting.remove(request)
            self._drop_idle(request.key_id, key)
        self._start_turns()

    def _enqueue(self, request: QueuedRequest) -> None:
        key = self._keys.get(request.key_id)
        if key is None:
            key = self._keys[request.key_id] = _KeyQueue()
        key.waiting.append(request)

    def _release_slot(self, request: QueuedRequest) -> None:
        seconds = time.monotonic() - self._turn_starts.pop(request)
        average = self._turn_seconds or seconds
        self._turn_seconds = average + TURN_SECONDS_WEIGHT * (seconds - average)
        key = self._keys.pop(request.key_id)
        key.running -= 1
        self._keys[request.key_id] = key  # the last one among equals from now on
        self._drop_idle(request.key_id, key)

    def _drop_idle(self, key_id: str, key: _KeyQueue) -> None:
        if not key.running and not key.waiting:
            del self._keys[key_id]

    def _start_turns(self) -> None:
        while len(self._turn_starts) < self._slots:
            key_id = self._next_key()
            if key_id is None:
                return
            key = self._keys.pop(key_id)
            self._keys[key_id] = key  # the last one among equals from now on
            request = key.waiting.popleft()
            key.running += 1
            self._turn_starts[request] = time.monotonic()
            request.start_turn()

    def _next_key(self) -> str | None:
        """Return the key that gets the next turn: the first of those with the fewest turns in progress."""
        found: str | None = None
        fewest = self._slots_per_key
        for key_id, key in self._keys.items():
            if key.waiting and key.running < fewest:
                found, fewest = key_id, key.running
        return found
