"""The ledger of a gateway: combines the journal, its ingestion into the database, and prices.

Each entry is in the journal before the last byte of the response is sent. It is in the database at most 2 s later,
or 7 s while the price of a model is looked up.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from svc.errors import InsufficientStorage, ShuttingDown
from svc.gateway.accounting import price_list
from svc.gateway.accounting.cost import PriceTable, compute_token_cost
from svc.gateway.accounting.cost_formula import entry_usage
from svc.gateway.accounting.ingest import JournalIngester
from svc.gateway.accounting.journal import Journal
from svc.gateway.accounting.record import RequestRecord, encode_record
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.routing.backends import Backend
from svc.settings import LedgerSettings
from svc.stores.database.base import Database, LedgerEntry
from svc.wire.usage import TokenUsage

BYTES_PER_MIB: Final = 1024 * 1024
JOURNAL_RECOVERY_SECONDS: Final = 1.0
_MILLISECOND_SUFFIXES: Final = tuple(f"{number:03d}Z" for number in range(1000))
"""The suffixes of timestamps. Precomputed, because each request needs one."""
_wall_clock: Final = time.time  # a global, because the hot path saves the attribute lookup
PRICE_FETCH_DELAY_SECONDS: Final = 60.0
"""Seconds from the start to the price lookup, if the built-in prices cover all models."""


class Ledger(RequestObserver):
    """Records requests and computes their cost. Belongs to one event loop, from `start` to `close`."""

    def __init__(
        self,
        home: Path,
        settings: LedgerSettings,
        database: Database,
        backends: list[Backend],
        *,
        fast_paths: bool = True,
    ) -> None:
        self.prices = PriceTable(backends)
        self.journal = Journal(
            home / "journal", max_waiting_bytes=int(settings.journal_max * BYTES_PER_MIB), summarizes=fast_paths
        )
        self.ingester = JournalIngester(
            home / "journal",
            database,
            journal=self.journal,
            retain_days=settings.retain_days,
            fill_missing_cost=self._fill_missing_cost,
            prices_ready=lambda: self.prices.is_complete,
        )
        self._home = home
        self._rejects_when_full = settings.when_full == "refuse"
        self._is_stopping = False
        self._waiting_records: list[RequestRecord] = []
        """The encoded records since the last `on_batch_end`."""
        self._price_fetch_at = math.inf
        """When a price lookup is due (`time.monotonic`)."""
        self._timestamp_second = 0
        self._timestamp_prefix = ""
        """The formatted `_timestamp_second`."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open a journal file, and start the ingestion. Raises OSError if no journal can be written."""
        self.journal.start_new_file()
        self.ingester.start()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger")

    async def close(self) -> None:
        """Write the remaining entries to the database."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.stop_accepting()
        self.journal.close()
        await asyncio.to_thread(self.ingester.close)
        self.journal.write_buffered_lines()

    def configure(self, settings: LedgerSettings, backends: list[Backend]) -> None:
        """Apply changed settings and backends. Fetch prices that are not known."""
        self._rejects_when_full = settings.when_full == "refuse"
        self.journal.max_waiting_bytes = int(settings.journal_max * BYTES_PER_MIB)
        self.ingester.set_retention_days(settings.retain_days)
        self.prices.replace_backends(backends)
        self._price_fetch_at = math.inf if self.prices.is_complete else time.monotonic()

    def stop_accepting(self) -> None:
        """Reject requests from now on: their entries could come after the end of the journal."""
        self._is_stopping = True

    def ensure_accepting(self) -> None:
        """Check that the ledger can record a request. Call this before a request is sent to a provider.

        Raises InsufficientStorage if the journal is full and `when_full` is "refuse", and ShuttingDown after
        `stop_accepting`.
        """
        if self._is_stopping:
            raise ShuttingDown("The gateway is shutting down. Nothing was sent.")
        if self._rejects_when_full and self.journal.is_full:
            raise InsufficientStorage(
                f"The gateway cannot write its ledger: {self.journal.full_reason}. Nothing was sent."
            )

    def on_end(self, record: RequestRecord) -> None:
        """Encode the record. Rejected requests that reached no provider have no entry."""
        is_local = record.status == "ok" and record.model is not None
        if record.attempt_count > 0 or record.from_cache or is_local:
            if not record.line:
                record.line = encode_record(record)
            self._waiting_records.append(record)

    def on_batch_end(self) -> None:
        """Append the records to the journal."""
        if self._waiting_records:
            records, self._waiting_records = self._waiting_records, []
            self.journal.append_records(records)

    def timestamp(self) -> str:
        """Return the current UTC time in the format of ledger entries."""
        now = _wall_clock()
        second = int(now)
        if second != self._timestamp_second:
            self._timestamp_second = second
            self._timestamp_prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return self._timestamp_prefix + _MILLISECOND_SUFFIXES[int((now - second) * 1000)]

    def compute_cost(self, backend: Backend, usage: TokenUsage) -> float | None:
        """Return the cost in USD, or None if the price is unknown."""
        price = self.prices.get_for_backend(backend)
        return None if price is None else compute_token_cost(price, usage)

    async def _run(self) -> None:
        if self.prices.price_lookups:
            delay = PRICE_FETCH_DELAY_SECONDS if self.prices.is_complete else 0.0
            self._price_fetch_at = time.monotonic() + delay
        while True:
            if time.monotonic() >= self._price_fetch_at:
                self._price_fetch_at = math.inf
                lookups = self.prices.price_lookups
                await price_list.fetch_prices(
                    lookups, self._home / "cache", functools.partial(self.prices.add_fetched_prices, lookups)
                )
            await asyncio.sleep(JOURNAL_RECOVERY_SECONDS)
            if self.journal.is_full:
                self.journal.recover()

    def _fill_missing_cost(self, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry with its cost, if the price became known after the request."""
        if entry.cost_usd is not None or entry.prompt_tokens is None:
            return entry
        price = self.prices.get(entry.provider, entry.model)
        if price is None:
            return entry
        return msgspec.structs.replace(entry, cost_usd=compute_token_cost(price, entry_usage(entry)))
