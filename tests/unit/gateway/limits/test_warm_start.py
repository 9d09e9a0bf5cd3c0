"""At start, ledger entries of the last minute count against the limits."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from svc.gateway.limits import warm_start
from svc.gateway.limits.warm_start import count_recent_entries, warm_start_counters
from svc.stores.counters.base import LimitUsage
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, KeyLimits
from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread

KEY = KeyLimits(key_id="key")


def entry(age: float, **more: object) -> LedgerEntry:
    """Return an entry that ended `age` seconds ago."""
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


def usage_after(*entries: LedgerEntry, wait: float = 0.0) -> LimitUsage:
    """Return the counted usage `wait` seconds after these entries were counted."""
    now = [10_000.0]
    counters = InProcessCounters(clock=lambda: now[0])
    count_recent_entries(counters, entries)
    now[0] += wait
    found = counters.get_usage(KEY)
    counters.close()
    return found


def test_warm_start_entries_in_window_are_counted() -> None:
    found = usage_after(entry(5), entry(30))
    assert (found.requests, found.tokens, found.running) == (2, 20, 0)


def test_warm_start_entry_expires_one_minute_after_its_end() -> None:
    assert usage_after(entry(30), wait=COUNTER_WINDOW_SECONDS - 32).requests == 1
    assert usage_after(entry(30), wait=COUNTER_WINDOW_SECONDS - 28).requests == 0
    assert usage_after(entry(COUNTER_WINDOW_SECONDS + 2)).requests == 0


def test_warm_start_entry_in_future_is_counted_from_now() -> None:
    assert usage_after(entry(-3600)).requests == 1
    assert usage_after(entry(-3600), wait=COUNTER_WINDOW_SECONDS + 1).requests == 0


def test_warm_start_entry_without_attempt_or_of_other_key_is_not_counted() -> None:
    assert usage_after(entry(5, attempts=0)).requests == 0
    assert usage_after(entry(5, key_id="another")).requests == 0


def test_warm_start_unknown_tokens_count_as_zero() -> None:
    assert usage_after(entry(5, prompt_tokens=None)).tokens == 3
    assert usage_after(entry(5, completion_tokens=None)).tokens == 7


def test_warm_start_database_unreachable_starts_at_zero_and_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters = InProcessCounters()
    with caplog.at_level(logging.WARNING, "svc.limits"):
        asyncio.run(_warm_start(counters, tmp_path))
    assert counters.get_usage(KEY) == LimitUsage()
    counters.close()
    assert "limits of requests and tokens start from 0: The PostgreSQL database 'none' at 127.0.0.1" in caplog.text


def test_warm_start_database_that_does_not_respond_in_time_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "WARM_START_TIMEOUT_SECONDS", 0.05)
    lock = sqlite3.connect(tmp_path / "locked.db", isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    counters = InProcessCounters()
    with caplog.at_level(logging.WARNING, "svc.limits"):
        asyncio.run(_warm_start(counters, tmp_path, f"sqlite:///{tmp_path / 'locked.db'}", lock.close))
    counters.close()
    assert "limits of requests and tokens start from 0: no response in time" in caplog.text


async def _warm_start(
    counters: InProcessCounters,
    home: Path,
    url: str = "postgresql://127.0.0.1:1/none?connect_timeout=1",
    release: Callable[[], None] = lambda: None,
) -> None:
    database = DatabaseThread(open_state_database({"SVC_DATABASE_URL": url}, home), "ledger")
    try:
        await warm_start_counters(counters, database)
    finally:
        release()
        await database.close()
