"""A database beside an event loop: asked in a thread of its own, one question after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from svc.stores.database.base import Database

T = TypeVar("T")


class DatabaseThread:
    """Owns the database. It is migrated before the first question."""

    def __init__(self, database: Database, name: str = "database") -> None:
        self._database = database
        self._is_migrated = False
        self._executor = ThreadPoolExecutor(1, name)

    async def run_query(self, query: Callable[[Database], T]) -> T:
        """What `question` returns, which runs in the thread. Raises what it raises, and StoreDown."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run_in_thread, query)

    def _run_in_thread(self, query: Callable[[Database], T]) -> T:
        if not self._is_migrated:
            self._database.migrate()
            self._is_migrated = True
        return query(self._database)

    async def close(self) -> None:
        """Waits for the question that is being answered."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._database.close)
        self._executor.shutdown(wait=True)
