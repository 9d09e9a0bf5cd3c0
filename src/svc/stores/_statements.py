"""What a driver brings to the statements that SQLite and PostgreSQL have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

MAX_MARKS = 500
"""Values that one statement is given."""

T = TypeVar("T")


class Cursor(Protocol):
    """What both drivers' cursors have."""

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> list[Any]: ...


class Statements:
    """A connection that is made when it is needed."""

    def _run(self, sql: str, args: Sequence[Any] = ()) -> Cursor:
        """Runs one statement, its places marked `?`; raises StoreDown."""
        raise NotImplementedError

    def _transaction(self) -> AbstractContextManager[None]:
        """All or none. It may read what it then writes. Raises StoreUnsure when it may have been either."""
        raise NotImplementedError

    def _migrating(self) -> AbstractContextManager[None]:
        """A transaction that no other process can be in at the same time."""
        raise NotImplementedError


def marks(count: int) -> str:
    return ", ".join("?" * count)


def in_parts(values: Sequence[T], width: int = 1) -> Iterator[Sequence[T]]:
    """So many at once as one statement can be given, each of them being `width` values."""
    most = MAX_MARKS // width
    for start in range(0, len(values), most):
        yield values[start : start + most]
