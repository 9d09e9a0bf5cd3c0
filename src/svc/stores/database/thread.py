"""Runs the queries of an event loop in a database thread, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from svc.stores.database.base import Database

T = TypeVar("T")


class DatabaseThread:
    """Owns the database, and migrates it before the first query."""

    def __init__(self, database: Database, name: str = "database") -> None:
        self._database = database
        self._is_migrated = False
        self._executor = ThreadPoolExecutor(1, name)

    async def run_query(self, query: Callable[[Database], T]) -> T:
        """Run `query` in the thread and return its result. Raises the exceptions of `query`, and StoreUnavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run_in_thread, query)

    def _run_in_thread(self, query: Callable[[Database], T]) -> T:
        if not self._is_migrated:
            self._database.migrate()
            self._is_migrated = True
        return query(self._database)

    async def close(self) -> None:
        """Wait for running queries, then close the database."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._database.close)
        self._executor.shutdown(wait=True)
