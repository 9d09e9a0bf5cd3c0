"""The registry's hasher: one task at a time computes missing hashes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from svc.registry.hashing import EntryHasher
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import BundleEntry


class SlowStore(FolderStore):
    """A store that lists its entries only after `released` is set."""

    def __init__(self, folder: Path, released: threading.Event) -> None:
        super().__init__(folder)
        self.released = released

    def list_unhashed(self) -> list[BundleEntry]:
        self.released.wait(30)
        return super().list_unhashed()


async def test_hash_pending_concurrent_callers_start_one_task(tmp_path: Path) -> None:
    released = threading.Event()
    with SlowStore(tmp_path, released) as store:
        hashing = EntryHasher(store)
        try:
            await asyncio.gather(hashing.hash_pending(0), hashing.hash_pending(0))
            assert [task.get_name() for task in asyncio.all_tasks()].count("hashing") == 1
        finally:
            released.set()
            await hashing.close()
