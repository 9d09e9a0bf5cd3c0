"""Finds the entries that are new since the last poll, and prepares their events. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import msgspec

from svc.ledger_queries.recent_use import MAX_POLLED_ENTRIES, CurrentUse, RecentEntry
from svc.stores.database.segment import UsageTotals

MAX_SEEN_ENTRIES: Final = 20 * MAX_POLLED_ENTRIES


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one poll, oldest first, and the use in the current hour, of each key and of all keys."""

    hour: int
    """The start of the hour, in Unix seconds."""
    events: list[bytes]
    events_by_key: dict[str, list[bytes]]
    use_by_key: dict[str, UsageTotals]
    use_total: UsageTotals
    missing_by_key: dict[str, int]
    """How many requests of the hour were added to the sums since the last poll, but not read."""
    missing_total: int


class NewEntries:
    """Selects the new entries of each poll. After a failed poll, the next one has its entries too."""

    def __init__(self) -> None:
        self._seen: dict[str, None] | None = None
        """The ids of the entries of earlier polls. None before the first poll, or after one without entries."""
        self._last_hour = 0
        self._last_use: dict[str, UsageTotals] | None = None

    def next_batch(self, recent: CurrentUse) -> EventBatch:
        """Return the new events. The first poll has none: a stream begins with the requests after its start."""
        if recent.entries is None:
            self._seen = self._last_use = None
            new: list[RecentEntry] = []
            missing: dict[str, int] = {}
        else:
            new = self._select_new(recent.entries)
            missing = self._count_missing(recent, new)
        events: list[bytes] = []
        events_by_key: dict[str, list[bytes]] = defaultdict(list)
        for entry in new:
            event = encode_event("request", entry.line)
            events.append(event)
            events_by_key[entry.key_id].append(event)
        total = UsageTotals()
        for totals in recent.use_by_key.values():
            total.add(totals)
        return EventBatch(
            hour=recent.hour,
            events=events,
            events_by_key=events_by_key,
            use_by_key=recent.use_by_key,
            use_total=total,
            missing_by_key=missing,
            missing_total=sum(missing.values()),
        )

    def _select_new(self, entries: list[RecentEntry]) -> list[RecentEntry]:
        """Return the entries that no earlier poll had, oldest first."""
        known = self._seen
        new = [] if known is None else [entry for entry in reversed(entries) if entry.request_id not in known]
        seen = self._seen = {} if known is None else known
        seen.update(dict.fromkeys(entry.request_id for entry in entries))
        while len(seen) > MAX_SEEN_ENTRIES:
            del seen[next(iter(seen))]
        return new

    def _count_missing(self, recent: CurrentUse, new: list[RecentEntry]) -> dict[str, int]:
        last_use = self._last_use if recent.hour == self._last_hour else None
        self._last_hour, self._last_use = recent.hour, recent.use_by_key
        missing: dict[str, int] = {}
        if last_use is not None:
            read = Counter(entry.key_id for entry in new)
            for key_id, totals in recent.use_by_key.items():
                before = last_use[key_id].requests if key_id in last_use else 0
                if (count := totals.requests - before - read[key_id]) > 0:
                    missing[key_id] = count
        return missing


def encode_event(name: str, data: bytes) -> bytes:
    """Return a server-sent event. `data` is one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
