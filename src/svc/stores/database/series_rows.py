"""Usage over time, from the sums of hours and days, or from entries if the sums lack a field of the filter."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from svc.stores.database.base import LedgerEntry
from svc.stores.database.batch_rows import decompress_lines
from svc.stores.database.entry_search import decode_matching, matches_filter
from svc.stores.database.journal_lines import entry_sum_key, sum_entries
from svc.stores.database.segment import COUNT_FIELDS, OK_STATUS, UsageTotals
from svc.stores.database.series import INTERVAL_SECONDS, SeriesGroup, SeriesQuery, UsageSeries
from svc.stores.database.sum_rows import SumRows, decode_totals

_GROUP_COLUMNS: dict[SeriesGroup, str] = {"key": "key_id", "model": "model", "provider": "provider", "tag": "tags"}
_MAX_STATEMENTS: Final = 32
"""The statements in which a query reads the sums of its window, newest first. The time limit applies between them."""
_MIN_INTERVALS_PER_STATEMENT: Final = 24
_SUMS_SQL = f"MAX(key_name), {', '.join(f'SUM({name})' for name in COUNT_FIELDS)}"


class SeriesRows(SumRows):
    """The method of a Database for usage over time."""

    def get_usage_series(self, query: SeriesQuery) -> UsageSeries:
        if query.needs_entries or (query.filter.status is not None and query.start < self._status_sums_since()):
            return self._series_of_entries(query)
        return self._series_of_sums(query)

    def has_usage(self, key_id: str | None) -> bool:
        where, values = ("", ()) if key_id is None else (" WHERE key_id = ?", (key_id,))
        return bool(self._run_statement(f"SELECT 1 FROM days{where} LIMIT 1", values).fetchall())  # noqa: S608

    def _status_sums_since(self) -> int:
        """Return the first hour of the sums by status, in Unix seconds."""
        return int(self._run_statement("SELECT MAX(since) FROM status_hours_begin").fetchall()[0][0])

    def _series_of_sums(self, query: SeriesQuery) -> UsageSeries:
        deadline, filter = time.monotonic() + query.scan_seconds, query.filter
        columns = [] if query.group_by is None else [_GROUP_COLUMNS[query.group_by]]
        if filter.tag is not None and "tags" not in columns:
            columns.append("tags")
        points: dict[tuple[int, str], UsageTotals] = defaultdict(UsageTotals)
        other_statuses: dict[tuple[int, str], UsageTotals] = defaultdict(UsageTotals)
        complete_since = query.start
        for has_other_status, start, *row in self._sums_newest_first(query, columns):
            if not has_other_status and (time.monotonic() > deadline or query.is_cancelled()):
                complete_since = int(start) + INTERVAL_SECONDS[query.interval]
                break
            groups, (key_name, *counts) = row[: len(columns)], row[len(columns) :]
            if filter.tag is not None and not _has_tag(groups[-1], filter.tag):
                continue
            value = groups[0] if query.group_by is not None else ""
            if query.group_by == "tag":
                value = _tag_value(value, query.tag)
            target = other_statuses if has_other_status else points
            target[int(start), str(value)].add(decode_totals(key_name, counts))
        for key, totals in other_statuses.items():
            points[key].subtract(totals)
        return _drop_incomplete({key: point for key, point in points.items() if point.requests}, complete_since)

    def _sums_newest_first(self, query: SeriesQuery, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        """Yield (has other status, start, columns, totals). Sums of another status are to be subtracted.

        There are no sums of the status `ok`: they are all sums without those of the other statuses. In each part of
        the window, the latter come first.
        """
        step = INTERVAL_SECONDS[query.interval]
        intervals = -(-(query.end - query.start) // step)
        span = max(_MIN_INTERVALS_PER_STATEMENT, -(-intervals // _MAX_STATEMENTS)) * step
        status = query.filter.status
        for end in range(query.end, query.start, -span):
            start = max(query.start, end - span)
            if status is not None:  # before all sums: another process can add to both in between
                for row in self._select_status_sums(query, columns, start, end):
                    yield (status == OK_STATUS, *row)
            if status in (None, OK_STATUS):
                where, values = _sum_condition(query, start, end)
                table = "days" if query.interval == "day" else "hours"
                for row in self._select_grouped(f"{table} WHERE {where}", ["start", *columns], values):
                    yield (False, *row)

    def _select_status_sums(self, query: SeriesQuery, columns: list[str], start: int, end: int) -> list[Any]:
        where, values = _sum_condition(query, start, end)
        if query.filter.status != OK_STATUS:
            where += " AND status = ?"
            values.append(query.filter.status)
        interval_start = f"start - start % {INTERVAL_SECONDS[query.interval]}"
        return self._select_grouped(f"status_hours WHERE {where}", [interval_start, *columns], values)

    def _select_grouped(self, source: str, columns: list[str], values: list[object]) -> list[Any]:
        numbers = ", ".join(str(number) for number in range(1, len(columns) + 1))
        sql = f"SELECT {', '.join(columns)}, {_SUMS_SQL} FROM {source} GROUP BY {numbers} ORDER BY 1 DESC"  # noqa: S608
        return self._run_statement(sql, values).fetchall()

    def _series_of_entries(self, query: SeriesQuery) -> UsageSeries:
        deadline, filter = time.monotonic() + query.scan_seconds, query.filter
        start_ms, end_ms, needles = query.start * 1000, query.end * 1000, query.filter.needles()
        step = INTERVAL_SECONDS[query.interval]
        groups: dict[tuple[int, str], list[LedgerEntry]] = defaultdict(list)
        points: dict[tuple[int, str], UsageTotals] = {}
        complete_since = query.start
        for last, packed, *lines in self._scan_batch_rows(start_ms, end_ms, filter.key_id):
            if time.monotonic() > deadline or query.is_cancelled():
                complete_since = min((last // 1000 // step + 1) * step, query.end)
                break
            groups.clear()
            for time_ms, entry in decode_matching(packed, decompress_lines(*lines), last, needles):
                if (
                    start_ms <= time_ms < end_ms
                    and filter.model in (None, entry.model or "")
                    and matches_filter(filter, entry)
                ):
                    groups[time_ms // 1000 // step * step, _entry_group(query, entry)].append(entry)
            for key, entries in groups.items():
                points.setdefault(key, UsageTotals()).add(sum_entries(entries))
        return _drop_incomplete(points, complete_since)


def _sum_condition(query: SeriesQuery, start: int, end: int) -> tuple[str, list[object]]:
    """Return the condition for the sums of a part of the window, and its values."""
    filter, where, values = query.filter, "start >= ? AND start < ?", list[object]((start, end))
    for column, value in (("key_id", filter.key_id), ("model", filter.model), ("provider", filter.provider)):
        if value is not None:
            where += f" AND {column} = ?"
            values.append(value)
    return where, values


def _drop_incomplete(points: dict[tuple[int, str], UsageTotals], complete_since: int) -> UsageSeries:
    return UsageSeries({key: point for key, point in points.items() if key[0] >= complete_since}, complete_since)


def _entry_group(query: SeriesQuery, entry: LedgerEntry) -> str:
    """Return the value of the group of an entry, equal to that of its sum."""
    if query.group_by is None:
        return ""
    if query.group_by == "tag":
        return entry.tags.get(query.tag, "")
    sums = entry_sum_key(entry, 0)
    return {"key": sums.key_id, "model": sums.model, "provider": sums.provider}[query.group_by]


def _tag_value(tags: str, name: str) -> str:
    return str(msgspec.json.decode(tags).get(name, ""))


def _has_tag(tags: str, tag: tuple[str, str]) -> bool:
    return bool(msgspec.json.decode(tags).get(tag[0]) == tag[1])
