"""The rows of usage sums by hour and by day. They are written with the entries and never deleted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import astuple

from svc.stores.database.base import GroupBy, LedgerEntry, UsageSum
from svc.stores.database.batch_rows import BatchRows, to_ceil_millis
from svc.stores.database.journal_lines import entry_millis, entry_sum_key, sum_entries
from svc.stores.database.segment import COUNT_FIELDS, SECONDS_PER_HOUR, TOTAL_FIELDS, StatusSumKey, SumKey, UsageTotals
from svc.stores.database.statements import split_into_chunks, sql_placeholders

SECONDS_PER_DAY = 86400
_DATE_OFFSET = 10**11
"""Makes the decimal number of each start 12 digits long, so that the greatest dated name is the newest."""
_DATE_LENGTH = 12
_DATED_NAME_SQL = f"MAX(CASE WHEN key_name = '' THEN '' ELSE CAST(start + {_DATE_OFFSET} AS TEXT) || key_name END)"
_COUNTS_SQL = ", ".join(f"SUM({name})" for name in COUNT_FIELDS)
_COUNT_TYPES = [type(getattr(UsageTotals(), name)) for name in COUNT_FIELDS]
_GROUP_BY_SQL = {
    "key": "key_id",
    "model": "model",
    "provider": "provider",
    "tag": "tags",
    "day": f"(start - start % {SECONDS_PER_DAY})",
}


class SumRows(BatchRows):
    """The methods of a Database for usage sums."""

    def _upsert_sums(self, hours: Mapping[SumKey, UsageTotals]) -> None:
        days: dict[SumKey, UsageTotals] = defaultdict(UsageTotals)
        for sum_key, totals in hours.items():
            days[SumKey(sum_key[0] // SECONDS_PER_DAY * SECONDS_PER_DAY, *sum_key[1:])].add(totals)
        self._upsert_table("hours", SumKey._fields, hours)
        self._upsert_table("days", SumKey._fields, days)

    def _upsert_status_sums(self, hours: Mapping[StatusSumKey, UsageTotals]) -> None:
        self._upsert_table("status_hours", StatusSumKey._fields, hours)

    def _upsert_table(self, table: str, key_columns: Sequence[str], groups: Mapping[Any, UsageTotals]) -> None:
        increments = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in COUNT_FIELDS)
        # Sorted, so that concurrent transactions cannot deadlock.
        rows = [(*sum_key, *astuple(groups[sum_key])) for sum_key in sorted(groups)]
        columns = (*key_columns, *UsageTotals.__struct_fields__)
        update = f"({', '.join(key_columns)}) DO UPDATE SET key_name = excluded.key_name, {increments}"
        self._insert_rows(table, columns, rows, update)

    def aggregate_usage(
        self,
        group_by: GroupBy,
        *,
        tag: str = "",
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
    ) -> list[UsageSum]:
        groups: dict[str, UsageTotals] = defaultdict(UsageTotals)
        dated_names: dict[str, str] = defaultdict(str)
        for table, start, end in _split_range(since, until):
            if table == "entries":
                for entries in self._entries_between(to_ceil_millis(start), to_ceil_millis(end), key_id):
                    for value, group in _group_entries(group_by, tag, entries).items():
                        groups[value].add(sum_entries(group))
                        dated_names[value] = max(dated_names[value], *map(_dated_name, group))
                continue
            for raw, dated_name, *counts in self._select_sums(table, group_by, start, end, key_id):
                value = _display_value(group_by, tag, raw)
                groups[value].add(decode_totals("", counts))
                dated_names[value] = max(dated_names[value], dated_name)
        for value, dated_name in dated_names.items():
            groups[value].key_name = dated_name[_DATE_LENGTH:]
        usage_sums = [_usage_sum(group_by, value, totals) for value, totals in groups.items()]
        if group_by == "day":
            return sorted(usage_sums, key=lambda usage: usage.value, reverse=True)
        return sorted(usage_sums, key=lambda usage: (-(usage.cost_usd or 0.0), -usage.requests, usage.value))

    def _select_sums(
        self, table: str, group_by: GroupBy, start: float, end: float, key_id: str | None
    ) -> list[tuple[Any, ...]]:
        """Return (value of the group, dated name of the key, counts). The name is empty for other groups than keys."""
        column, name = _GROUP_BY_SQL[group_by], _DATED_NAME_SQL if group_by == "key" else "''"
        where, args = "start >= ?", [math.ceil(start)]
        values: list[object] = [*args]
        if end != math.inf:
            where += " AND start < ?"
            values.append(math.ceil(end))
        if key_id is not None:
            where += " AND key_id = ?"
            values.append(key_id)
        sql = f"SELECT {column}, {name}, {_COUNTS_SQL} FROM {table} WHERE {where} GROUP BY {column}"  # noqa: S608
        return self._run_statement(sql, values).fetchall()

    def get_spent_usd(self, period_starts: Mapping[str, float]) -> dict[str, float]:
        spent_usd = dict.fromkeys(period_starts, 0.0)
        ids_by_start: dict[float, list[str]] = defaultdict(list)
        for id, midnight in period_starts.items():
            ids_by_start[midnight].append(id)
        for midnight, ids in ids_by_start.items():
            for chunk in split_into_chunks(ids):
                key_filter = f"key_id IN ({sql_placeholders(len(chunk))})"
                sql = f"SELECT key_id, SUM(cost_usd) FROM days WHERE {key_filter} AND start >= ? GROUP BY key_id"  # noqa: S608
                for id, cost in self._run_statement(sql, (*chunk, int(midnight))).fetchall():
                    spent_usd[id] = float(cost)
        return spent_usd

    def get_last_used_times(self, ids: Sequence[str]) -> dict[str, float]:
        last_used_times: dict[str, float] = {}
        latest_entry_sql = "(SELECT MAX(last) FROM batches WHERE key_id = keys.id)"  # one index lookup for each key
        latest_hour_sql = "(SELECT MAX(start) * 1000 FROM hours WHERE key_id = keys.id)"
        for chunk in split_into_chunks(ids):
            placeholders = sql_placeholders(len(chunk))
            sql = f"SELECT id, COALESCE({latest_entry_sql}, {latest_hour_sql}) FROM keys WHERE id IN ({placeholders})"  # noqa: S608
            rows = self._run_statement(sql, chunk).fetchall()
            last_used_times |= {str(id): float(millis) / 1000 for id, millis in rows if millis is not None}
        return last_used_times


def _split_range(since: float, until: float) -> list[tuple[str, float, float]]:
    """Split a time range into whole days, whole hours, and the entries of partial hours at both ends.

    Returns (table, start, end) in Unix seconds. No part is empty, and the parts do not overlap.
    """
    hour, day = _round_up(since, SECONDS_PER_HOUR), _round_up(since, SECONDS_PER_DAY)
    last_hour, last_day = _round_down(until, SECONDS_PER_HOUR), _round_down(until, SECONDS_PER_DAY)
    if hour > last_hour:
        spans = [("entries", since, until)]
    elif day > last_day:
        spans = [("entries", since, hour), ("hours", hour, last_hour), ("entries", last_hour, until)]
    else:
        spans = [("entries", since, hour), ("hours", hour, day), ("days", day, last_day)]
        spans += [("hours", last_day, last_hour), ("entries", last_hour, until)]
    return [span for span in spans if span[1] < span[2]]


def _round_up(unix_seconds: float, unit: int) -> float:
    return math.ceil(unix_seconds / unit) * unit


def _round_down(unix_seconds: float, unit: int) -> float:
    return unix_seconds if unix_seconds == math.inf else math.floor(unix_seconds / unit) * unit


def decode_totals(key_name: str, counts: Sequence[Any]) -> UsageTotals:
    """Return a row of sums with Python's types: PostgreSQL returns the sum of integers as a decimal."""
    values = [to_type(count) for to_type, count in zip(_COUNT_TYPES, counts, strict=True)]
    return UsageTotals(key_name=key_name, **dict(zip(COUNT_FIELDS, values, strict=True)))


def _usage_sum(group_by: GroupBy, value: str, totals: UsageTotals) -> UsageSum:
    amounts = {name: getattr(totals, name) for name in TOTAL_FIELDS}
    amounts["cost_usd"] = round(totals.cost_usd, 9) if totals.priced else None
    name = totals.key_name if group_by == "key" else None
    return UsageSum(value=value, name=name, requests=totals.requests, unpriced_requests=totals.unpriced, **amounts)


def _dated_name(entry: LedgerEntry) -> str:
    """Return the name of an entry's key after the entry's time, as `_DATED_NAME_SQL` does."""
    return f"{entry_millis(entry) // 1000 + _DATE_OFFSET}{entry.key_name}" if entry.key_name else ""


def _group_entries(group_by: GroupBy, tag: str, entries: Sequence[LedgerEntry]) -> dict[str, list[LedgerEntry]]:
    groups: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        groups[_display_value(group_by, tag, _group_value(group_by, entry))].append(entry)
    return groups


def _group_value(group_by: GroupBy, entry: LedgerEntry) -> Any:
    """Return the value of the column in `_GROUP_BY_SQL` for an entry."""
    if group_by == "day":
        return entry_millis(entry) // 1000 // SECONDS_PER_DAY * SECONDS_PER_DAY
    return dict(zip(("key", "model", "provider", "tag"), entry_sum_key(entry, 0)[1:], strict=True))[group_by]


def _display_value(group_by: GroupBy, tag: str, column_value: Any) -> str:
    if group_by == "day":
        return datetime.fromtimestamp(int(column_value), UTC).strftime("%Y-%m-%d")
    return str(msgspec.json.decode(column_value).get(tag, "")) if group_by == "tag" else str(column_value)
