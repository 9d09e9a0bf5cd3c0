"""Partitions of the ledger's entries by month, on PostgreSQL: `svc migrate --partition`.

batches          partitioned by `last`
batches_past     the table from before: all months until the one after the conversion
batches_YYYY_MM  one month (UTC), created months ahead
batches_other    the default partition, for entries of months without a partition. The others are made like it

Indexes belong to the partitions. Ingestion needs no unique index over all partitions: each byte of a journal is
committed once, by its offset. Expired months are dropped.
"""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime
from typing import Final, NamedTuple

from svc.stores.database.base import StoreUnavailable
from svc.stores.database.statements import SqlConnection

MONTHS_AHEAD: Final = 6
DROP_LOCK_TIMEOUT: Final = "2s"
"""How long a drop waits for queries. Others wait behind it. It is repeated with the next pruning."""
_PARTITION_BOUNDS: Final = re.compile(r"FOR VALUES FROM \((?:MINVALUE|'(-?\d+)')\) TO \('(-?\d+)'\)")


class Partition(NamedTuple):
    """A partition with bounds, in milliseconds since 1970. The upper one is exclusive."""

    name: str
    start_ms: float
    end_ms: int


class LedgerPartitions:
    """The partitions of one database."""

    def __init__(self, database: SqlConnection) -> None:
        self._run = database._run_statement
        self._transaction = database._transaction

    def exist(self) -> bool:
        """Return whether the entries are partitioned."""
        return bool(self._run("SELECT 1 FROM pg_partitioned_table WHERE partrelid = 'batches'::regclass").fetchall())

    def create(self) -> None:
        """Make the table of entries a partition of a new one, within a transaction. No row is moved.

        Ingestion waits for the transaction, which reads the table once.
        """
        self._run("LOCK TABLE batches IN ACCESS EXCLUSIVE MODE")
        latest_ms = self._run("SELECT MAX(last) FROM batches").fetchall()[0][0] or 0
        end_ms = start_of_month_ms(max(int(latest_ms), round(time.time() * 1000)), 1)
        self._run("ALTER TABLE batches RENAME TO batches_past")
        self._run("CREATE TABLE batches_other (LIKE batches_past INCLUDING ALL)")
        self._run("CREATE TABLE batches (LIKE batches_past INCLUDING DEFAULTS) PARTITION BY RANGE (last)")
        self._run("ALTER TABLE batches ATTACH PARTITION batches_other DEFAULT")
        self._run(f"ALTER TABLE batches ATTACH PARTITION batches_past FOR VALUES FROM (MINVALUE) TO ({end_ms})")
        self.create_ahead()

    def create_ahead(self) -> None:
        """Create the missing partitions of the next months, within a transaction.

        A month of which the default partition has entries stays there.
        """
        partitions, now_ms = self.list(), round(time.time() * 1000)
        for month in range(MONTHS_AHEAD + 1):
            start_ms, end_ms = (start_of_month_ms(now_ms, month + number) for number in (0, 1))
            in_default_sql = "SELECT 1 FROM batches_other WHERE last >= ? AND last < ? LIMIT 1"
            is_covered = any(each.start_ms < end_ms and start_ms < each.end_ms for each in partitions)
            if is_covered or self._run(in_default_sql, (start_ms, end_ms)).fetchall():
                continue
            name = f"batches_{datetime.fromtimestamp(start_ms / 1000, UTC):%Y_%m}"
            self._run(f"CREATE TABLE {name} (LIKE batches_other INCLUDING ALL)")
            self._run(f"ALTER TABLE batches ATTACH PARTITION {name} FOR VALUES FROM ({start_ms}) TO ({end_ms})")

    def list(self) -> list[Partition]:
        """Return the partitions with an upper bound, oldest first."""
        sql = (
            "SELECT relname, pg_get_expr(relpartbound, pg_class.oid) FROM pg_inherits"
            " JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = 'batches'::regclass"
        )
        found = [(str(name), _PARTITION_BOUNDS.fullmatch(str(bounds))) for name, bounds in self._run(sql).fetchall()]
        return sorted(
            (
                Partition(name, float(bounds[1] or "-inf"), int(bounds[2]))
                for name, bounds in found
                if bounds is not None
            ),
            key=lambda partition: partition.end_ms,
        )

    def drop_expired(self, cutoff_ms: int) -> None:
        """Drop the partitions all of whose entries are older than `cutoff_ms`, each in a transaction.

        A partition stays if long queries read it, or if the database is unavailable.
        """
        for partition in self.list():
            if partition.end_ms <= cutoff_ms:
                with contextlib.suppress(StoreUnavailable), self._transaction():
                    self._run(f"SET LOCAL lock_timeout = '{DROP_LOCK_TIMEOUT}'")
                    self._run(f"DROP TABLE IF EXISTS {partition.name}")


def start_of_month_ms(time_ms: int, months: int = 0) -> int:
    """Return the start of the month (UTC) that is `months` after that of `time_ms`, in milliseconds since 1970."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    month = moment.year * 12 + moment.month - 1 + months
    return round(datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000)
