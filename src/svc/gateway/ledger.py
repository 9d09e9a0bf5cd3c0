"""The ledger of a gateway: journal, intake and prices together, as the plane uses them.

An answer's entry is in the journal before its last byte leaves; two seconds later, at most, it is in the database.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from svc.errors import InsufficientStorage, ShuttingDown
from svc.gateway import pricelist
from svc.gateway.intake import Intake
from svc.gateway.journal import Journal
from svc.gateway.offers import Offer
from svc.gateway.pricing import Prices, cost_of
from svc.settings import LedgerSettings
from svc.stores.base import Database, Entry
from svc.wire.usage import Usage

MIB: Final = 1024 * 1024
RECOVER_SECONDS: Final = 1.0
_MILLIS: Final = tuple(f"{number:03d}Z" for number in range(1000))
"""How an entry's time ends: made once, since each request needs one."""
_clock: Final = time.time  # looked up once: on the hot path
LIST_SECONDS: Final = 60.0
"""So long after the start the price list is asked, if all prices are known as shipped."""


class Ledger:
    """Belongs to one event loop, from `start` to `close`."""

    def __init__(self, home: Path, settings: LedgerSettings, database: Database, offers: list[Offer]) -> None:
        self.prices = Prices(offers)
        self.journal = Journal(home / "journal", limit=int(settings.journal_max * MIB))
        self.intake = Intake(
            home / "journal",
            database,
            journal=self.journal,
            retain_days=settings.retain_days,
            mend=self._priced,
            ready=lambda: self.prices.complete,
        )
        self._home = home
        self._refuses = settings.when_full == "refuse"
        self._stopping = False
        self._unasked = False
        """The price list is still to be asked."""
        self._second = 0
        self._stamped = ""
        """The second as it is written."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Raises OSError when no journal can be written here."""
        self.journal.open()
        self.intake.start()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger")

    async def close(self) -> None:
        """Takes what is left into the database."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.refuse()
        self.journal.close()
        await asyncio.to_thread(self.intake.close)
        self.journal.write_kept()

    def configure(self, settings: LedgerSettings, offers: list[Offer]) -> None:
        """Other settings, and other offers, whose prices are asked for if they are not known."""
        self._refuses = settings.when_full == "refuse"
        self.journal.limit = int(settings.journal_max * MIB)
        self.intake.retain(settings.retain_days)
        self.prices.replace(offers)
        self._unasked = not self.prices.complete

    def refuse(self) -> None:
        """From now on no request is let in: its entry could come after the journal's end."""
        self._stopping = True

    def check(self) -> None:
        """Before a request reaches for a provider.

        Raises InsufficientStorage when nothing can be noted and the configuration says to refuse then, and
        ShuttingDown after `refuse`.
        """
        if self._stopping:
            raise ShuttingDown("The gateway is shutting down. Nothing was sent.")
        if self._refuses and self.journal.full:
            raise InsufficientStorage(f"The gateway cannot keep its ledger: {self.journal.reason}. Nothing was sent.")

    def stamp(self) -> str:
        """Now, as entries have it."""
        now = _clock()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamped = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return self._stamped + _MILLIS[int((now - second) * 1000)]

    def cost(self, offer: Offer, usage: Usage) -> float | None:
        """USD; None when the price is not known."""
        price = self.prices.of_offer(offer)
        return None if price is None else cost_of(price, usage)

    async def _run(self) -> None:
        self._unasked = bool(self.prices.wanted)
        due = time.monotonic() + (LIST_SECONDS if self.prices.complete else 0.0)
        while True:
            if self._unasked and time.monotonic() >= due:
                self._unasked = False
                await pricelist.fetch(self.prices.wanted, self._home / "cache", self.prices.learn)
            await asyncio.sleep(RECOVER_SECONDS)
            if self.journal.full:
                self.journal.recover()

    def _priced(self, entry: Entry) -> Entry:
        """An entry from before the price list was there (or of a process that never got it)."""
        if entry.cost_usd is not None or entry.prompt_tokens is None:
            return entry
        price = self.prices.of(entry.provider, entry.model)
        if price is None:
            return entry
        usage = Usage(
            prompt_tokens=entry.prompt_tokens,
            completion_tokens=entry.completion_tokens or 0,
            cached_tokens=entry.cached_tokens or 0,
            cache_write_tokens=entry.cache_write_tokens or 0,
        )
        return msgspec.structs.replace(entry, cost_usd=cost_of(price, usage))
