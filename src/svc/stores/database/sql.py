"""The SQL statements that SQLite and PostgreSQL share. `sqlite.py` and `postgres.py` have connections and locks.

keys         one row for each key; every change increments `key_revision`, whose row lock orders the changes
batches      one row for the entries of a key that were ingested together; retained for `ledger.retain_days`
hours, days  the sums of entries, written in the same transaction as the entries; never deleted
status_hours the sums by hour of entries whose status is not `ok`, written in the same way; never deleted
responses    stored responses, and in `response_items` their items; each row is deleted when it expires
response_ids the ids of both, also of deleted responses
journals     the ingested bytes of each journal, written with the entries; the row with an empty name is a lock
"""

from __future__ import annotations

from collections.abc import Iterable

from svc.errors import UsageError
from svc.stores.database.base import LedgerEntry
from svc.stores.database.entry_search import EntrySearch
from svc.stores.database.journal_lines import build_segment
from svc.stores.database.key_rows import KeyRows
from svc.stores.database.migrations import SchemaRows
from svc.stores.database.response_rows import ResponseRows
from svc.stores.database.segment import JournalSegment
from svc.stores.database.series_rows import SeriesRows
from svc.stores.database.sum_repair import SumRepair


class SqlDatabase(SchemaRows, KeyRows, ResponseRows, SeriesRows, SumRepair, EntrySearch):
    """A Database without its connection."""

    def partition_entries(self) -> bool:
        raise UsageError("Only PostgreSQL has partitions: set SVC_DATABASE_URL to postgresql://….")

    def ping(self) -> None:
        self._run_statement("SELECT 1")

    def is_read_only(self) -> bool:
        return False

    def committed_offset(self, journal: str) -> int:
        self._run_statement("INSERT INTO journals (name, taken) VALUES (?, 0) ON CONFLICT DO NOTHING", (journal,))
        return int(self._run_statement("SELECT taken FROM journals WHERE name = ?", (journal,)).fetchall()[0][0])

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        with self._transaction():
            update_sql = (
                "UPDATE journals SET taken = ? WHERE name = ? AND taken = ?"  # a concurrent one waits, updates no row
            )
            if not self._run_statement(update_sql, (end, journal, start)).rowcount:
                return False
            self._insert_segment(segment)
        return True

    def delete_journal(self, journal: str) -> None:
        self._run_statement("DELETE FROM journals WHERE name = ?", (journal,))

    def insert_entries(self, entries: Iterable[LedgerEntry]) -> int:
        by_id = {entry.request_id: entry for entry in entries}
        if not by_id:
            return 0
        with self._transaction():
            self._lock_ingest()  # two transactions must not search for the same requests concurrently
            existing_ids = self._existing_ids(by_id)
            segment = build_segment([entry for id, entry in by_id.items() if id not in existing_ids])
            self._insert_segment(segment)
        return segment.entry_count

    def _insert_segment(self, segment: JournalSegment) -> None:
        self._insert_batches(segment.batches)
        self._upsert_sums(segment.hourly_sums)
        self._upsert_status_sums(segment.status_sums)
