"""Which database a URL means. The stores themselves are found by the URL's scheme, as plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from svc import plugins
from svc.distribution import install_command
from svc.errors import UsageError
from svc.stores import home as state
from svc.stores.base import Database


def database_url(environ: Mapping[str, str], home: Path) -> str:
    """`SVC_DATABASE_URL`, else a file in the state folder."""
    return environ.get("SVC_DATABASE_URL") or f"sqlite:///{home.absolute() / 'svc.db'}"


def open_state(environ: Mapping[str, str], home: Path) -> Database:
    """This process's database, not yet connected; its state folder is made, or closed to others. Raises OSError."""
    state.prepare(home)
    return open_database(database_url(environ, home))


def open_database(url: str) -> Database:
    """A database, not yet connected; raises UsageError, ImportError never: what to install is in the message."""
    scheme = url.partition(":")[0].lower()
    name = {"postgresql": "postgres"}.get(scheme, scheme)
    if name not in ("sqlite", "postgres"):
        raise UsageError("SVC_DATABASE_URL begins with sqlite:/// or postgresql://.")
    try:
        module = plugins.load("stores", name)
    except ImportError as error:
        raise UsageError(f"The database needs the extra '{name}': {install_command(name)} ({error}).") from error
    found: Database = module.open_database(url)
    return found
