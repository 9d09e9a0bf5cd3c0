"""Finds the dialects of providers: modules of `svc.dialects` with the variable `dialect`, and those of plug-ins."""

from __future__ import annotations

from svc import plugins
from svc.dialects.base import Dialect
from svc.errors import UsageError
from svc.settings import DEFAULT_DIALECT, ProviderSettings


def load_dialect(entry: ProviderSettings) -> Dialect:
    """Return the dialect of a provider. Raises UsageError if there is none of that name."""
    name = entry.dialect or DEFAULT_DIALECT
    module = plugins.load("dialects", name) if name in plugins.names("dialects") else None
    dialect: Dialect | None = getattr(module, "dialect", None)
    if dialect is None:
        known_names = ", ".join(known_dialect.name for known_dialect in load_usable_dialects())
        raise UsageError(f"Provider {entry.name}: there is no dialect {name[:64]!r}; known: {known_names}.")
    return dialect


def load_usable_dialects() -> list[Dialect]:
    """Return all dialects. The package also contains modules that are not dialects."""
    found = [getattr(module, "dialect", None) for module in plugins.load_usable("dialects")]
    return [dialect for dialect in found if dialect is not None]
