"""What SQLite and PostgreSQL have in common: the statements. How they connect, and lock, is in their own files.

keys      one row a key; every change takes the next number from `key_revision`, whose row lock puts them in order
batches   one row for the entries of a key that were taken in together, for `ledger.retain_days`
hours, days   the entries' sums, kept for good; written with the entries in one transaction
journals  so many bytes of each are in; written with their entries. The one without a name is a lock
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from svc.errors import UsageError
from svc.stores._keys import Keys
from svc.stores._sums import Sums
from svc.stores.base import Entry
from svc.stores.batches import Stretch
from svc.stores.lines import stretch


class Sql(Keys, Sums):
    """`Database`, but for its connection."""

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

    def ping(self) -> None:
        self._run("SELECT 1")

    def taken(self, journal: str) -> int:
        self._run("INSERT INTO journals (name, taken) VALUES (?, 0) ON CONFLICT DO NOTHING", (journal,))
        return int(self._run("SELECT taken FROM journals WHERE name = ?", (journal,)).fetchall()[0][0])

    def take(self, journal: str, start: int, end: int, found: Stretch) -> bool:
        with self._transaction():
            moved = (
                "UPDATE journals SET taken = ? WHERE name = ? AND taken = ?"  # who comes second waits, and moves none
            )
            if not self._run(moved, (end, journal, start)).rowcount:
                return False
            self._add(found)
        return True

    def forget(self, journal: str) -> None:
        self._run("DELETE FROM journals WHERE name = ?", (journal,))

    def append(self, entries: Iterable[Entry]) -> int:
        by_id = {entry.request_id: entry for entry in entries}
        if not by_id:
            return 0
        with self._transaction():
            self._take_turns()  # no two look for the same requests at the same time
            there = self._there(by_id)
            found = stretch([entry for id, entry in by_id.items() if id not in there])
            self._add(found)
        return found.count

    def _add(self, found: Stretch) -> None:
        self._add_batches(found.batches)
        self._add_sums(found.hours)


def _migrations() -> list[list[str]]:
    folder = resources.files("svc.stores").joinpath("schema")
    files = sorted((each for each in folder.iterdir() if each.name.endswith(".sql")), key=lambda each: each.name)
    return [[part for part in file.read_text(encoding="utf-8").split(";\n") if part.strip()] for file in files]
