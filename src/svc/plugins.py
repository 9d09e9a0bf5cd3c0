"""Load plug-ins by name: a module of this package, or an installed entry point. No registration is needed.

kind `dialects`, name `openai`   ->  module svc.dialects.openai
kind `cli`, name `sign-key`      ->  module svc.cli.sign_key
kind `dialects`, name `mine`     ->  entry point `mine` of the group `svc.dialects`

The module `base`, and modules with a leading underscore, are shared code and not plug-ins.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from svc.errors import UsageError

_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def load(kind: str, name: str) -> Any:
    """Return the plug-in: a module, or the object of the entry point. Raises UsageError with the known names.

    An ImportError from inside the plug-in propagates, since it names the missing dependency.
    """
    if _has_module(kind, name):
        return importlib.import_module(_module_name(kind, name))
    for entry in _entry_points(kind):
        if entry.name == name:
            return entry.load()
    raise UsageError(f"There is no {name[:64]!r}. Available: {', '.join(names(kind)) or 'none'}.")


def load_usable(kind: str) -> list[Any]:
    """Return all plug-ins of a kind, except installed ones that fail to load.

    A plug-in that is in use is loaded by its name as well, which reports the failure.
    """
    usable = []
    for name in names(kind):
        try:
            usable.append(load(kind, name))
        except Exception:
            if _has_module(kind, name):
                raise
    return usable


def names(kind: str) -> list[str]:
    """Return the sorted names of all plug-ins of a kind, without importing them."""
    package: ModuleType = importlib.import_module(f"svc.{kind}")
    modules = {
        module.name.replace("_", "-") for module in pkgutil.iter_modules(package.__path__) if _is_public(module.name)
    }
    return sorted(modules | {entry.name for entry in _entry_points(kind)})


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring, or "". For speed, the source is parsed and not executed.

    For an installed plug-in that fails to load, returns the error: it must not hide the other plug-ins.
    """
    if not _has_module(kind, name):
        try:
            doc = getattr(load(kind, name), "__doc__", None) or ""
        except Exception as error:  # noqa: BLE001 code of another package may raise anything
            return f"fails to load: {error}".partition("\n")[0]
        return doc.strip().partition("\n")[0]
    spec = find_spec(_module_name(kind, name))
    source = spec.loader.get_source(spec.name) if spec and hasattr(spec.loader, "get_source") else None  # type: ignore[union-attr]
    ast = importlib.import_module("ast")
    return (ast.get_docstring(ast.parse(source or "")) or "").partition("\n")[0]


def _entry_points(kind: str) -> Any:
    folders = tuple([(path, _modification_time(path)) for path in sys.path])
    return _scan_installed_packages(folders).select(group=f"svc.{kind}")


def _modification_time(path: str) -> int:
    """Return the time of the last installation into a folder, in nanoseconds, or 0."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _scan_installed_packages(_folders: tuple[tuple[str, int], ...]) -> Any:
    """Return the entry points of all packages. A scan reads a file of each, and a start asks for several kinds.

    importlib.metadata is slow to import, so it is imported on demand.
    """
    return importlib.import_module("importlib.metadata").entry_points()


def _has_module(kind: str, name: str) -> bool:
    return bool(_PLUGIN_NAME.fullmatch(name)) and _is_public(name) and find_spec(_module_name(kind, name)) is not None


def _module_name(kind: str, name: str) -> str:
    return f"svc.{kind}.{name.replace('-', '_')}"


def _is_public(name: str) -> bool:
    return name != "base" and not name.startswith("_")
