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

from svc.bundles.download import HttpSource
from svc.bundles.remote import Remote
from svc.errors import BundleNotFound, InsufficientStorage, InvalidBundle, RegistryFailed, SvcError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.fetching import fetch_into
from svc.wire.bundle import Entry

log = logging.getLogger("svc.registry")

FRESH_SECONDS = 5.0


class PullThrough:
    """An upstream registry, and the store that keeps what came from it."""

    def __init__(self, remote: Remote, store: BundleStore) -> None:
        self._remote = remote
        self._store = store
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._asked = 0.0
        self._revision = ""
        self._failure = ""
        """Why the index could not be read when it was last asked for; empty if it could."""
        self._warned = ""

    def entries(self, model_id: str | None = None) -> Sequence[Entry]:
        """What the upstream has, as far as is known; blocks."""
        with self._lock:
            if time.monotonic() - self._asked > FRESH_SECONDS:
                self._ask()
            return [entry for entry in self._entries.values() if model_id in (None, entry.model_id)]

    def revision(self) -> str:
        """Changes when the upstream's entries do; blocks."""
        self.entries()
        return self._revision

    def _ask(self) -> None:
        try:
            self._entries = {entry.key: entry for entry in self._remote.index(warn=self._warn)}
        except SvcError as error:  # what is known goes on to be known
            self._asked = time.monotonic()
            self._failure = error.message
            self._warn(error.message)
            return
        self._asked = time.monotonic()
        self._failure = ""
        state = "\n".join(sorted(f"{key} {entry.sha256} {entry.yanked}" for key, entry in self._entries.items()))
        self._revision = hashlib.sha256(state.encode()).hexdigest()[:16]

    def _warn(self, message: str) -> None:
        """Once, not at every look."""
        if message != self._warned:
            self._warned = message
            log.warning("%s", message)

    async def fetch(self, key: str) -> None:
        """Brings a bundle here. Raises BundleNotFound, RegistryFailed, InsufficientStorage."""
        await asyncio.to_thread(self._fetch, key)

    def _fetch(self, key: str) -> None:
        entry = self._entry(key)
        try:
            fetch_into(self._store, entry, HttpSource(self._remote), durable=True)
        except BundleNotFound:
            raise _not_found(key) from None
        except InsufficientStorage:  # this machine's own
            raise
        except SvcError as error:  # whatever it is, the client's request is not at fault
            self._warn(f"The bundle {key} of the upstream registry: {error.message}")
            damaged = isinstance(error, InvalidBundle)
            what = "is damaged" if damaged else "could not be fetched, or is not what its index says"
            message = f"The bundle {key} of the upstream registry {what}."
            raise RegistryFailed(message, reason=error.message) from error

    def _entry(self, key: str) -> Entry:
        """What the upstream's index says of a bundle. Raises BundleNotFound, RegistryFailed."""
        entry = next((entry for entry in self.entries(key.partition("/")[0]) if entry.key == key), None)
        if entry is not None:
            return entry
        if self._failure:
            message = f"There is no bundle {key} here, and the index of the upstream registry could not be read."
            raise RegistryFailed(message, reason=self._failure)
        raise _not_found(key)


def _not_found(key: str) -> BundleNotFound:
    return BundleNotFound(f"There is no bundle {key} here, nor upstream.")
