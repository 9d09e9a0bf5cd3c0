"""A database beside an event loop: asked in a thread of its own, one question after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from svc.stores.base import Database

T = TypeVar("T")


class Aside:
    """Owns the database. It is migrated before the first question."""

    def __init__(self, database: Database, name: str = "database") -> None:
        self._database = database
        self._migrated = False
        self._thread = ThreadPoolExecutor(1, name)

    async def ask(self, question: Callable[[Database], T]) -> T:
        """What `question` returns, which runs in the thread. Raises what it raises, and StoreDown."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, question)

    def _run(self, question: Callable[[Database], T]) -> T:
        if not self._migrated:
            self._database.migrate()
            self._migrated = True
        return question(self._database)

    async def close(self) -> None:
        """Waits for the question that is being answered."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown(wait=True)
