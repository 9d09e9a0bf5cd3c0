"""The interface between the shared SQL statements and a database driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Protocol, TypeVar

MAX_SQL_PARAMETERS = 500
"""Maximum number of parameters of one statement."""

T = TypeVar("T")


class DatabaseCursor(Protocol):
    """The methods of a cursor that both drivers have."""

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> list[Any]: ...


class SqlConnection:
    """A connection that is opened by its first statement."""

    def _run_statement(self, sql: str, args: Sequence[Any] = ()) -> DatabaseCursor:
        """Run one statement with `?` as placeholder. Raises StoreUnavailable."""
        raise NotImplementedError

    def _has_table(self, name: str) -> bool:
        raise NotImplementedError

    def _insert_rows(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]], on_conflict: str
    ) -> None:
        """Insert rows in their order, within a transaction. `on_conflict` is the SQL after `ON CONFLICT`."""
        row = f"({sql_placeholders(len(columns))})"
        for chunk in split_into_chunks(rows, len(columns)):
            self._run_statement(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * len(chunk))}"  # noqa: S608
                f" ON CONFLICT {on_conflict}",
                [*chain.from_iterable(chunk)],
            )

    def _transaction(self) -> AbstractContextManager[None]:
        """Open a transaction, in which reads and then writes are consistent.

        Raises CommitOutcomeUnknown if the connection was lost during the commit.
        """
        raise NotImplementedError

    def _migration_transaction(self) -> AbstractContextManager[None]:
        """Open a transaction that excludes every other migration."""
        raise NotImplementedError


def sql_placeholders(count: int) -> str:
    return ", ".join("?" * count)


def split_into_chunks(values: Sequence[T], width: int = 1) -> Iterator[Sequence[T]]:
    """Yield chunks of values that fit one statement, where each value needs `width` parameters."""
    chunk_size = MAX_SQL_PARAMETERS // width
    for start in range(0, len(values), chunk_size):
        yield values[start : start + chunk_size]
