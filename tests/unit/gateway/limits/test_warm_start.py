"""What the ledger says of the minute before a start counts against the limits."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from svc.gateway.limits.warm_start import count_recent_entries, warm_start_counters
from svc.stores.counters.base import COUNTER_WINDOW_SECONDS, KeyLimits, LimitUsage
from svc.stores.counters.shared_memory import SharedCounters
from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread

KEY = KeyLimits(key_id="key")


def entry(age: float, **more: object) -> LedgerEntry:
    """One that ended so many seconds ago."""
    known = LedgerEntry(
        time=(datetime.now(UTC) - timedelta(seconds=age)).isoformat(),
        request_id="req_1",
        key_id="key",
        key_name="",
        endpoint="/v1/chat/completions",
        attempts=1,
        status="ok",
        http_status=200,
        prompt_tokens=7,
        completion_tokens=3,
        latency_ms=1.0,
    )
    return msgspec.structs.replace(known, **more)


def used(*entries: LedgerEntry, wait: float = 0.0) -> LimitUsage:
    """What counts after these, some seconds later."""
    now = [10_000.0]
    counters = SharedCounters(clock=lambda: now[0])
    count_recent_entries(counters, entries)
    now[0] += wait
    found = counters.get_usage(KEY)
    counters.close()
    return found


def test_count_entries_of_the_window() -> None:
    found = used(entry(5), entry(30))
    assert (found.requests, found.tokens, found.running) == (2, 20, 0)


def test_count_entry_leaves_the_window_a_minute_after_its_end() -> None:
    assert used(entry(30), wait=COUNTER_WINDOW_SECONDS - 32).requests == 1
    assert used(entry(30), wait=COUNTER_WINDOW_SECONDS - 28).requests == 0
    assert used(entry(COUNTER_WINDOW_SECONDS + 2)).requests == 0


def test_count_entry_of_the_future_counts_from_now() -> None:
    assert used(entry(-3600)).requests == 1
    assert used(entry(-3600), wait=COUNTER_WINDOW_SECONDS + 1).requests == 0


def test_count_only_what_reached_for_a_model_with_a_key() -> None:
    assert used(entry(5, attempts=0)).requests == 0
    assert used(entry(5, key_id="another")).requests == 0


def test_count_unknown_tokens_are_none() -> None:
    assert used(entry(5, prompt_tokens=None)).tokens == 3
    assert used(entry(5, completion_tokens=None)).tokens == 7


def test_recall_without_a_database_begins_anew_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counters = SharedCounters()
    with caplog.at_level(logging.WARNING, "svc.limits"):
        asyncio.run(_recall(counters, tmp_path))
    assert counters.get_usage(KEY) == LimitUsage()
    counters.close()
    assert "limits of requests and tokens begin anew: The PostgreSQL database 'none' at 127.0.0.1" in caplog.text


async def _recall(counters: SharedCounters, home: Path) -> None:
    books = DatabaseThread(
        open_state_database({"SVC_DATABASE_URL": "postgresql://127.0.0.1:1/none?connect_timeout=1"}, home), "books"
    )
    try:
        await warm_start_counters(counters, books)
    finally:
        await books.close()
