"""Who hashes what came without a hash."""

from __future__ import annotations

import asyncio
from pathlib import Path

from svc.registry.hashing import EntryHasher
from svc.stores.bundles.folder import FolderStore


async def test_hashing_two_callers_at_once_begin_one_task(tmp_path: Path) -> None:
    with FolderStore(tmp_path) as store:
        hashing = EntryHasher(store)
        await asyncio.gather(hashing.hash_pending(0), hashing.hash_pending(0))
        try:
            assert [task.get_name() for task in asyncio.all_tasks()].count("hashing") == 1
        finally:
            await hashing.close()
