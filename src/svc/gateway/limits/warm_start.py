"""Restores the rate limit counters at a start, from the ledger entries of the last minute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime

from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS
from svc.stores.counters.local import LocalCounters
from svc.stores.database.base import Database, LedgerEntry, StoreUnavailable
from svc.stores.database.thread import DatabaseThread

log = logging.getLogger("svc.limits")

MAX_RECENT_ENTRIES = 20_000
"""The maximum number of entries that are read. More would delay the start."""
WARM_START_TIMEOUT_SECONDS = 2.0
"""The timeout of the database query, in seconds."""


def load_recent_entries(database: Database) -> list[LedgerEntry]:
    """Return the entries of the rate limit window. Raises StoreUnavailable."""
    return database.list_entries(since=time.time() - COUNTER_WINDOW_SECONDS, limit=MAX_RECENT_ENTRIES)


def count_recent_entries(counters: LocalCounters, recent_entries: Sequence[LedgerEntry]) -> None:
    """Count entries with an attempt at a provider. Each counts from its end, slightly longer than before a restart."""
    now = time.time()
    for entry in recent_entries:
        if entry.attempts and entry.key_id:
            age = max(0.0, now - datetime.fromisoformat(entry.time).timestamp())
            counters.record_past_request(entry.key_id, age, (entry.prompt_tokens or 0) + (entry.completion_tokens or 0))
            if entry.ephemeral_id is not None:
                counters.record_past_request(entry.ephemeral_id, age, 0)


async def warm_start_counters(counters: LocalCounters, database: DatabaseThread) -> None:
    """Load and count recent entries. If the database does not respond in time, the counters start at 0."""
    try:
        count_recent_entries(
            counters, await asyncio.wait_for(database.run_query(load_recent_entries), WARM_START_TIMEOUT_SECONDS)
        )
    except (StoreUnavailable, TimeoutError) as error:
        log.warning("limits of requests and tokens start from 0: %s", str(error) or "no response in time")
