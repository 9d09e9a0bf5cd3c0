"""Database on a PostgreSQL server, which several machines may share. Needs the extra `postgres`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

from svc.errors import UsageError
from svc.stores._sql import Sql
from svc.stores._statements import Cursor
from svc.stores.base import ANSWER_SECONDS, StoreDown, StoreUnsure

CONNECT_SECONDS = 3
SETTINGS = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'"
MAX_REASON = 400
MIGRATION_LOCK = 7_301_964
WAIT_INTERVAL: Final = 0.1
"""Seconds after which a wait looks for Ctrl-C: psycopg's own default."""
T = TypeVar("T")


class _Connection(psycopg.Connection[Any]):
    """Gives a server up that takes statements and answers none: its system still acknowledges what it is sent."""

    answer_seconds: float = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], interval: float = WAIT_INTERVAL, timeout: float | None = None) -> T:
        return super().wait(gen, interval, self.answer_seconds if timeout is None else timeout)


class PostgresDatabase(Sql):
    """Belongs to one thread at a time. A connection that broke is made anew with the next question."""

    def __init__(self, url: str, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._url = url
        self._answer_seconds = answer_seconds
        self._place = _place(url)
        """Names the database in messages, without user and password."""
        self._db: _Connection | None = None

    def close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(psycopg.Error):
                self._db.close()
            self._db = None

    def _connect(self) -> psycopg.Connection[Any]:
        if self._db is None or self._db.closed:
            self._db = _Connection.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                tcp_user_timeout=10_000,
                application_name="svc",
            )
            self._db.answer_seconds = self._answer_seconds
            self._db.execute(SETTINGS)
        return self._db

    def _run(self, sql: str, args: Sequence[Any] = ()) -> Cursor:
        return self._execute(sql.replace("%", "%%").replace("?", "%s"), args)

    def _execute(self, sql: str, args: Sequence[Any]) -> Cursor:
        try:
            return self._connect().execute(sql.encode(), args)
        except psycopg.Error as error:
            if not isinstance(error, psycopg.errors.IntegrityError):
                self.close()  # whatever state it is in
            raise StoreDown(f"{self._place} does not answer as it should: {_reason(error)}.") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self.close()  # which rolls back
            raise
        try:
            self._run("COMMIT")
        except BaseException as error:
            self.close()
            if isinstance(error, StoreDown):
                raise StoreUnsure(error.message) from error
            raise

    @contextlib.contextmanager
    def _migrating(self) -> Iterator[None]:
        with self._transaction():
            self._run("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
            yield


def _place(url: str) -> str:
    """Host, port and name of the database, as far as the URL says them."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    return f"The PostgreSQL database {parts.get('dbname') or ''!r} at {host}, port {port}"


def _reason(error: psycopg.Error) -> str:
    """Return the message of the server or of libpq in one line. Neither repeats a password."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(text.split())[:MAX_REASON].rstrip(".")


def open_database(url: str, answer_seconds: float = ANSWER_SECONDS) -> PostgresDatabase:
    """`postgresql://user:password@host:port/name`, with libpq's parameters; raises UsageError."""
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise UsageError(
            "SVC_DATABASE_URL is not like postgresql://user:password@host/name; "
            "special characters in a password are percent-encoded."
        ) from error
    return PostgresDatabase(url, answer_seconds)
