"""Pull-through: what another registry has is served as if it were here, and kept once it was asked for.

When the upstream does not answer, what it had is still listed, and what was kept is still served.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Sequence

from svc.bundles.download import HttpBundleSource
from svc.bundles.registry_client import RegistryClient
from svc.errors import BundleNotFound, InsufficientStorage, InvalidBundle, RegistryFailed, SvcError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.fetch import fetch_into
from svc.wire.bundle import BundleEntry

log = logging.getLogger("svc.registry")

UPSTREAM_INDEX_TTL_SECONDS = 5.0


class PullThroughCache:
    """An upstream registry, and the store that keeps what came from it."""

    def __init__(self, client: RegistryClient, store: BundleStore) -> None:
        self._client = client
        self._store = store
        self._lock = threading.Lock()
        self._entries: dict[str, BundleEntry] = {}
        self._refreshed_at = 0.0
        self._revision = ""
        self._last_error = ""
        """Why the index could not be read when it was last asked for; empty if it could."""
        self._last_warning = ""

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]:
        """What the upstream has, as far as is known; blocks."""
        with self._lock:
            if time.monotonic() - self._refreshed_at > UPSTREAM_INDEX_TTL_SECONDS:
                self._refresh()
            return [entry for entry in self._entries.values() if model_id in (None, entry.model_id)]

    def revision(self) -> str:
        """Changes when the upstream's entries do; blocks."""
        self.entries()
        return self._revision

    def _refresh(self) -> None:
        try:
            self._entries = {entry.key: entry for entry in self._client.fetch_index(warn=self._warn_once)}
        except SvcError as error:  # what is known goes on to be known
            self._refreshed_at = time.monotonic()
            self._last_error = error.message
            self._warn_once(error.message)
            return
        self._refreshed_at = time.monotonic()
        self._last_error = ""
        state = "\n".join(sorted(f"{key} {entry.sha256} {entry.yanked}" for key, entry in self._entries.items()))
        self._revision = hashlib.sha256(state.encode()).hexdigest()[:16]

    def _warn_once(self, message: str) -> None:
        """Once, not at every look."""
        if message != self._last_warning:
            self._last_warning = message
            log.warning("%s", message)

    async def fetch(self, key: str) -> None:
        """Brings a bundle here. Raises BundleNotFound, RegistryFailed, InsufficientStorage."""
        await asyncio.to_thread(self._fetch, key)

    def _fetch(self, key: str) -> None:
        entry = self._find_entry(key)
        try:
            fetch_into(self._store, entry, HttpBundleSource(self._client), durable=True)
        except BundleNotFound:
            raise _not_found(key) from None
        except InsufficientStorage:  # this machine's own
            raise
        except SvcError as error:  # whatever it is, the client's request is not at fault
            self._warn_once(f"The bundle {key} of the upstream registry: {error.message}")
            damaged = isinstance(error, InvalidBundle)
            what = "is damaged" if damaged else "could not be fetched, or is not what its index says"
            message = f"The bundle {key} of the upstream registry {what}."
            raise RegistryFailed(message, reason=error.message) from error

    def _find_entry(self, key: str) -> BundleEntry:
        """What the upstream's index says of a bundle. Raises BundleNotFound, RegistryFailed."""
        entry = next((entry for entry in self.entries(key.partition("/")[0]) if entry.key == key), None)
        if entry is not None:
            return entry
        if self._last_error:
            message = f"There is no bundle {key} here, and the index of the upstream registry could not be read."
            raise RegistryFailed(message, reason=self._last_error)
        raise _not_found(key)


def _not_found(key: str) -> BundleNotFound:
    return BundleNotFound(f"There is no bundle {key} here, nor upstream.")
