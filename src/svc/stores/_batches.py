"""Batches in the database: the entries of one key and hour that were taken in together, in one row."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from operator import itemgetter

from svc.stores._statements import Statements, in_parts, marks
from svc.stores.base import Entry, StoreDown
from svc.stores.batches import HOUR, Batch, Lines
from svc.stores.lines import entries_of, line_of, moment_of, number_of, timed_in

SPAN = HOUR * 1000
"""No batch's entries are further apart (ms)."""
FOREVER = 2**61
FEW, MANY = 2, 128
"""Rows that a walk asks for: first, and at most. A row may be as long as what the intake reads at once."""
SOUGHT_AS_TEXT = 8
"""So few ids are looked for in a batch's text before it is decoded."""
_COLUMNS = ("id", "last", "key_id", "body", "span", "count", "prefix", "low", "high", "lines", "zipped")


class Batches(Statements):
    """The part of a Database that is about single entries."""

    def _add_batches(self, batches: Sequence[Batch]) -> None:
        row = f"({marks(len(_COLUMNS))})"
        for some in in_parts(batches, len(_COLUMNS)):
            self._run(  # what should be there already is no reason to take nothing any more
                f"INSERT INTO batches ({', '.join(_COLUMNS)}) VALUES {', '.join([row] * len(some))}"  # noqa: S608
                " ON CONFLICT DO NOTHING",
                [*chain.from_iterable(map(_row, some))],
            )

    def entries(
        self,
        *,
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Entry]:
        start, end = to_millis(since), (to_millis(until), "")
        if before is not None:
            found = next((entry for entry in self._candidates({before}) if entry.request_id == before), None)
            if found is None:
                return []
            end = min(end, (moment_of(found), before))
        return [*islice(self._newest_first(start, end, key_id), limit)]

    def _newest_first(self, start: int, end: tuple[int, str], key_id: str | None) -> Iterator[Entry]:
        """By time and request id, from a time to before a time and request id."""
        waiting: list[tuple[int, str, int, Entry]] = []  # the newest last; numbered, since entries have no order
        numbers = count()
        for last, packed, lines in self._walk(start, end[0] + 1, key_id):
            while waiting and waiting[-1][0] > last:  # nothing that is still to come is as new
                yield waiting.pop()[3]
            for when, entry in timed_in(packed, lines, last):
                if start <= when and (when, entry.request_id) < end:
                    insort(waiting, (when, entry.request_id, next(numbers), entry))
        yield from (found[3] for found in reversed(waiting))

    def _between(self, start: int, end: int, key_id: str | None) -> Iterator[list[Entry]]:
        """A batch's at once, in any order."""
        for last, packed, lines in self._walk(start, end, key_id):
            yield [entry for when, entry in timed_in(packed, lines, last) if start <= when < end]

    def _walk(self, start: int, end: int, key_id: str | None) -> Iterator[tuple[int, str, str | None]]:
        """Batches that may have entries from `start` to before `end`, from the newest on: `last`, packed, lines."""
        sql = (
            "SELECT last, body, lines, zipped, id FROM batches WHERE last <= ? AND (last < ? OR id < ?)"  # noqa: S608
            f" AND last >= ? AND last - span < ?{'' if key_id is None else ' AND key_id = ?'}"
            " ORDER BY last DESC, id DESC LIMIT ?"
        )
        fixed = (start, end, *(() if key_id is None else (key_id,)))
        last, id, most = end + SPAN, "", FEW
        while True:
            rows = self._run(sql, (last, last, id, *fixed, most)).fetchall()
            yield from ((last, packed, _text(*lines)) for last, packed, *lines, _ in rows)
            if len(rows) < most:
                return
            last, *_, id = rows[-1]
            most = min(2 * most, MANY)

    def _there(self, ids: Collection[str]) -> set[str]:
        """Which of these requests have an entry."""
        return {entry.request_id for entry in self._candidates(ids)}.intersection(ids)

    def _candidates(self, ids: Collection[str]) -> Iterator[Entry]:
        """The entries among which those of these requests are, if there are any."""
        for some in in_parts([*ids]):
            sql = f"SELECT body, lines, zipped FROM batches WHERE id IN ({marks(len(some))})"  # noqa: S608
            for packed, *lines in self._run(sql, some).fetchall():
                yield from entries_of(packed, _text(*lines))
        numbers: dict[str, list[int]] = defaultdict(list)
        for prefix, number in filter(None, map(number_of, ids)):
            numbers[prefix].append(number)
        for prefix, theirs in numbers.items():
            for lines in self._lines_around(prefix, sorted(theirs)):
                if len(ids) > SOUGHT_AS_TEXT or any(id in lines for id in ids):
                    yield from entries_of("", lines)

    def _lines_around(self, prefix: str, numbers: Sequence[int]) -> Iterator[str]:
        """Of the batches in whose range one of these numbers is."""
        sql = "SELECT id, low, high FROM batches WHERE prefix = ? AND high >= ? AND low <= ? ORDER BY high"
        for id, low, high in self._run(sql, (prefix, numbers[0], numbers[-1])).fetchall():
            if bisect_left(numbers, low) < bisect_right(numbers, high):
                for lines in self._run("SELECT lines, zipped FROM batches WHERE id = ?", (id,)).fetchall():
                    yield _text(*lines) or ""

    def prune(self, before: float, *, limit: int = 10_000) -> int:
        cut, left = math.floor(before * 1000), limit
        whole: list[str] = []
        with self._transaction():
            self._take_turns()
            sql = "SELECT id, last, count FROM batches WHERE last < ? AND last - span < ? ORDER BY last LIMIT ?"
            for id, last, size in self._run(sql, (cut + SPAN, cut, limit)).fetchall():
                if last < cut and size <= left:
                    whole.append(id)
                    left -= size
                elif left:
                    left -= self._shorten(id, cut, left)
            for some in in_parts(whole):
                self._run(f"DELETE FROM batches WHERE id IN ({marks(len(some))})", some)  # noqa: S608
        return limit - left

    def _shorten(self, id: str, cut: int, most: int) -> int:
        """Forgets the oldest entries of a batch whose newest one stays. How many went."""
        sql = "SELECT last, body, lines, zipped FROM batches WHERE id = ?"
        ((last, packed, *lines),) = self._run(sql, (id,)).fetchall()
        found = sorted(timed_in(packed, _text(*lines), last), key=itemgetter(0))
        moments = [when for when, _ in found]
        gone = min(most, bisect_left(moments, cut))
        left = Lines.of("".join(line_of(entry) + "\n" for _, entry in found[gone:]).encode())
        self._run(
            "UPDATE batches SET span = ?, count = ?, lines = ?, zipped = ? WHERE id = ?",
            (last - moments[gone], len(found) - gone, *left, id),
        )
        return gone

    def _take_turns(self) -> None:
        """Until this transaction ends, others wait here."""
        self._run("UPDATE journals SET taken = taken WHERE name = ''")


def to_millis(moment: float) -> int:
    return FOREVER if moment * 1000 > FOREVER else math.ceil(moment * 1000)


def _text(plain: str | None, zipped: bytes | None) -> str | None:
    """Of a batch's lines; raises StoreDown where they are damaged."""
    try:
        return Lines(plain, zipped).text
    except ValueError as error:
        raise StoreDown(f"A batch of entries in the database is damaged: {error}.") from error


def _row(batch: Batch) -> Iterable[object]:
    span = batch.last - batch.first
    numbered = (batch.prefix, batch.low, batch.high)
    return (
        batch.id,
        batch.last,
        batch.key_id,
        batch.packed,
        span,
        batch.count,
        *numbered,
        *(batch.lines or (None, None)),
    )
