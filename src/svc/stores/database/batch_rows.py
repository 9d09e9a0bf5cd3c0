"""The rows of entry batches. A row holds the entries of one key and hour that were ingested together."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import count, islice
from operator import itemgetter
from typing import Any

from svc.stores.database.base import LedgerEntry, StoreUnavailable
from svc.stores.database.journal_lines import (
    decode_batch,
    decode_timed_batch,
    encode_entry,
    entry_millis,
    parse_request_id,
)
from svc.stores.database.migrations import latest_sums_version
from svc.stores.database.segment import SECONDS_PER_HOUR, BatchLines, EntryBatch
from svc.stores.database.statements import SqlConnection, split_into_chunks, sql_placeholders

MAX_BATCH_SPAN_MS = SECONDS_PER_HOUR * 1000
"""Maximum difference between the times of a batch's entries, in milliseconds."""
MAX_TIME_MS = 2**61
MIN_ROWS_PER_QUERY, MAX_ROWS_PER_QUERY = 2, 128
"""Rows of the first query of a scan, and of each query at most. A row can be as long as one ingested segment."""
MAX_IDS_SEARCHED_AS_TEXT = 8
"""Up to this number of ids, the text of a batch is searched before it is decoded."""
_BATCH_COLUMNS = (
    "id",
    "last",
    "key_id",
    "body",
    "span",
    "count",
    "prefix",
    "low",
    "high",
    "lines",
    "zipped",
    "sums_version",
)


class BatchRows(SqlConnection):
    """The methods of a Database for single entries."""

    def _insert_batches(self, batches: Sequence[EntryBatch]) -> None:
        rows = [_batch_values(batch) for batch in batches]
        # A batch that exists unexpectedly must not block ingestion.
        self._insert_rows("batches", _BATCH_COLUMNS, rows, "DO NOTHING")

    def list_entries(
        self,
        *,
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[LedgerEntry]:
        start, end = to_ceil_millis(since), (to_ceil_millis(until), "")
        if before is not None:
            last_entry = self.get_entry(before)
            if last_entry is None:
                return []
            end = min(end, (entry_millis(last_entry), before))
        return [*islice(self._iter_newest_first(start, end, key_id), limit)]

    def get_entry(self, request_id: str) -> LedgerEntry | None:
        candidates = self._candidate_entries({request_id})
        return next((entry for entry in candidates if entry.request_id == request_id), None)

    def get_ephemeral_spent_usd(self, key_id: str, ephemeral_id: str, since: float) -> float:
        total = 0.0
        for last, packed, lines in self._scan_batches(to_ceil_millis(since), MAX_TIME_MS, key_id):
            if ephemeral_id in (lines or packed):  # most batches need not be decoded
                for _, entry in decode_timed_batch(packed, lines, last):
                    total += (entry.cost_usd or 0.0) if entry.ephemeral_id == ephemeral_id else 0.0
        return total

    def _iter_newest_first(self, start: int, end: tuple[int, str], key_id: str | None) -> Iterator[LedgerEntry]:
        """Yield entries in descending order of time and request id, from `start` (ms) to before `end` (ms, id)."""
        pending: list[
            tuple[int, str, int, LedgerEntry]
        ] = []  # the newest last; the number breaks ties, since entries cannot be compared
        numbers = count()
        for last, packed, lines in self._scan_batches(start, end[0] + 1, key_id):
            while pending and pending[-1][0] > last:  # all remaining entries are older
                yield pending.pop()[3]
            for time_ms, entry in decode_timed_batch(packed, lines, last):
                if start <= time_ms and (time_ms, entry.request_id) < end:
                    insort(pending, (time_ms, entry.request_id, next(numbers), entry))
        yield from (item[3] for item in reversed(pending))

    def _entries_between(self, start: int, end: int, key_id: str | None) -> Iterator[list[LedgerEntry]]:
        """Yield the entries of each batch as one list, in any order. Times are milliseconds since 1970."""
        for last, packed, lines in self._scan_batches(start, end, key_id):
            yield [entry for time_ms, entry in decode_timed_batch(packed, lines, last) if start <= time_ms < end]

    def _scan_batches(self, start: int, end: int, key_id: str | None) -> Iterator[tuple[int, str, str | None]]:
        """Yield (last, packed, lines) of batches that may have entries from `start` to before `end`, newest first."""
        for last, packed, *lines in self._scan_batch_rows(start, end, key_id):
            yield last, packed, _decode_lines(*lines)

    def _scan_batch_rows(self, start: int, end: int, key_id: str | None) -> Iterator[tuple[Any, ...]]:
        """Yield (last, packed, lines, compressed lines) as `_scan_batches` does, without decoding them."""
        sql = (
            "SELECT last, body, lines, zipped, id FROM batches WHERE last <= ? AND (last < ? OR id < ?)"  # noqa: S608
            f" AND last >= ? AND last - span < ?{'' if key_id is None else ' AND key_id = ?'}"
            " ORDER BY last DESC, id DESC LIMIT ?"
        )
        fixed = (start, end, *(() if key_id is None else (key_id,)))
        last, id, row_limit = end + MAX_BATCH_SPAN_MS, "", MIN_ROWS_PER_QUERY
        while True:
            rows = self._run_statement(sql, (last, last, id, *fixed, row_limit)).fetchall()
            yield from (row[:-1] for row in rows)
            if len(rows) < row_limit:
                return
            last, *_, id = rows[-1]
            row_limit = min(2 * row_limit, MAX_ROWS_PER_QUERY)

    def _existing_ids(self, ids: Collection[str]) -> set[str]:
        """Return the ids that have an entry."""
        return {entry.request_id for entry in self._candidate_entries(ids)}.intersection(ids)

    def _candidate_entries(self, ids: Collection[str]) -> Iterator[LedgerEntry]:
        """Yield entries that include all those with these ids, and possibly others."""
        for chunk in split_into_chunks([*ids]):
            sql = f"SELECT body, lines, zipped FROM batches WHERE id IN ({sql_placeholders(len(chunk))})"  # noqa: S608
            for packed, *lines in self._run_statement(sql, chunk).fetchall():
                yield from decode_batch(packed, _decode_lines(*lines))
        numbers: dict[str, list[int]] = defaultdict(list)
        for prefix, number in filter(None, map(parse_request_id, ids)):
            numbers[prefix].append(number)
        for prefix, wanted_numbers in numbers.items():
            for lines in self._lines_around(prefix, sorted(wanted_numbers)):
                if len(ids) > MAX_IDS_SEARCHED_AS_TEXT or any(id in lines for id in ids):
                    yield from decode_batch("", lines)

    def _lines_around(self, prefix: str, numbers: Sequence[int]) -> Iterator[str]:
        """Yield the lines of the batches whose range contains one of these numbers."""
        sql = "SELECT id, low, high FROM batches WHERE prefix = ? AND high >= ? AND low <= ? ORDER BY high"
        for id, low, high in self._run_statement(sql, (prefix, numbers[0], numbers[-1])).fetchall():
            if bisect_left(numbers, low) < bisect_right(numbers, high):
                for lines in self._run_statement("SELECT lines, zipped FROM batches WHERE id = ?", (id,)).fetchall():
                    yield _decode_lines(*lines) or ""

    def prune_entries(self, before: float, *, limit: int = 10_000) -> int:
        cutoff_ms, remaining = math.floor(before * 1000), limit
        expired_ids: list[str] = []
        with self._transaction():
            self._lock_ingest()
            sql = "SELECT id, last, count FROM batches WHERE last < ? AND last - span < ? ORDER BY last LIMIT ?"
            for id, last, size in self._run_statement(
                sql, (cutoff_ms + MAX_BATCH_SPAN_MS, cutoff_ms, limit)
            ).fetchall():
                if last < cutoff_ms and size <= remaining:
                    expired_ids.append(id)
                    remaining -= size
                elif remaining:
                    remaining -= self._remove_oldest_entries(id, cutoff_ms, remaining)
            for chunk in split_into_chunks(expired_ids):
                self._run_statement(f"DELETE FROM batches WHERE id IN ({sql_placeholders(len(chunk))})", chunk)  # noqa: S608
        return limit - remaining

    def _remove_oldest_entries(self, id: str, cutoff_ms: int, max_count: int) -> int:
        """Delete the oldest entries of a batch whose newest entry remains. Returns the number of deleted entries."""
        sql = "SELECT last, body, lines, zipped FROM batches WHERE id = ?"
        ((last, packed, *lines),) = self._run_statement(sql, (id,)).fetchall()
        timed_entries = sorted(decode_timed_batch(packed, _decode_lines(*lines), last), key=itemgetter(0))
        times_ms = [time_ms for time_ms, _ in timed_entries]
        removed_count = min(max_count, bisect_left(times_ms, cutoff_ms))
        kept_lines = BatchLines.from_bytes(
            "".join(encode_entry(entry) + "\n" for _, entry in timed_entries[removed_count:]).encode()
        )
        self._run_statement(
            "UPDATE batches SET span = ?, count = ?, lines = ?, zipped = ? WHERE id = ?",
            (last - times_ms[removed_count], len(timed_entries) - removed_count, *kept_lines, id),
        )
        return removed_count

    def _lock_ingest(self) -> None:
        """Block other transactions that call this until the current transaction ends."""
        self._run_statement("UPDATE journals SET taken = taken WHERE name = ''")


def to_ceil_millis(unix_seconds: float) -> int:
    return MAX_TIME_MS if unix_seconds * 1000 > MAX_TIME_MS else math.ceil(unix_seconds * 1000)


def decompress_lines(uncompressed: str | None, compressed: bytes | None) -> bytes | None:
    """Return the lines of a batch, or None for a packed entry. Raises StoreUnavailable if they are damaged."""
    try:
        return BatchLines(uncompressed, compressed).encoded
    except ValueError as error:
        raise StoreUnavailable(f"A batch of entries in the database is damaged: {error}.") from error


def _decode_lines(uncompressed: str | None, compressed: bytes | None) -> str | None:
    """Return the lines of a batch as text. Raises StoreUnavailable if they are damaged."""
    try:
        return BatchLines(uncompressed, compressed).text
    except ValueError as error:
        raise StoreUnavailable(f"A batch of entries in the database is damaged: {error}.") from error


def _batch_values(batch: EntryBatch) -> tuple[object, ...]:
    span = batch.last_ms - batch.first_ms
    numbered = (batch.id_prefix, batch.min_number, batch.max_number)
    return (
        batch.id,
        batch.last_ms,
        batch.key_id,
        batch.packed_entry,
        span,
        batch.count,
        *numbered,
        *(batch.lines or (None, None)),
        latest_sums_version(),
    )
