"""The interface between the shared SQL statements and a database driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
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
