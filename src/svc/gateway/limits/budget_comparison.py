"""Compares budgets in Redis with the database after a connect. A new primary can lack money that was spent.

A comparison waits until the database has the entries of the last requests, and until other gateways have reported what
they spent while Redis was unavailable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from svc.gateway.accounting.cost import to_nano_usd
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.local import LocalCounters
from svc.stores.counters.redis import RedisCounters
from svc.stores.database.base import Database, StoreUnavailable
from svc.stores.database.thread import DatabaseThread

log = logging.getLogger("svc.limits")

COMPARISON_DELAY_SECONDS: Final = 2.0
"""The time from the first request of a key after a connect to its comparison."""
COMPARISON_BATCH_KEYS: Final = 100
COMPARISON_PAUSE_SECONDS: Final = 0.1
"""Keys of a query, and the pause between two queries."""
COMPARISON_TIMEOUT_SECONDS: Final = 10.0
"""The timeout of a query. Its keys are compared later."""
MAX_PENDING_COMPARISONS: Final = 50_000
ROUNDING_NANO_USD: Final = 10_000
"""By how much the sum in the database may exceed the exact one."""


class BudgetComparison:
    """The budgets that are about to be compared. Belongs to one event loop."""

    def __init__(self, counters: RedisCounters, local_counters: LocalCounters, database: DatabaseThread) -> None:
        self._counters = counters
        self._local_counters = local_counters
        self._database = database
        self._pending: dict[str, KeyLimits] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, limits: KeyLimits) -> None:
        """Compare a budget soon."""
        if len(self._pending) < MAX_PENDING_COMPARISONS:
            self._pending[limits.key_id] = limits
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._compare_pending(), name="budget-comparison")

    async def close(self) -> None:
        """Stop comparing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _compare_pending(self) -> None:
        await asyncio.sleep(COMPARISON_DELAY_SECONDS)
        while self._pending:
            batch = [self._pending.pop(key_id) for key_id in list(self._pending)[:COMPARISON_BATCH_KEYS]]
            try:
                await self._compare(batch)
            except (StoreUnavailable, TimeoutError):
                self._pending.update({limits.key_id: limits for limits in batch})
                await asyncio.sleep(COMPARISON_DELAY_SECONDS)
            except Exception:  # boundary: one failed query must not end the comparisons
                log.exception("budgets could not be compared with the database")
            await asyncio.sleep(COMPARISON_PAUSE_SECONDS)

    async def _compare(self, batch: list[KeyLimits]) -> None:
        def query_spent(database: Database) -> dict[str, float]:
            spent = database.get_spent_usd(
                {limits.key_id: float(limits.period_start) for limits in batch if not limits.parent_id}
            )
            for limits in batch:
                if limits.parent_id:
                    since = float(limits.period_start)
                    spent[limits.key_id] = database.get_ephemeral_spent_usd(limits.parent_id, limits.key_id, since)
            return spent

        spent_usd = await asyncio.wait_for(self._database.run_query(query_spent), COMPARISON_TIMEOUT_SECONDS)
        if not self._counters.is_responding:
            raise StoreUnavailable("Redis does not reply in time.")  # it could execute this after later reports
        for limits in batch:
            stored = to_nano_usd(spent_usd[limits.key_id]) - ROUNDING_NANO_USD
            # The database lacks the last entries, but this machine has its own.
            self._counters.raise_spent(limits, max(stored, self._local_counters.get_spent_nano_usd(limits)))
