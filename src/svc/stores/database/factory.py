"""Opens the database of a URL. The URL's scheme selects the plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from svc import plugins
from svc.distribution import install_command
from svc.errors import UsageError
from svc.stores import state_dir
from svc.stores.database.base import STATEMENT_TIMEOUT_SECONDS, Database


def database_url(environ: Mapping[str, str], home: Path) -> str:
    """Return `SVC_DATABASE_URL`, or the URL of a file in the state folder."""
    return environ.get("SVC_DATABASE_URL") or f"sqlite:///{home.absolute() / 'svc.db'}"


def open_state_database(
    environ: Mapping[str, str], home: Path, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS
) -> Database:
    """Return this process's database, not yet connected, and prepare its state folder. Raises OSError.

    A statement that takes longer than `timeout_seconds` raises StoreUnavailable.
    """
    state_dir.prepare_state_dir(home)
    return open_database(database_url(environ, home), timeout_seconds)


def open_database(url: str, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> Database:
    """Return a database, not yet connected. Raises UsageError, which also names a missing package to install."""
    scheme = url.partition(":")[0].lower()
    name = {"postgresql": "postgres"}.get(scheme, scheme)
    if name not in ("sqlite", "postgres"):
        raise UsageError("SVC_DATABASE_URL must begin with sqlite:/// or postgresql://.")
    try:
        module = plugins.load("stores.database", name)
    except ImportError as error:
        raise UsageError(f"The database needs the extra '{name}': {install_command(name)} ({error}).") from error
    database: Database = module.open_database(url, timeout_seconds)
    return database
