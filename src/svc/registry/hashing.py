"""Compute missing hashes of entries that other tools wrote, in a thread, one file at a time, and each file once."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

from svc.errors import SvcError
from svc.stores.bundles.base import BundleStore
from svc.wire.bundle import BundleEntry

log = logging.getLogger("svc.registry")


class EntryHasher:
    """Computes the missing hashes of one store. It owns a task, so close it."""

    def __init__(self, store: BundleStore) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._hashed_revision = ""
        """The revision at which no hash was missing."""
        self._attempted: set[tuple[str, str, int]] = set()

    async def hash_pending(self, timeout_seconds: float) -> None:
        """Wait up to `timeout_seconds` for missing hashes. The work continues after the timeout."""
        if self._task is None or self._task.done():
            if await asyncio.to_thread(self._store.revision) == self._hashed_revision:
                return
            if self._task is None or self._task.done():  # another caller may have started it meanwhile
                self._task = asyncio.create_task(self._run(), name="hashing")
        await asyncio.wait([self._task], timeout=timeout_seconds)

    async def close(self) -> None:
        """Stop the task after the file that is being hashed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            revision = await asyncio.to_thread(self._store.revision)
            entries = [
                entry for entry in await asyncio.to_thread(self._store.list_unhashed) if self._mark_attempted(entry)
            ]
            if not entries:
                self._hashed_revision = revision
                return
            for entry in entries:
                try:
                    await asyncio.to_thread(self._store.ensure_hash, entry)
                except SvcError as error:
                    log.warning("%s", error.message)
                except (OSError, sqlite3.Error):
                    log.exception("%s could not be hashed", entry.key)

    def _mark_attempted(self, entry: BundleEntry) -> bool:
        """Return whether this is the first attempt: an unreadable file is not read for each request."""
        file = (entry.key, entry.path, entry.size_bytes)
        is_new = file not in self._attempted
        self._attempted.add(file)
        return is_new
