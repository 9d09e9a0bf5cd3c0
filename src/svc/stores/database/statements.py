"""What a driver brings to the statements that SQLite and PostgreSQL have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

MAX_SQL_PARAMETERS = 500
"""Values that one statement is given."""

T = TypeVar("T")


class DatabaseCursor(Protocol):
    """What both drivers' cursors have."""

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> list[Any]: ...


class SqlConnection:
    """A connection that is made when it is needed."""

    def _run_statement(self, sql: str, args: Sequence[Any] = ()) -> DatabaseCursor:
        """Runs one statement, its places marked `?`; raises StoreDown."""
        raise NotImplementedError

    def _transaction(self) -> AbstractContextManager[None]:
        """All or none. It may read what it then writes. Raises StoreUnsure when it may have been either."""
        raise NotImplementedError

    def _migration_transaction(self) -> AbstractContextManager[None]:
        """A transaction that no other process can be in at the same time."""
        raise NotImplementedError


def sql_placeholders(count: int) -> str:
    return ", ".join("?" * count)


def split_into_chunks(values: Sequence[T], width: int = 1) -> Iterator[Sequence[T]]:
    """So many at once as one statement can be given, each of them being `width` values."""
    chunk_size = MAX_SQL_PARAMETERS // width
    for start in range(0, len(values), chunk_size):
        yield values[start : start + chunk_size]
