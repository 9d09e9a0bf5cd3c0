"""Which database a URL means. The stores themselves are found by the URL's scheme, as plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from svc import plugins
from svc.distribution import install_command
from svc.errors import UsageError
from svc.stores import state_dir as state
from svc.stores.database.base import STATEMENT_TIMEOUT_SECONDS, Database


def database_url(environ: Mapping[str, str], home: Path) -> str:
    """`SVC_DATABASE_URL`, else a file in the state folder."""
    return environ.get("SVC_DATABASE_URL") or f"sqlite:///{home.absolute() / 'svc.db'}"


def open_state_database(
    environ: Mapping[str, str], home: Path, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS
) -> Database:
    """This process's database, not yet connected; its state folder is made, or closed to others. Raises OSError.

    A statement that a server does not answer within `answer_seconds` is a StoreDown.
    """
    state.prepare_state_dir(home)
    return open_database(database_url(environ, home), timeout_seconds)


def open_database(url: str, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> Database:
    """A database, not yet connected; raises UsageError, ImportError never: what to install is in the message."""
    scheme = url.partition(":")[0].lower()
    name = {"postgresql": "postgres"}.get(scheme, scheme)
    if name not in ("sqlite", "postgres"):
        raise UsageError("SVC_DATABASE_URL begins with sqlite:/// or postgresql://.")
    try:
        module = plugins.load("stores.database", name)
    except ImportError as error:
        raise UsageError(f"The database needs the extra '{name}': {install_command(name)} ({error}).") from error
    database: Database = module.open_database(url, timeout_seconds)
    return database
