"""Query the newest entries and the use of the current hour, for live events. Blocking."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from svc.keys.usage_query import show_entry
from svc.stores.database.base import Database
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.segment import UsageTotals
from svc.stores.database.series import SeriesQuery

MAX_POLLED_ENTRIES: Final = 200
"""The most entries that one query returns: the newest."""
RECENT_READ_SECONDS: Final = 0.1
RECENT_SECONDS: Final = 10.0
"""How far back a query looks for entries: they arrive in the database out of order."""


class RecentEntry(msgspec.Struct, frozen=True):
    """An entry of the ledger."""

    request_id: str
    key_id: str
    line: bytes
    """The JSON of the entry, on one line."""


class CurrentUse(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries, newest first, and the use in the current hour by key."""

    hour: int
    """The start of the hour, in Unix seconds."""
    use_by_key: dict[str, UsageTotals]
    entries: list[RecentEntry] | None
    """None if they were not wanted."""


def read_recent_use(
    database: Database, *, has_entries: bool = True, is_cancelled: Callable[[], bool] = bool
) -> CurrentUse:
    """Return the use of the current hour (UTC), and with `has_entries` the newest entries."""
    now = time.time()
    entries = _read_entries(database, now, is_cancelled) if has_entries else None
    hour = math.floor(now / 3600) * 3600
    series = database.get_usage_series(
        SeriesQuery(
            filter=EntryFilter(),
            interval="hour",
            start=hour,
            end=hour + 3600,
            group_by="key",
            scan_seconds=math.inf,  # with a part of the keys, the use of the hour would be wrong
            is_cancelled=is_cancelled,
        )
    )
    use = {key_id: totals for (_, key_id), totals in series.points.items()}
    return CurrentUse(hour=hour, use_by_key=use, entries=entries)


def _read_entries(database: Database, now: float, is_cancelled: Callable[[], bool]) -> list[RecentEntry]:
    page = database.search_entries(
        EntryFilter(),
        now - RECENT_SECONDS,
        EntryPosition(math.ceil((now + RECENT_SECONDS) * 1000), ""),
        SearchLimits(limit=MAX_POLLED_ENTRIES, seconds=RECENT_READ_SECONDS, is_cancelled=is_cancelled),
    )
    return [
        RecentEntry(entry.request_id, entry.key_id, msgspec.json.encode(show_entry(entry))) for entry in page.entries
    ]
