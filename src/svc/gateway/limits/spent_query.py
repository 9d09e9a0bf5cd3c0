"""Reads what a key has spent from the database, when its budget is counted for the first time."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from svc.gateway.accounting.cost import to_nano_usd
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import SPENT_UNAVAILABLE
from svc.stores.database.base import Database, StoreUnavailable
from svc.stores.database.thread import DatabaseThread

log = logging.getLogger("svc.limits")

SPENT_QUERY_TIMEOUT_SECONDS: Final = 2.0
"""The timeout of the database query for a key's spending, in seconds."""
DATABASE_RETRY_SECONDS: Final = 1.0
"""Seconds without queries after the database did not respond."""
FRESH_KEY_SECONDS: Final = 2.0
"""Seconds in which the database has no entries of a new ephemeral key, so that it is not queried."""


class SpentQuery:
    """Queries that pause while the database does not respond. Belongs to one event loop."""

    def __init__(self, database: DatabaseThread) -> None:
        self._database = database
        self._retry_at = 0.0
        """The time of the next query after a failure (`time.monotonic`)."""

    async def run(self, limits: KeyLimits) -> int:
        """Return the spending in nano-USD by the database, or SPENT_UNAVAILABLE."""
        if limits.parent_id and time.time() - limits.period_start < FRESH_KEY_SECONDS:
            return 0
        try:
            query = partial(self._read_spent, limits)
            spent_usd = await asyncio.wait_for(self._database.run_query(query), SPENT_QUERY_TIMEOUT_SECONDS)
            return SPENT_UNAVAILABLE if spent_usd is None else to_nano_usd(spent_usd)
        except (StoreUnavailable, TimeoutError) as error:
            if time.monotonic() >= self._retry_at:
                log.warning("the budget of key %s is counted from 0: %s", limits.key_id, error or "no response in time")
            self._retry_at = time.monotonic() + DATABASE_RETRY_SECONDS
            return SPENT_UNAVAILABLE

    def _read_spent(self, limits: KeyLimits, database: Database) -> float | None:
        """Return the sum in USD, or None if the database did not respond to the previous query. Runs in its thread."""
        if time.monotonic() < self._retry_at:
            return None
        if limits.parent_id:
            return database.get_ephemeral_spent_usd(limits.parent_id, limits.key_id, float(limits.period_start))
        return database.get_spent_usd({limits.key_id: float(limits.period_start)})[limits.key_id]
