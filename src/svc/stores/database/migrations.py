"""The schema version of a database: the migrations, and which programs can use their result.

`schema_version`  the version that a program compares with its own. `svc migrate --to` sets it to that of a program
                  from before version 8, which would refuse to start otherwise
`schema_changes`  the migrations that were applied, since version 8. `oldest` is the oldest version of a program that
                  can use the database after the migration

A migration that only adds tables, indexes, and columns with defaults leaves older programs working. A first line
`-- Oldest program: N` in its file says so. Without that line, older programs refuse to start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

from svc.errors import UsageError
from svc.stores.database.base import StoreUnavailable
from svc.stores.database.statements import SqlConnection

_OLDEST_PROGRAM: Final = re.compile(r"-- Oldest program: (\d+)\n")
SUMS_INDEX: Final = "batches_old_sums"
"""The index of batches whose sums are incomplete. The migrations that add a sum create it."""


class Migration(NamedTuple):
    """One file of the folder `schema`."""

    version: int
    statements: tuple[str, ...]
    oldest: int
    """The oldest version of a program that can use the database after this migration."""


class SchemaState(NamedTuple):
    """The versions of a database."""

    recorded: int
    """The version that programs from before version 8 compare with their own. 0 for a new database."""
    applied: int
    """The newest migration that was applied."""
    oldest: int
    """The oldest version of a program that can use the database."""


class SchemaRows(SqlConnection):
    """The methods of a Database for its schema."""

    def migrate(self) -> tuple[int, int]:
        with self._migration_transaction():
            before, after = self._apply_migrations()
        return before.applied, after.applied

    def check_schema(self) -> None:
        if self._has_table("schema_version") and self._has_table("schema_changes"):
            _check_program(self._schema_state())

    def record_schema_version(self, version: int | None = None) -> tuple[int, int]:
        with self._migration_transaction():
            before, state = self._apply_migrations()
            if version is None:
                version = state.recorded if state.applied > latest_schema_version() else state.applied
            elif not state.oldest <= version <= state.applied:
                raise UsageError(
                    f"Programs of schema version {version} cannot use this database: it has version {state.applied}, "
                    f"and works with {state.oldest} or later. To run an older program, restore a backup that it made."
                )
            self._run_statement("DELETE FROM schema_version WHERE version > ?", (version,))
            for number in range(state.recorded + 1, version + 1):
                self._run_statement("INSERT INTO schema_version VALUES (?)", (number,))
        return before.recorded, version

    def _apply_migrations(self) -> tuple[SchemaState, SchemaState]:
        """Apply missing migrations, within a transaction. Return the state before and after. Raises UsageError."""
        self._run_statement("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        self._run_statement(
            "CREATE TABLE IF NOT EXISTS schema_changes (version INTEGER PRIMARY KEY, oldest INTEGER NOT NULL)"
        )
        before, migrations = self._schema_state(), load_migrations()
        _check_program(before)
        is_held = before.recorded < before.applied
        for migration in migrations[before.applied :]:
            for statement in migration.statements:
                self._run_statement(statement)
            self._run_statement("INSERT INTO schema_changes VALUES (?, ?)", (migration.version, migration.oldest))
            if not is_held:
                self._run_statement("INSERT INTO schema_version VALUES (?)", (migration.version,))
        return before, self._schema_state()

    def _read_migrated_version(self) -> int:
        """Return the version of a read-only database. Raises UsageError, and StoreUnavailable if it is not migrated."""
        state = self._schema_state()
        _check_program(state)
        if state.applied < latest_schema_version():
            raise StoreUnavailable(
                f"The database is read-only, and its schema has version {state.applied}. This program needs version "
                f"{latest_schema_version()}. Run svc migrate with the address of the primary server."
            )
        return state.applied

    def _schema_state(self) -> SchemaState:
        recorded = int(self._run_statement("SELECT MAX(version) FROM schema_version").fetchall()[0][0] or 0)
        rows = self._run_statement("SELECT version, oldest FROM schema_changes").fetchall()
        return derive_schema_state(recorded, {int(version): int(oldest) for version, oldest in rows})


def derive_schema_state(recorded: int, known_changes: Mapping[int, int]) -> SchemaState:
    """Return the state of a database with the rows of `schema_version` and `schema_changes`."""
    changes = dict(known_changes)
    for migration in load_migrations()[:recorded]:  # older programs have not recorded their changes
        changes.setdefault(migration.version, migration.oldest)
    if recorded > max(changes, default=0):
        changes[recorded] = recorded  # of a program that keeps no changes: nothing is known about it
    return SchemaState(recorded, max(changes, default=0), max(changes.values(), default=0))


def _check_program(state: SchemaState) -> None:
    """Raise UsageError if this program cannot use the database."""
    latest = latest_schema_version()
    if state.oldest > latest:
        raise UsageError(
            f"The database is of a newer version ({state.applied}) than this program knows ({latest}), "
            f"and needs a program that knows version {state.oldest}. Start a newer program, or restore a backup "
            "from before the upgrade."
        )


def latest_schema_version() -> int:
    """Return the version that `migrate` upgrades to."""
    return len(load_migrations())


@lru_cache(maxsize=1)
def load_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this program, in their order."""
    folder = resources.files("svc.stores.database").joinpath("schema")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(_parse(number, file.read_text(encoding="utf-8")) for number, file in enumerate(files, 1))


@lru_cache(maxsize=1)
def latest_sums_version() -> int:
    """Return the version of the newest migration that adds a sum. Batches that this program stores have it."""
    return max(
        migration.version
        for migration in load_migrations()
        if any(f"CREATE INDEX {SUMS_INDEX} " in statement for statement in migration.statements)
    )


def _parse(version: int, text: str) -> Migration:
    oldest = _OLDEST_PROGRAM.match(text)
    statements = tuple(part for part in text.split(";\n") if part.strip())
    return Migration(version, statements, version if oldest is None else int(oldest[1]))
