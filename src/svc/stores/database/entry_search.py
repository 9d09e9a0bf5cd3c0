"""Search the ledger for entries. A search reads batches by time, newest first, until its time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter

from svc.stores.database.base import EntryPage, LedgerEntry
from svc.stores.database.batch_rows import BatchRows, decompress_lines, to_ceil_millis
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits, select_lines
from svc.stores.database.journal_lines import decode_timed_batch

FoundEntry = tuple[EntryPosition, LedgerEntry]


def matches_filter(filter: EntryFilter, entry: LedgerEntry) -> bool:
    """Return whether an entry passes the filter."""
    return (
        filter.key_id in (None, entry.key_id)
        and (filter.model is None or filter.model in (entry.model, entry.model_asked))
        and filter.provider in (None, entry.provider)
        and filter.status in (None, entry.status)
        and filter.code in (None, entry.code)
        and filter.http_status in (None, entry.http_status)
        and filter.endpoint in (None, entry.endpoint)
        and filter.client_request_id in (None, entry.client_request_id)
        and (filter.tag is None or entry.tags.get(filter.tag[0]) == filter.tag[1])
    )


class EntrySearch(BatchRows):
    """The methods of a Database that search for entries."""

    def search_entries(self, filter: EntryFilter, since: float, end: EntryPosition, limits: SearchLimits) -> EntryPage:
        deadline = time.monotonic() + limits.seconds
        start_ms = to_ceil_millis(since)
        needles = filter.needles()
        pending: dict[str, FoundEntry] = {}
        for last, packed, *lines in self._scan_batch_rows(start_ms, end.time_ms + 1, filter.key_id):
            if len(pending) > limits.limit:  # entries that are newer than this batch are complete
                newer = [item for item in pending.values() if item[0].time_ms > last]
                if len(newer) > limits.limit:
                    return _full_page(newer, limits.limit)
            is_progress = last + 1 < end.time_ms  # the next page must end earlier than this one
            if is_progress and (time.monotonic() > deadline or limits.is_cancelled()):
                newer = [item for item in pending.values() if item[0].time_ms > last]
                return _page(newer, EntryPosition(last + 1, ""), last + 1)
            for time_ms, entry in decode_matching(packed, decompress_lines(*lines), last, needles):
                position = EntryPosition(time_ms, entry.request_id)
                if start_ms <= time_ms and position < end and matches_filter(filter, entry):
                    pending[entry.request_id] = (position, entry)
        if len(pending) > limits.limit:
            return _full_page([*pending.values()], limits.limit)
        return _page([*pending.values()], None, start_ms)


def decode_matching(
    packed: str, lines: bytes | None, last: int, needles: list[bytes]
) -> Iterator[tuple[int, LedgerEntry]]:
    """Yield entries of a batch with their times, at least those that contain all needles."""
    if lines is None:
        yield from decode_timed_batch(packed, None, last)
    elif selected := select_lines(lines, needles):
        yield from decode_timed_batch(packed, selected.decode(), last)


def _full_page(items: list[FoundEntry], limit: int) -> EntryPage:
    newest = sorted(items, key=itemgetter(0), reverse=True)[:limit]
    position = newest[-1][0]
    return _page(newest, position, position.time_ms)


def _page(items: list[FoundEntry], next_end: EntryPosition | None, searched_until_ms: int) -> EntryPage:
    newest_first = sorted(items, key=itemgetter(0), reverse=True)
    return EntryPage([entry for _, entry in newest_first], next_end, searched_until_ms)
