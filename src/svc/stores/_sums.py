"""Sums of entries in the database, by hour and by day: kept for good, and written together with the entries."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import astuple

from svc.stores._batches import Batches, to_millis
from svc.stores._statements import in_parts, marks
from svc.stores.base import By, Entry, Sum
from svc.stores.batches import HOUR, Amounts, Place
from svc.stores.lines import amounts_of, moment_of, place_of

DAY = 86400
_AMOUNTS = ("requests", "prompt_tokens", "completion_tokens", "cost_usd", "priced")
_COLUMNS = (*Place._fields, *Amounts.__struct_fields__)
_SUMMED = f"MAX(key_name), {', '.join(f'SUM({name})' for name in _AMOUNTS)}"
_COLUMN = {
    "key": "key_id",
    "model": "model",
    "provider": "provider",
    "tag": "tags",
    "day": f"(start - start % {DAY})",
}


class Sums(Batches):
    """The part of a Database that is about what was spent."""

    def _add_sums(self, hours: Mapping[Place, Amounts]) -> None:
        days: dict[Place, Amounts] = defaultdict(Amounts)
        for place, amounts in hours.items():
            days[Place(place[0] // DAY * DAY, *place[1:])].add(*astuple(amounts))
        self._add_to("hours", hours)
        self._add_to("days", days)

    def _add_to(self, table: str, groups: Mapping[Place, Amounts]) -> None:
        row = f"({marks(len(_COLUMNS))})"
        added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in _AMOUNTS)
        for some in in_parts(sorted(groups), len(_COLUMNS)):  # in one order everywhere: no two wait for each other
            values: list[object] = []
            for place in some:
                values += (*place, *astuple(groups[place]))
            self._run(
                f"INSERT INTO {table} ({', '.join(_COLUMNS)}) VALUES {', '.join([row] * len(some))}"  # noqa: S608
                " ON CONFLICT (key_id, start, model, provider, tags)"
                f" DO UPDATE SET key_name = excluded.key_name, {added}",
                values,
            )

    def sums(
        self, by: By, *, tag: str = "", key_id: str | None = None, since: float = 0.0, until: float = math.inf
    ) -> list[Sum]:
        groups: dict[str, Amounts] = defaultdict(Amounts)
        for table, start, end in _spans(since, until):
            if table == "entries":
                for entries in self._between(to_millis(start), to_millis(end), key_id):
                    for value, some in _grouped(by, tag, entries).items():
                        groups[value].add(*astuple(amounts_of(some)))
                continue
            for row in self._summed(table, _COLUMN[by], start, end, key_id):
                raw, name, requests, prompt, completion, cost, priced = row
                amounts = (str(name), int(requests), int(prompt), int(completion), float(cost), int(priced))
                groups[_value(by, tag, raw)].add(*amounts)
        found = [
            Sum(
                value=value,
                name=group.key_name if by == "key" else None,
                requests=group.requests,
                prompt_tokens=group.prompt_tokens,
                completion_tokens=group.completion_tokens,
                cost_usd=round(group.cost_usd, 9) if group.priced else None,
            )
            for value, group in groups.items()
        ]
        if by == "day":
            return sorted(found, key=lambda each: each.value, reverse=True)
        return sorted(found, key=lambda each: (-(each.cost_usd or 0.0), -each.requests, each.value))

    def _summed(self, table: str, column: str, start: float, end: float, key_id: str | None) -> list[Any]:
        where, args = "start >= ?", [math.ceil(start)]
        values: list[object] = [*args]
        if end != math.inf:
            where += " AND start < ?"
            values.append(math.ceil(end))
        if key_id is not None:
            where += " AND key_id = ?"
            values.append(key_id)
        sql = f"SELECT {column}, {_SUMMED} FROM {table} WHERE {where} GROUP BY {column}"  # noqa: S608
        return self._run(sql, values).fetchall()

    def spent(self, wanted: Mapping[str, float]) -> dict[str, float]:
        found = dict.fromkeys(wanted, 0.0)
        together: dict[float, list[str]] = defaultdict(list)
        for id, midnight in wanted.items():
            together[midnight].append(id)
        for midnight, ids in together.items():
            for some in in_parts(ids):
                who = f"key_id IN ({marks(len(some))})"
                sql = f"SELECT key_id, SUM(cost_usd) FROM days WHERE {who} AND start >= ? GROUP BY key_id"  # noqa: S608
                for id, cost in self._run(sql, (*some, int(midnight))).fetchall():
                    found[id] = float(cost)
        return found

    def last_used(self, ids: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        entry = "(SELECT MAX(last) FROM batches WHERE key_id = keys.id)"  # one step into an index for each key
        hour = "(SELECT MAX(start) * 1000 FROM hours WHERE key_id = keys.id)"
        for some in in_parts(ids):
            sql = f"SELECT id, COALESCE({entry}, {hour}) FROM keys WHERE id IN ({marks(len(some))})"  # noqa: S608
            rows = self._run(sql, some).fetchall()
            found |= {str(id): float(millis) / 1000 for id, millis in rows if millis is not None}
        return found


def _spans(since: float, until: float) -> list[tuple[str, float, float]]:
    """Where to look for what was spent: in the sums of whole days and hours, and the entries of the hours at both ends.

    Table, start, end; none is empty, and they do not overlap.
    """
    hour, day = _above(since, HOUR), _above(since, DAY)
    last_hour, last_day = _below(until, HOUR), _below(until, DAY)
    if hour > last_hour:
        found = [("entries", since, until)]
    elif day > last_day:
        found = [("entries", since, hour), ("hours", hour, last_hour), ("entries", last_hour, until)]
    else:
        found = [("entries", since, hour), ("hours", hour, day), ("days", day, last_day)]
        found += [("hours", last_day, last_hour), ("entries", last_hour, until)]
    return [span for span in found if span[1] < span[2]]


def _above(moment: float, unit: int) -> float:
    return math.ceil(moment / unit) * unit


def _below(moment: float, unit: int) -> float:
    return moment if moment == math.inf else math.floor(moment / unit) * unit


def _grouped(by: By, tag: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[_value(by, tag, _column_of(by, entry))].append(entry)
    return found


def _column_of(by: By, entry: Entry) -> Any:
    """What the column of `_COLUMN` would hold."""
    if by == "day":
        return moment_of(entry) // 1000 // DAY * DAY
    return dict(zip(("key", "model", "provider", "tag"), place_of(entry, 0)[1:], strict=True))[by]


def _value(by: By, tag: str, raw: Any) -> str:
    if by == "day":
        return datetime.fromtimestamp(int(raw), UTC).strftime("%Y-%m-%d")
    return str(msgspec.json.decode(raw).get(tag, "")) if by == "tag" else str(raw)
