"""The listeners of events: their queues, their number, and which events each of them gets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from svc.errors import RateLimited
from svc.gateway.endpoints.event_listeners import (
    MAX_KEY_LISTENERS,
    MAX_LISTENERS,
    MAX_QUEUED_EVENTS,
    Listener,
    Listeners,
)
from svc.gateway.endpoints.event_poll import EventBatch, NewEntries
from svc.ledger_queries.recent_use import MAX_POLLED_ENTRIES, read_recent_use
from svc.stores.database.base import LedgerEntry
from svc.stores.database.sqlite import SqliteDatabase

VALUES = {"svc_open_requests": 3.0, "svc_open_streams": 1.0}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(tmp_path / "svc.db")
    opened.migrate()
    yield opened
    opened.close()


def entries(key_id: str, count: int) -> list[LedgerEntry]:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000Z"
    return [
        LedgerEntry(
            time=now,
            request_id=f"{key_id}-{number}-{time.monotonic_ns()}",
            key_id=key_id,
            key_name=key_id,
            endpoint="/v1/chat/completions",
            attempts=1,
            status="ok",
            http_status=200,
            cost_usd=0.5,
            latency_ms=1.0,
        )
        for number in range(count)
    ]


def publish(listeners: Listeners, batch: EventBatch) -> None:
    for _ in listeners.publish(batch, VALUES):
        pass


async def take(listener: Listener, name: str) -> list[dict[str, Any]]:
    """Return the data of the queued events of this name."""
    lines = (await listener.take(1.0)).decode().splitlines()
    events = zip(lines[::3], lines[1::3], strict=False)
    return [json.loads(data.removeprefix("data: ")) for event, data in events if event == f"event: {name}"]


async def test_slow_listener_loses_its_oldest_events_and_they_are_counted() -> None:
    listener = Listener(None)
    for number in range(MAX_QUEUED_EVENTS + 3):
        listener.add(b"%d\n" % number)
    assert (await listener.take(1.0)).split() == [b"%d" % number for number in range(3, MAX_QUEUED_EVENTS + 3)]
    assert listener.dropped == 3
    assert await listener.take(0.01) == b""


def test_registered_listeners_count_before_their_stream_begins() -> None:
    listeners = Listeners()
    own = [listeners.register("k") for _ in range(MAX_KEY_LISTENERS)]
    with pytest.raises(RateLimited, match="This key has 16 listeners"):
        listeners.register("k")
    listeners.discard(own[0])
    listeners.discard(own[0])
    listeners.register("k")
    for _ in range(MAX_LISTENERS - MAX_KEY_LISTENERS):
        listeners.register(None)
    with pytest.raises(RateLimited, match="This gateway has 64 listeners"):
        listeners.register("other")


async def test_listeners_get_the_events_and_the_use_of_their_key_or_of_all(database: SqliteDatabase) -> None:
    listeners, new_entries = Listeners(), NewEntries()
    everything, one, other = (listeners.register(key_id) for key_id in (None, "one", "other"))
    database.insert_entries(entries("one", 1))
    publish(listeners, new_entries.next_batch(read_recent_use(database)))
    database.insert_entries([*entries("one", 2), *entries("two", 1)])
    batch = new_entries.next_batch(read_recent_use(database))
    publish(listeners, batch)
    assert [row["key_id"] for row in await take(one, "request")] == ["one", "one"]
    assert sorted(row["key_id"] for row in await take(everything, "request")) == ["one", "one", "two"]
    assert await take(other, "request") == []
    publish(listeners, batch)
    stats = [(await take(listener, "stats"))[-1] for listener in (everything, one, other)]
    if stats[0]["requests"] == 4:  # fewer if a new hour has begun
        assert [row["requests"] for row in stats] == [4, 3, 0]
        assert [row["cost_usd"] for row in stats] == [2.0, 1.5, None]
    assert [row["open_requests"] for row in stats] == [3, None, None]
    assert [row["dropped"] for row in stats] == [0, 0, 0]


async def test_requests_that_a_poll_could_not_read_are_counted_as_dropped(database: SqliteDatabase) -> None:
    listeners, new_entries = Listeners(), NewEntries()
    first = new_entries.next_batch(read_recent_use(database))
    everything, one = listeners.register(None), listeners.register("one")
    database.insert_entries([*entries("one", MAX_POLLED_ENTRIES), *entries("two", 50)])
    batch = new_entries.next_batch(read_recent_use(database))
    publish(listeners, batch)
    assert everything.dropped == (50 if batch.hour == first.hour else 0)
    assert batch.missing_total == sum(batch.missing_by_key.values()) == everything.dropped
    assert one.dropped == batch.missing_by_key.get("one", 0)
    late = listeners.register("one")
    publish(listeners, batch)
    assert (await take(late, "stats"))[0]["dropped"] == late.dropped


async def test_listener_without_requests_gets_the_use_alone(database: SqliteDatabase) -> None:
    listeners, new_entries = Listeners(), NewEntries()
    brief = listeners.register(None, has_requests=False)
    assert not listeners.has_requests()
    publish(listeners, new_entries.next_batch(read_recent_use(database, has_entries=False)))
    database.insert_entries(entries("one", 3))
    publish(listeners, new_entries.next_batch(read_recent_use(database, has_entries=False)))
    full = listeners.register(None)
    assert listeners.has_requests()
    publish(listeners, new_entries.next_batch(read_recent_use(database)))
    assert await take(full, "request") == []  # they ended before its stream began
    database.insert_entries(entries("one", 2))
    publish(listeners, new_entries.next_batch(read_recent_use(database)))
    assert len(await take(full, "request")) == 2
    assert (full.dropped, brief.dropped) == (0, 0)
    lines = (await brief.take(1.0)).decode().splitlines()
    assert set(lines[::3]) == {"event: stats"}
    assert len(lines) == 4 * 3
