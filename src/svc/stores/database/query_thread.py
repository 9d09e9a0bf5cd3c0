"""Runs long queries of an event loop in a thread of their own. A query is cancelled when nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from svc.stores.database.base import Database, StoreUnavailable
from svc.stores.database.thread import DatabaseThread

T = TypeVar("T")
IsCancelled = Callable[[], bool]
INTERRUPT_REPEAT_SECONDS: Final = 0.1


class QueryThread(DatabaseThread):
    """A DatabaseThread whose queries end early if their awaiting task is cancelled."""

    def __init__(self, database: Database, name: str = "queries") -> None:
        super().__init__(database, name)
        self._interrupts = ThreadPoolExecutor(1, f"{name}-interrupts")
        self._lock = threading.Lock()
        self._running: threading.Event | None = None
        """The cancellation flag of the query that runs now."""
        self._is_closed = False

    async def run_cancellable(self, query: Callable[[Database, IsCancelled], T]) -> T:
        """Run `query` as `run_query` does. Its second argument tells a query of several statements to stop.

        If the awaiting task is cancelled, a waiting query does not start, and a running one is interrupted.
        Raises StoreUnavailable if `close` came before the query or interrupted it.
        """
        cancelled = threading.Event()

        def run(database: Database) -> T:
            with self._lock:
                if self._is_closed:
                    raise StoreUnavailable("The gateway shuts down.")
                self._running = cancelled
            try:
                result = query(database, cancelled.is_set)
            finally:
                with self._lock:
                    self._running = None
            if cancelled.is_set():  # the query can have stopped early
                raise StoreUnavailable("The query was cancelled.")
            return result

        try:
            return await self.run_query(run)
        except asyncio.CancelledError:
            cancelled.set()
            if not self._is_closed:  # `close` interrupts it
                self._interrupts.submit(self._interrupt, cancelled)
            raise

    def _interrupt(self, query: threading.Event | None) -> None:
        """Interrupt `query` until it ends, or for None the query that runs.

        An interrupt between two statements has no effect, so it is repeated.
        """
        while True:
            with self._lock:  # the next query must not start before the interrupt is over
                if self._running is None or query not in (None, self._running):
                    return
                self._running.set()
                self._database.interrupt()
            time.sleep(INTERRUPT_REPEAT_SECONDS)

    async def close(self) -> None:
        """Interrupt the running query of `run_cancellable`, do not start those that wait, then close the database.

        Queries of `run_query` end first, as in DatabaseThread. Further calls have no effect.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._interrupts.submit(self._interrupt, None)  # in a thread: PostgreSQL needs a connection for it
        self._interrupts.shutdown(wait=False)
        await super().close()
