"""Serve bundles of an upstream registry, and store each bundle at its first download.

While the upstream is unreachable, its last index and all stored bundles are still served.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Sequence

from svc.bundles.registry_client import RegistryClient
from svc.errors import BundleNotFound, InsufficientStorage, InvalidBundle, RegistryFailed, SvcError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.fetch import fetch_into
from svc.wire.bundle import BundleEntry

log = logging.getLogger("svc.registry")

UPSTREAM_INDEX_TTL_SECONDS = 5.0


def open_upstream(url: str, key: str | None, store: BundleStore) -> PullThroughCache:
    """Return the cache of the registry at a URL. Raises UsageError for an invalid URL."""
    return PullThroughCache(RegistryClient(url, key=key), store)


class PullThroughCache:
    """An upstream registry, and the store that keeps its bundles."""

    def __init__(self, client: RegistryClient, store: BundleStore) -> None:
        self._client = client
        self._store = store
        self._lock = threading.Lock()
        self._entries: dict[str, BundleEntry] = {}
        self._refreshed_at = 0.0
        self._revision = ""
        self._last_error = ""
        """Why the last index request failed, or empty."""
        self._last_warning = ""

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]:
        """Return the entries of the last known upstream index. Blocks."""
        with self._lock:
            if time.monotonic() - self._refreshed_at > UPSTREAM_INDEX_TTL_SECONDS:
                self._refresh()
            return [entry for entry in self._entries.values() if model_id in (None, entry.model_id)]

    def revision(self) -> str:
        """Return a token that changes with the upstream's entries. Blocks."""
        self.entries()
        return self._revision

    def _refresh(self) -> None:
        try:
            self._entries = {entry.key: entry for entry in self._client.fetch_index(warn=self._warn_once)}
        except SvcError as error:  # keep the last known entries
            self._refreshed_at = time.monotonic()
            self._last_error = error.message
            self._warn_once(error.message)
            return
        self._refreshed_at = time.monotonic()
        self._last_error = ""
        state = "\n".join(sorted(f"{key} {entry.sha256} {entry.yanked}" for key, entry in self._entries.items()))
        self._revision = hashlib.sha256(state.encode()).hexdigest()[:16]

    def _warn_once(self, message: str) -> None:
        """Log a message unless it equals the last one."""
        if message != self._last_warning:
            self._last_warning = message
            log.warning("%s", message)

    async def fetch(self, key: str) -> None:
        """Download a bundle into the store. Raises BundleNotFound, RegistryFailed and InsufficientStorage."""
        await asyncio.to_thread(self._fetch, key)

    def _fetch(self, key: str) -> None:
        entry = self._find_entry(key)
        try:
            fetch_into(self._store, entry, self._client.bundle_source(), durable=True)
        except BundleNotFound:
            raise _not_found(key) from None
        except InsufficientStorage:  # the disk of this machine is full
            raise
        except SvcError as error:  # an upstream error is never the client's fault
            self._warn_once(f"The bundle {key} of the upstream registry: {error.message}")
            damaged = isinstance(error, InvalidBundle)
            problem = "is damaged" if damaged else "could not be fetched, or does not match its index"
            message = f"The bundle {key} of the upstream registry {problem}."
            raise RegistryFailed(message, reason=error.message) from error

    def _find_entry(self, key: str) -> BundleEntry:
        """Return the upstream's entry of a bundle. Raises BundleNotFound and RegistryFailed."""
        entry = next((entry for entry in self.entries(key.partition("/")[0]) if entry.key == key), None)
        if entry is not None:
            return entry
        if self._last_error:
            message = f"There is no bundle {key} here, and the index of the upstream registry could not be read."
            raise RegistryFailed(message, reason=self._last_error)
        raise _not_found(key)


def _not_found(key: str) -> BundleNotFound:
    return BundleNotFound(f"There is no bundle {key} here, nor upstream.")
