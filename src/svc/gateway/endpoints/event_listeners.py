"""The listeners of `GET /v1/events`: their number, their queues, and which events each of them gets."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from svc.errors import RateLimited
from svc.gateway.endpoints.event_poll import EventBatch, encode_event
from svc.keys.request_search import format_millis
from svc.keys.usage_series import SeriesAmounts, show_amounts
from svc.stores.database.segment import UsageTotals

EVENT_POLL_SECONDS: Final = 2.0
MAX_LISTENERS: Final = 64
"""The most listeners of one process."""
MAX_KEY_LISTENERS: Final = 16
"""The most listeners of one key without the scope `admin`, in one process."""
MAX_QUEUED_EVENTS: Final = 256
"""The events that wait for a slow listener. The oldest ones are dropped and counted."""


class StatsEvent(SeriesAmounts, frozen=True, kw_only=True):
    """The event `stats`: the use in the current hour (UTC), by the key or with the scope `admin` by all keys."""

    time: str
    """The time of the event: ISO 8601, UTC."""
    hour: str
    """The start of the hour."""
    open_requests: int | None
    """Requests in flight on this machine. Null without the scope `admin`."""
    open_streams: int | None
    """Chat streams in flight on this machine. Null without the scope `admin`."""
    dropped: int
    """The events `request` that this listener did not get since its stream began, because there were too many."""


class Listener:
    """The queue of one stream of events."""

    def __init__(self, key_id: str | None, *, has_requests: bool = True) -> None:
        self.key_id = key_id
        """The only key whose events it gets, or None for all."""
        self.has_requests = has_requests
        """Whether it gets the events `request`."""
        self.dropped = 0
        self.is_closed = False
        self._events: deque[bytes] = deque()
        self._has_changed = asyncio.Event()

    def add(self, event: bytes) -> None:
        """Queue an event. A full queue drops its oldest one."""
        if len(self._events) >= MAX_QUEUED_EVENTS:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._has_changed.set()

    def close(self) -> None:
        """End the stream after the queued events."""
        self.is_closed = True
        self._has_changed.set()

    async def take(self, seconds: float) -> bytes:
        """Return the queued events, or nothing if there is none for this time."""
        try:
            await asyncio.wait_for(self._has_changed.wait(), seconds)
        except TimeoutError:
            return b""
        self._has_changed.clear()
        events, self._events = b"".join(self._events), deque()
        return events


class Listeners:
    """The listeners of this process, by the key whose events they get."""

    def __init__(self) -> None:
        self._by_key: dict[str | None, set[Listener]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def has_admin(self) -> bool:
        """Return whether a listener gets the events of all keys."""
        return None in self._by_key

    def has_requests(self) -> bool:
        """Return whether a listener gets the events `request`."""
        return any(listener.has_requests for found in self._by_key.values() for listener in found)

    def register(self, key_id: str | None, *, has_requests: bool = True) -> Listener:
        """Add a listener, which counts from now on until `discard`. Raises RateLimited."""
        found = self._by_key.get(key_id, set())
        if len(self) >= MAX_LISTENERS:
            raise RateLimited(
                f"This gateway has {MAX_LISTENERS} listeners of events. Close one of them.",
                retry_after=EVENT_POLL_SECONDS,
            )
        if key_id is not None and len(found) >= MAX_KEY_LISTENERS:
            raise RateLimited(
                f"This key has {MAX_KEY_LISTENERS} listeners of events. Close one of them.",
                retry_after=EVENT_POLL_SECONDS,
            )
        listener = Listener(key_id, has_requests=has_requests)
        self._by_key.setdefault(key_id, found).add(listener)
        return listener

    def discard(self, listener: Listener) -> None:
        """Remove a listener."""
        found = self._by_key.get(listener.key_id, set())
        found.discard(listener)
        if not found:
            self._by_key.pop(listener.key_id, None)

    def close(self) -> None:
        """End all streams."""
        for found in self._by_key.values():
            for listener in found:
                listener.close()

    def publish(self, batch: EventBatch, values: Mapping[str, float]) -> Iterator[None]:
        """Give each listener its events, one at each step. `values` are those of the metrics.

        The caller pauses between the steps, so that a request does not wait until the events of all are written.
        Only listeners of all keys need `values`.
        """
        for key_id, found in [*self._by_key.items()]:
            events = batch.events if key_id is None else batch.events_by_key.get(key_id, ())
            missing = batch.missing_total if key_id is None else batch.missing_by_key.get(key_id, 0)
            totals = batch.use_total if key_id is None else batch.use_by_key.get(key_id, UsageTotals())
            stats = StatsEvent(
                time=format_millis(int(time.time() * 1000)),
                hour=format_millis(batch.hour * 1000),
                open_requests=int(values["svc_open_requests"]) if key_id is None else None,
                open_streams=int(values["svc_open_streams"]) if key_id is None else None,
                dropped=0,
                **show_amounts(totals),
            )
            stats_by_dropped: dict[int, bytes] = {}
            for listener in [*found]:
                if listener.has_requests:
                    for event in events:
                        listener.add(event)
                    listener.dropped += missing
                dropped = listener.dropped
                if dropped not in stats_by_dropped:
                    data = msgspec.json.encode(msgspec.structs.replace(stats, dropped=dropped))
                    stats_by_dropped[dropped] = encode_event("stats", data)
                listener.add(stats_by_dropped[dropped])
                yield
