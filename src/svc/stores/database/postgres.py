"""A Database on a PostgreSQL server, which several machines can share. Needs the extra `postgres`."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

from svc.errors import UsageError
from svc.stores.database.base import STATEMENT_TIMEOUT_SECONDS, CommitOutcomeUnknown, StoreUnavailable
from svc.stores.database.postgres_partitions import LedgerPartitions, start_of_month_ms
from svc.stores.database.sql import SqlDatabase
from svc.stores.database.statements import DatabaseCursor

POSTGRES_CONNECT_TIMEOUT_SECONDS = 3
SESSION_SETTINGS_SQL = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'"
MAY_CREATE_SQL = "SELECT COALESCE(has_schema_privilege(current_schema(), 'CREATE'), FALSE)"
"""The user of the first migration needs this right, and so does `CREATE TABLE IF NOT EXISTS` of any later start."""
DENIED_TABLES_SQL = """
SELECT relname FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
  AND relname IN ('batches', 'days', 'hours', 'journals', 'keys', 'schema_changes', 'schema_version')
  AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
    AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
ORDER BY relname"""
"""Lists the tables that the user may not use, such as those that a restore by another user made."""
MAX_ERROR_REASON_CHARACTERS = 400
CONNECTION_PREFIX_PATTERN = re.compile(r"^(- host: .*?, hostaddr: (?:'[^']*'|None): )?(connection (failed|is bad): )?")
"""What psycopg puts before the message of libpq, which names the host itself."""
MIGRATION_LOCK_ID = 7_301_964
MIN_COPY_ROWS = 100
"""Rows from which COPY costs less than INSERT with values, temporary table included."""
INVALID_URL = (
    "SVC_DATABASE_URL is not valid: use postgresql://user:password@host/name, "
    "with special characters in the password percent-encoded."
)
INTERRUPT_POLL_SECONDS: Final = 0.1
"""Interval at which a wait checks for Ctrl-C. It is psycopg's default."""
T = TypeVar("T")


class _TimeoutConnection(psycopg.Connection[Any]):
    """Enforces the timeout in the client. TCP does not detect a stopped server: its kernel still acknowledges data."""

    timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS

    def wait(self, gen: PQGen[T], interval: float = INTERRUPT_POLL_SECONDS, timeout: float | None = None) -> T:
        return super().wait(gen, interval, self.timeout_seconds if timeout is None else timeout)


class PostgresDatabase(SqlDatabase):
    """Belongs to one thread at a time. It reconnects with the next statement after a connection was lost."""

    def __init__(self, url: str, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._display_name = _describe_database(url)
        """Names the database in messages, without user and password."""
        self._connection: _TimeoutConnection | None = None
        self._partitions = LedgerPartitions(self)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):  # closed
                connection.cancel_safe(timeout=POSTGRES_CONNECT_TIMEOUT_SECONDS)

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is not None and _is_ended_by_server(self._connection):
            self.close()
        if self._connection is None:
            self._connection = _TimeoutConnection.connect(
                self._url,
                autocommit=True,
                connect_timeout=POSTGRES_CONNECT_TIMEOUT_SECONDS,
                tcp_user_timeout=10_000,
                application_name="svc",
                # A pooler such as PgBouncer gives each transaction another server connection, on which the name of a
                # prepared statement can be missing, or be that of another statement.
                prepare_threshold=None,
            )
            self._connection.timeout_seconds = self._timeout_seconds
            self._connection.execute(SESSION_SETTINGS_SQL)
        return self._connection

    def _run_statement(self, sql: str, args: Sequence[Any] = ()) -> DatabaseCursor:
        return self._execute(sql.replace("%", "%%").replace("?", "%s"), args)

    def _execute(self, sql: str, args: Sequence[Any]) -> DatabaseCursor:
        with self._translate_errors():
            return self._connect().execute(sql.encode(), args)

    def is_read_only(self) -> bool:
        return bool(self._run_statement("SHOW transaction_read_only").fetchall()[0][0] == "on")

    def check_schema(self) -> None:
        denied = [str(name) for (name,) in self._run_statement(DENIED_TABLES_SQL).fetchall()]
        if denied:
            tables = f"the {'table' if len(denied) == 1 else 'tables'} {', '.join(denied)}"
            raise StoreUnavailable(f"{self._display_name} cannot be used: the user has no rights on {tables}.")
        if not self._run_statement(MAY_CREATE_SQL).fetchall()[0][0]:
            raise StoreUnavailable(f"{self._display_name} cannot be used: the user may not create tables.")
        super().check_schema()

    def _has_table(self, name: str) -> bool:
        return self._run_statement("SELECT to_regclass(?)", (name,)).fetchall()[0][0] is not None

    def migrate(self) -> tuple[int, int]:
        if self.is_read_only():
            version = self._read_migrated_version()
            return version, version
        versions = super().migrate()
        if self._partitions.exist():
            self._create_partitions_ahead()
        return versions

    def partition_entries(self) -> bool:
        with self._migration_transaction():
            if self._partitions.exist():
                return False
            self._partitions.create()
            return True

    def prune_entries(self, before: float, *, limit: int = 10_000) -> int:
        if not self._partitions.exist():
            return super().prune_entries(before, limit=limit)
        self._create_partitions_ahead()
        month_ms = start_of_month_ms(math.floor(before * 1000))
        self._partitions.drop_expired(month_ms)
        return super().prune_entries(month_ms / 1000, limit=limit)  # in the partitions that hold several months

    def _create_partitions_ahead(self) -> None:
        with self._migration_transaction():
            self._partitions.create_ahead()

    def _lock_sums(self) -> None:
        self._run_statement("LOCK TABLE hours IN SHARE ROW EXCLUSIVE MODE")  # readers continue

    def _insert_rows(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]], on_conflict: str
    ) -> None:
        """Copy many rows through a temporary table, because COPY has no ON CONFLICT.

        The rows are inserted in their order: PostgreSQL reads a temporary table from its first row on.
        """
        if len(rows) < MIN_COPY_ROWS:
            super()._insert_rows(table, columns, rows, on_conflict)
            return
        names, copied = ", ".join(columns), f"copied_{table}"
        self._run_statement(
            f"CREATE TEMPORARY TABLE {copied} ON COMMIT DROP AS SELECT {names} FROM {table} WITH NO DATA"  # noqa: S608
        )
        copy_sql = f"COPY {copied} ({names}) FROM STDIN".encode()
        with self._translate_errors(), self._connect().cursor() as cursor, cursor.copy(copy_sql) as copy:
            for row in rows:
                copy.write_row(row)
        self._run_statement(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {copied} ON CONFLICT {on_conflict}"  # noqa: S608
        )

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if not isinstance(error, psycopg.errors.IntegrityError):
                self.close()  # the transaction state is unknown
            raise StoreUnavailable(f"{self._display_name} cannot be used: {_error_reason(error)}.") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run_statement("BEGIN")
        try:
            yield
        except BaseException:
            self.close()  # closing rolls the transaction back
            raise
        try:
            self._run_statement("COMMIT")
        except BaseException as error:
            self.close()
            if isinstance(error, StoreUnavailable):
                raise CommitOutcomeUnknown(error.message) from error
            raise

    @contextlib.contextmanager
    def _migration_transaction(self) -> Iterator[None]:
        with self._transaction():
            # A migration of a large table can take longer than any other statement.
            self._run_statement(f"SET LOCAL statement_timeout = {round(self._timeout_seconds * 1000)}")
            self._run_statement("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK_ID,))
            yield


def _is_ended_by_server(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the server or a proxy ended an idle connection, such as at a restart.

    It then sent an error or EOF. A server also sends changed settings without a request. The new connection is then
    unnecessary, and harmless.
    """
    if connection.closed:
        return True
    if connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return False  # the statements of a transaction belong to one connection
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _describe_database(url: str) -> str:
    """Return the host, port and name of the database, as far as the URL has them."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    return f"The PostgreSQL database {parts.get('dbname') or ''!r} at {host}, port {port}"


def _error_reason(error: psycopg.Error) -> str:
    """Return the message of the server or of libpq in one line. Neither repeats a password.

    After the error of the last host, psycopg lists those of all hosts. Lines that begin with a tab are hints.
    """
    text = error.diag.message_primary or str(error) or type(error).__name__
    lines = [line for line in text.splitlines() if not line.startswith("\t")]
    failures = [line for line in lines if line.startswith("- host: ")]
    text = "; ".join(CONNECTION_PREFIX_PATTERN.sub("", line) for line in failures or lines)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        text = f"it is read-only, as a standby is: {text}"
    return " ".join(text.split())[:MAX_ERROR_REASON_CHARACTERS].rstrip(".")


def open_database(url: str, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> PostgresDatabase:
    """Open `postgresql://user:password@host:port/name`, with libpq's parameters. Raises UsageError.

    https://www.postgresql.org/docs/current/libpq-connect.html
    """
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise UsageError(INVALID_URL) from error
    # After an @ in the password, its rest is in one of these. An abstract socket begins with @.
    if "@" in str(parts.get("dbname") or "") or "@" in str(parts.get("host") or "")[1:]:
        raise UsageError(INVALID_URL)
    return PostgresDatabase(url, timeout_seconds)
