"""Find and print the entries of a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import describe_yanked, list_other_platforms, parse_reference, select_entry, sort_entries
from svc.cli._output import print_json, print_table
from svc.errors import BundleNotFound
from svc.stores.bundles.base import BundleStore
from svc.wire.bundle import BundleEntry, entry_for_json


def find_entry(text: str, entries: Iterable[BundleEntry], platform: str | None) -> BundleEntry:
    """Find an entry by reference or full key. Raises BundleNotFound."""
    all_entries = list(entries)
    if text.count("/") == 2:
        match = next((entry for entry in all_entries if entry.key == text), None)
    else:
        reference, platforms = parse_reference(text), compatible_platforms() if platform is None else (platform,)
        match = select_entry(reference, all_entries, platforms)
        if match is None and (yanked := describe_yanked(reference, all_entries, platforms)):
            raise BundleNotFound(yanked)
        if match is None and (others := list_other_platforms(reference, all_entries)):
            raise BundleNotFound(f"There is no bundle {text} for {' or '.join(platforms)}, only for {others}.")
    if match is None:
        raise BundleNotFound(f"There is no bundle {text}; see: svc registry ls")
    return match


def no_location(entry: BundleEntry) -> None:
    """Return None: only the entry's `path` locates the bundle."""


def is_missing(store: BundleStore, entry: BundleEntry) -> bool:
    """Return whether the bundle's file does not exist. False for a bucket, where this needs a request per bundle."""
    return store.is_on_disk and not Path(store.location(entry)).exists()


def print_entries(
    entries: Iterable[BundleEntry],
    *,
    as_json: bool,
    locate: Callable[[BundleEntry], str | None] = no_location,
    is_missing: Callable[[BundleEntry], bool] = lambda _: False,
) -> None:
    """Print sorted entries as a table or as JSON.

    `locate` returns the location of a bundle that `path` does not give.
    """
    ordered = sort_entries(entries)
    if as_json:
        print_json([msgspec.to_builtins(entry_for_json(entry, locate(entry))) for entry in ordered])
        return
    rows = [("MODEL", "VERSION", "PLATFORM", "BYTES", "STATE", "SHA256")]
    for entry in ordered:
        state = "missing" if is_missing(entry) else "yanked" if entry.yanked else "ok"
        sha256 = (entry.sha256 or "")[:16]
        rows.append((entry.model_id, entry.version, entry.target, str(entry.size_bytes), state, sha256))
    print_table(rows, state_column=4)
