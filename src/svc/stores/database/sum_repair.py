"""Completes the sums of entries that an older program stored while the database had a newer schema.

An older program does not know the newest columns and tables of sums. Its batches have a lower `sums_version`. For each
key and hour with such a batch, the sums are computed from the entries, and the difference is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from svc.stores.database.base import StoreUnavailable
from svc.stores.database.batch_rows import decompress_lines
from svc.stores.database.journal_lines import decode_timed_batch, sum_by_hour_and_status
from svc.stores.database.migrations import latest_sums_version
from svc.stores.database.segment import COUNT_FIELDS, SECONDS_PER_HOUR, StatusSumKey, SumKey, UsageTotals
from svc.stores.database.sum_rows import SECONDS_PER_DAY, SumRows, decode_totals

K = TypeVar("K")
HOUR_MS = SECONDS_PER_HOUR * 1000
_MAX_TIME_SECONDS = 2.0**50
_MAX_COST_NOISE_USD = 1e-9
"""Sums of the same costs in another order differ by less."""
_OF_UNIT_SQL = "key_id = ? AND last >= ? AND last < ?"


class _KeyHour(NamedTuple):
    """The unit of a repair: the entries of one key and hour. `start` is in Unix seconds."""

    key_id: str
    start: int

    @property
    def bounds(self) -> tuple[str, int, int]:
        """The parameters of `_OF_UNIT_SQL`."""
        return self.key_id, self.start * 1000, self.start * 1000 + HOUR_MS


class _EntrySums(NamedTuple):
    """The sums of the entries that were read, newest first."""

    hours: dict[SumKey, UsageTotals]
    statuses: dict[StatusSumKey, UsageTotals]

    def add_batch(
        self, unit: _KeyHour, last: int, packed: str, uncompressed: str | None, compressed: bytes | None
    ) -> None:
        """Add the entries of a batch. A damaged batch is left out, so that the sums of its key and hour stay."""
        _, start_ms, end_ms = unit.bounds
        try:
            lines = decompress_lines(uncompressed, compressed)
            timed = decode_timed_batch(packed, None if lines is None else lines.decode(), last)
            hours, statuses = sum_by_hour_and_status([entry for time, entry in timed if start_ms <= time < end_ms])
        except (msgspec.MsgspecError, ValueError, StoreUnavailable):
            return
        _merge_older(self.hours, hours)
        _merge_older(self.statuses, statuses)


class SumRepair(SumRows):
    """The method of a Database that completes sums."""

    def repair_sums(self, before: float = math.inf) -> Iterator[int]:
        while (unit := self._find_old_sums(before)) is not None:
            sums = _EntrySums({}, {})
            first_state = self._state_of(unit)
            for row in self._rows_of(unit):
                sums.add_batch(unit, *row)
                yield 0
            yield self._complete(unit, first_state, sums)

    def _find_old_sums(self, before: float) -> _KeyHour | None:
        before_ms = int(min(before, _MAX_TIME_SECONDS)) // SECONDS_PER_HOUR * HOUR_MS
        sql = f"SELECT key_id, last FROM batches WHERE {_is_old()} AND last < ? ORDER BY last DESC LIMIT 1"  # noqa: S608
        for key_id, last in self._run_statement(sql, (before_ms,)).fetchall():
            return _KeyHour(str(key_id), int(last) // HOUR_MS * SECONDS_PER_HOUR)
        return None

    def _complete(self, unit: _KeyHour, first_state: list[Any], sums: _EntrySums) -> int:
        """Add what the stored sums lack. Return the number of entries, or 0 if another process was faster."""
        where = f"{_OF_UNIT_SQL} AND {_is_old()}"
        with self._transaction():
            self._lock_ingest()  # entries must not be pruned meanwhile
            self._lock_sums()
            count_sql = f"SELECT SUM(count) FROM batches WHERE {where}"  # noqa: S608
            count = self._run_statement(count_sql, unit.bounds).fetchall()[0][0]
            if count:
                if self._state_of(unit) != first_state:  # entries were added or pruned since they were read
                    sums = _EntrySums({}, {})
                    for row in self._rows_of(unit):
                        sums.add_batch(unit, *row)
                self._add_missing(unit, sums)
                update_sql = f"UPDATE batches SET sums_version = ? WHERE {where}"  # noqa: S608
                self._run_statement(update_sql, (latest_sums_version(), *unit.bounds))
        return int(count or 0)

    def _rows_of(self, unit: _KeyHour) -> Iterator[tuple[Any, ...]]:
        return self._scan_batch_rows(unit.start * 1000, unit.start * 1000 + HOUR_MS, unit.key_id)

    def _state_of(self, unit: _KeyHour) -> list[Any]:
        """Return values that change if a batch is added, or entries are pruned."""
        sql = f"SELECT COUNT(*), SUM(count), SUM(span) FROM batches WHERE {_OF_UNIT_SQL}"  # noqa: S608
        return self._run_statement(sql, unit.bounds).fetchall()

    def _lock_sums(self) -> None:
        """Wait for transactions that add to the sums, and block others, until the current transaction ends."""

    def _add_missing(self, unit: _KeyHour, sums: _EntrySums) -> None:
        hours, statuses = sums
        stored = self._stored_sums("hours", SumKey, unit)
        # Sums that include pruned entries cannot be computed any more.
        complete = {key for key, totals in hours.items() if key in stored and stored[key].requests == totals.requests}
        for key in sorted(complete):
            difference = _difference(hours[key], stored[key])
            if difference is not None:
                self._add_to_sum("hours", key, difference)
                self._add_to_sum("days", key._replace(start=key.start // SECONDS_PER_DAY * SECONDS_PER_DAY), difference)
        stored_statuses = self._stored_sums("status_hours", StatusSumKey, unit)
        missing: dict[StatusSumKey, UsageTotals] = {}
        for status_key, totals in statuses.items():
            difference = _difference(totals, stored_statuses.get(status_key, UsageTotals()))
            if SumKey(*status_key[:-1]) in complete and difference is not None:
                missing[status_key] = difference
        self._upsert_status_sums(missing)

    def _stored_sums(self, table: str, to_key: Callable[..., K], unit: _KeyHour) -> dict[K, UsageTotals]:
        names: tuple[str, ...] = to_key._fields  # type: ignore[attr-defined]
        sql = f"SELECT {', '.join((*names, 'key_name', *COUNT_FIELDS))} FROM {table} WHERE key_id = ? AND start = ?"  # noqa: S608
        width = len(names)
        return {
            to_key(*row[:width]): decode_totals(row[width], row[width + 1 :])
            for row in self._run_statement(sql, (unit.key_id, unit.start)).fetchall()
        }

    def _add_to_sum(self, table: str, key: SumKey, difference: UsageTotals) -> None:
        changes = ", ".join(f"{name} = {name} + ?" for name in COUNT_FIELDS)
        where = " AND ".join(f"{name} = ?" for name in SumKey._fields)
        values: list[Any] = [getattr(difference, name) for name in COUNT_FIELDS]
        self._run_statement(f"UPDATE {table} SET {changes} WHERE {where}", (*values, *key))  # noqa: S608


def _is_old() -> str:
    """Return the condition of the partial index. SQLite uses the index only for a condition without parameters."""
    return f"sums_version < {latest_sums_version()}"


def _merge_older(target: dict[K, UsageTotals], older: Mapping[K, UsageTotals]) -> None:
    """Add sums of older entries. The name of the key stays the newest one."""
    for key, totals in older.items():
        if key in target:
            totals.add(target[key])
        target[key] = totals


def _difference(right: UsageTotals, stored: UsageTotals) -> UsageTotals | None:
    """Return what is to be added to the stored sum, or None if it is right."""
    counts = {name: getattr(right, name) - getattr(stored, name) for name in COUNT_FIELDS}
    if abs(counts["cost_usd"]) < _MAX_COST_NOISE_USD:
        counts["cost_usd"] = 0.0
    return UsageTotals(key_name=right.key_name, **counts) if any(counts.values()) else None
