"""What keys had let through in the minute before a start, from the ledger: limits are not new with the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime

from svc.stores.aside import Aside
from svc.stores.base import Database, Entry, StoreDown
from svc.stores.counting import BUCKETS
from svc.stores.shared import SharedCounters

log = logging.getLogger("svc.limits")

MOST = 20_000
"""The newest entries that are looked at: more would make the start late."""
SECONDS = 2.0
"""So long it waits for the database."""


def entries(database: Database) -> list[Entry]:
    """Of the window. Raises StoreDown."""
    return database.entries(since=time.time() - BUCKETS, limit=MOST)


def count(counters: SharedCounters, found: Sequence[Entry]) -> None:
    """Those that reached for a model; each counts from its end on, a little longer than it would have."""
    now = time.time()
    for entry in found:
        if entry.attempts and entry.key_id:
            age = max(0.0, now - datetime.fromisoformat(entry.time).timestamp())
            counters.recall(entry.key_id, age, (entry.prompt_tokens or 0) + (entry.completion_tokens or 0))


async def recall(counters: SharedCounters, books: Aside) -> None:
    """Both; without the database's answer the minute begins anew."""
    try:
        count(counters, await asyncio.wait_for(books.ask(entries), SECONDS))
    except (StoreDown, TimeoutError) as error:
        log.warning("limits of requests and tokens begin anew: %s", error or "no answer in time")
