"""What SQLite and PostgreSQL have in common: the statements. How they connect, and lock, is in their own files.

keys      one row a key; every change takes the next number from `key_revision`, whose row lock puts them in order
entries   one row a request that reached for an upstream, for `ledger.retain_days`
hours, days   their sums, kept for good; written with the entries in one transaction
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from typing import Any, Protocol

import msgspec

from svc.errors import UsageError
from svc.stores.base import By, Entry, StoredKey, Sum

HOUR = 3600
DAY = 86400
_STAMP = len("2026-01-01T00:00:00.000Z")
MAX_MARKS = 500
"""Values that one statement is given."""

_SUMMED = "SUM(requests), SUM(prompt_tokens), SUM(completion_tokens), SUM(cost_usd), SUM(priced), MAX(key_name)"
_COLUMN = {
    "key": "key_id",
    "model": "model",
    "provider": "provider",
    "tag": "tags",
    "day": f"(start - start % {DAY})",
}


class Cursor(Protocol):
    """What both drivers' cursors have."""

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> list[Any]: ...


class _Packed(Entry, frozen=True, kw_only=True, array_like=True):
    """An entry without the names of its fields: half the size."""


class _Group(msgspec.Struct):
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    priced: int = 0
    name: str = ""

    def count(self, entry: Entry) -> None:
        """Adds one request."""
        self.requests += 1
        self.prompt_tokens += entry.prompt_tokens or 0
        self.completion_tokens += entry.completion_tokens or 0
        if entry.cost_usd is not None:
            self.cost_usd += entry.cost_usd
            self.priced += 1
        self.name = entry.key_name or self.name

    def add(self, requests: int, prompt: int, completion: int, cost: float, priced: int, name: str) -> None:
        self.requests += requests
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cost_usd += cost
        self.priced += priced
        self.name = name or self.name


_pack = msgspec.json.Encoder().encode
_packed = msgspec.json.Decoder(_Packed)
_stored = msgspec.json.Decoder(StoredKey)


def millis(stamp: str) -> int:
    """Milliseconds since 1970 of an entry's `time`."""
    if len(stamp) != _STAMP or not stamp.endswith("Z"):
        return round(datetime.fromisoformat(stamp).timestamp() * 1000)
    return _second(stamp[:-5]) + int(stamp[-4:-1])


@lru_cache(maxsize=64)
def _second(stamp: str) -> int:
    """Of a whole second, to which many entries belong."""
    return round(datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()) * 1000


class Sql:
    """`Database`, but for its connection."""

    # what a driver brings

    def _run(self, sql: str, args: Sequence[Any] = ()) -> Cursor:
        """Runs one statement, its places marked `?`; raises StoreDown."""
        raise NotImplementedError

    def _transaction(self) -> AbstractContextManager[None]:
        """All or none. It may read what it then writes."""
        raise NotImplementedError

    def _migrating(self) -> AbstractContextManager[None]:
        """A transaction that no other process can be in at the same time."""
        raise NotImplementedError

    def _insert(self, rows: list[tuple[str, int, str, str]]) -> set[str]:
        """Adds entries (id, time, key, body) that are not there yet; the ids of the new ones."""
        raise NotImplementedError

    # schema

    def migrate(self) -> None:
        with self._migrating():
            self._run("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
            found = self._run("SELECT MAX(version) FROM schema_version").fetchall()[0][0] or 0
            steps = _migrations()
            if found > len(steps):
                raise UsageError(
                    f"The database is of a newer version ({found}) than this program knows ({len(steps)})."
                )
            for number, statements in enumerate(steps[found:], found + 1):
                for statement in statements:
                    self._run(statement)
                self._run("INSERT INTO schema_version VALUES (?)", (number,))

    # keys

    def put_key(self, key: StoredKey) -> StoredKey:
        with self._transaction():
            return self._put_next(key, self._next_revision())

    def change_key(self, id: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        with self._transaction():
            revision = self._next_revision()  # its row is locked from here on: others' changes wait
            found = self.key(id)
            return None if found is None else self._put_next(change(found), revision)

    def _next_revision(self) -> int:
        self._run("UPDATE key_revision SET revision = revision + 1 WHERE one = 1")
        return self.revision()

    def _put_next(self, key: StoredKey, revision: int) -> StoredKey:
        key = msgspec.structs.replace(key, revision=revision)
        self._run(
            "INSERT INTO keys (id, digest, old_digest, revision, body) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, old_digest = excluded.old_digest,"
            " revision = excluded.revision, body = excluded.body",
            (key.id, key.digest, key.old_digest, key.revision, _pack(key).decode()),
        )
        return key

    def list_keys(self, *, after: str = "", limit: int = 1000) -> list[StoredKey]:
        return self._keys("WHERE id > ? ORDER BY id LIMIT ?", (after, limit))

    def key(self, id: str) -> StoredKey | None:
        return next(iter(self._keys("WHERE id = ?", (id,))), None)

    def keys_of(self, digests: Sequence[str]) -> list[StoredKey]:
        marks = ", ".join("?" * len(digests))
        found = self._keys(f"WHERE digest IN ({marks})", digests)
        return found + self._keys(f"WHERE old_digest IN ({marks})", digests)

    def keys_since(self, revision: int, *, limit: int = 1000) -> list[StoredKey]:
        return self._keys("WHERE revision > ? ORDER BY revision LIMIT ?", (revision, limit))

    def revision(self) -> int:
        return int(self._run("SELECT revision FROM key_revision WHERE one = 1").fetchall()[0][0])

    def _keys(self, where: str, args: Sequence[Any]) -> list[StoredKey]:
        return [_stored.decode(row[0]) for row in self._run(f"SELECT body FROM keys {where}", args).fetchall()]  # noqa: S608

    # entries

    def append(self, entries: Iterable[Entry]) -> int:
        by_id = {entry.request_id: entry for entry in entries}
        if not by_id:
            return 0
        rows = [
            (entry.request_id, millis(entry.time), entry.key_id, _pack(msgspec.structs.astuple(entry)).decode())
            for entry in by_id.values()
        ]
        with self._transaction():
            new = self._insert(rows)
            hours: dict[tuple[Any, ...], _Group] = defaultdict(_Group)
            days: dict[tuple[Any, ...], _Group] = defaultdict(_Group)
            for id, when, _, _ in rows:
                if id in new:
                    entry = by_id[id]
                    hours[(when // 1000 // HOUR * HOUR, *_dimensions(entry))].count(entry)
            for (start, *dimensions), hour in hours.items():
                days[(start // DAY * DAY, *dimensions)].add(*msgspec.structs.astuple(hour))
            self._add_sums("hours", hours)
            self._add_sums("days", days)
        return len(new)

    def _add_sums(self, table: str, groups: Mapping[tuple[Any, ...], _Group]) -> None:
        names = ("requests", "prompt_tokens", "completion_tokens", "cost_usd", "priced")
        added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in names)
        sql = (
            f"INSERT INTO {table} (start, key_id, model, provider, tags, key_name, {', '.join(names)})"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (key_id, start, model, provider, tags)"
            f" DO UPDATE SET key_name = excluded.key_name, {added}"
        )
        for at in sorted(groups):  # in one order everywhere, so that two writers cannot wait for each other
            group = groups[at]
            amounts = (group.requests, group.prompt_tokens, group.completion_tokens, group.cost_usd, group.priced)
            self._run(sql, (*at, group.name, *amounts))

    def entries(
        self,
        *,
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Entry]:
        where, args = _within("time", since * 1000, until * 1000, key_id)
        if before is not None:
            where += " AND (time, request_id) < (SELECT time, request_id FROM entries WHERE request_id = ?)"
            args.append(before)
        sql = f"SELECT body FROM entries WHERE {where} ORDER BY time DESC, request_id DESC LIMIT ?"  # noqa: S608
        return [_unpack(row[0]) for row in self._run(sql, (*args, limit)).fetchall()]

    def sums(
        self, by: By, *, tag: str = "", key_id: str | None = None, since: float = 0.0, until: float = math.inf
    ) -> list[Sum]:
        groups: dict[str, _Group] = defaultdict(_Group)
        for table, start, end in _spans(since, until):
            if table == "entries":
                for entry in self._between(start, end, key_id):
                    groups[_value(by, tag, _column_of(by, entry))].count(entry)
                continue
            for row in self._summed(table, _COLUMN[by], start, end, key_id):
                raw, requests, prompt, completion, cost, priced, name = row
                amounts = (int(requests), int(prompt), int(completion), float(cost), int(priced), str(name))
                groups[_value(by, tag, raw)].add(*amounts)
        found = [
            Sum(
                value=value,
                name=group.name if by == "key" else None,
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
        where, args = _within("start", start, end, key_id)
        sql = f"SELECT {column}, {_SUMMED} FROM {table} WHERE {where} GROUP BY {column}"  # noqa: S608
        return self._run(sql, args).fetchall()

    def _between(self, start: float, end: float, key_id: str | None) -> Iterator[Entry]:
        where, args = _within("time", start * 1000, end * 1000, key_id)
        for row in self._run(f"SELECT body FROM entries WHERE {where}", args).fetchall():  # noqa: S608
            yield _unpack(row[0])

    def spent(self, wanted: Mapping[str, float]) -> dict[str, float]:
        found = dict.fromkeys(wanted, 0.0)
        together: dict[float, list[str]] = defaultdict(list)
        for id, midnight in wanted.items():
            together[midnight].append(id)
        for midnight, ids in together.items():
            for at in range(0, len(ids), MAX_MARKS):
                some = ids[at : at + MAX_MARKS]
                marks = ", ".join("?" * len(some))
                sql = f"SELECT key_id, SUM(cost_usd) FROM days WHERE key_id IN ({marks}) AND start >= ? GROUP BY key_id"  # noqa: S608
                for id, cost in self._run(sql, (*some, int(midnight))).fetchall():
                    found[id] = float(cost)
        return found

    def prune(self, before: float, *, limit: int = 10_000) -> int:
        sql = "DELETE FROM entries WHERE request_id IN (SELECT request_id FROM entries WHERE time < ? LIMIT ?)"
        with self._transaction():
            return self._run(sql, (math.floor(before * 1000), limit)).rowcount


def _within(column: str, start: float, end: float, key_id: str | None) -> tuple[str, list[Any]]:
    """A condition, and its values."""
    where, args = f"{column} >= ?", [math.ceil(start)]
    values: list[Any] = list(args)
    if end != math.inf:
        where += f" AND {column} < ?"
        values.append(math.ceil(end))
    if key_id is not None:
        where += " AND key_id = ?"
        values.append(key_id)
    return where, values


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


def _migrations() -> list[list[str]]:
    folder = resources.files("svc.stores").joinpath("schema")
    files = sorted((each for each in folder.iterdir() if each.name.endswith(".sql")), key=lambda each: each.name)
    return [[part for part in file.read_text(encoding="utf-8").split(";\n") if part.strip()] for file in files]


def _dimensions(entry: Entry) -> tuple[str, str, str, str]:
    tags = _pack(dict(sorted(entry.tags.items()))).decode() if entry.tags else "{}"
    return entry.key_id, entry.model or "", entry.provider or "", tags


def _column_of(by: By, entry: Entry) -> Any:
    """What the column of `_COLUMN` would hold."""
    if by == "day":
        start = millis(entry.time) // 1000
        return start - start % DAY
    return dict(zip(("key", "model", "provider", "tag"), _dimensions(entry), strict=True))[by]


def _value(by: By, tag: str, raw: Any) -> str:
    if by == "day":
        return datetime.fromtimestamp(int(raw), UTC).strftime("%Y-%m-%d")
    return str(msgspec.json.decode(raw).get(tag, "")) if by == "tag" else str(raw)


def _unpack(body: str) -> Entry:
    packed = _packed.decode(body)
    return Entry(**{name: getattr(packed, name) for name in Entry.__struct_fields__})
