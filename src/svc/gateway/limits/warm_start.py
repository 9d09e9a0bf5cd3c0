"""What keys had let through in the minute before a start, from the ledger: limits are not new with the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime

from svc.stores.counters.base import COUNTER_WINDOW_SECONDS
from svc.stores.counters.shared_memory import SharedCounters
from svc.stores.database.base import Database, LedgerEntry, StoreUnavailable
from svc.stores.database.thread import DatabaseThread

log = logging.getLogger("svc.limits")

MAX_RECENT_ENTRIES = 20_000
"""The newest entries that are looked at: more would make the start late."""
WARM_START_TIMEOUT_SECONDS = 2.0
"""So long it waits for the database."""


def load_recent_entries(database: Database) -> list[LedgerEntry]:
    """Of the window. Raises StoreDown."""
    return database.list_entries(since=time.time() - COUNTER_WINDOW_SECONDS, limit=MAX_RECENT_ENTRIES)


def count_recent_entries(counters: SharedCounters, recent_entries: Sequence[LedgerEntry]) -> None:
    """Those that reached for a model; each counts from its end on, a little longer than it would have."""
    now = time.time()
    for entry in recent_entries:
        if entry.attempts and entry.key_id:
            age = max(0.0, now - datetime.fromisoformat(entry.time).timestamp())
            counters.record_past_request(entry.key_id, age, (entry.prompt_tokens or 0) + (entry.completion_tokens or 0))


async def warm_start_counters(counters: SharedCounters, database: DatabaseThread) -> None:
    """Both; without the database's answer the minute begins anew."""
    try:
        count_recent_entries(
            counters, await asyncio.wait_for(database.run_query(load_recent_entries), WARM_START_TIMEOUT_SECONDS)
        )
    except (StoreUnavailable, TimeoutError) as error:
        log.warning("limits of requests and tokens begin anew: %s", error or "no answer in time")
