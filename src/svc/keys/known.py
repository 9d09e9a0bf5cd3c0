"""Issued keys in memory: the few that are in use. Making and changing them is in `issuing`.

    look-up of a secret:   in memory ── unknown ──> the database, in one question for all that wait
    a change elsewhere:    every POLL seconds one cheap question: what has changed since?

Memory holds the keys that were asked for, at most MAX_KEYS, so a million issued keys cost no more than those in use.
When the database does not answer, what is in memory stays valid.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import msgspec

from svc.stores.base import Database, StoredKey, StoreDown
from svc.wire.key import Key

log = logging.getLogger("svc.keys")

P = ParamSpec("P")
T = TypeVar("T")

POLL = 0.3
"""Seconds between two looks for changes; a change holds everywhere within 1 s."""
MAX_KEYS = 50_000
"""Keys in memory; with 1.2 kB each these are 60 MB at most."""
MAX_UNKNOWN = 50_000
"""Refused secrets that are remembered, so that a flood of them does not reach the database."""
MAX_WAITING = 10_000
"""Secrets that may wait for one answer of the database."""
PRELOADED = 10_000
"""Keys that are read at the start, in the background."""
BATCH = 500
ANSWER_SECONDS = 5.0
"""A question that the database does not answer within so long is given up; all of these are short."""
SILENT_SECONDS = 2.0
"""After so long without an answer to a question, the keys are said to be served from memory alone."""


def opened(key: StoredKey) -> Key:
    """A stored key as requests are checked against it."""
    return Key(
        id=key.id,
        name=key.name,
        scopes=frozenset(key.scopes),
        models=None if key.models is None else frozenset(key.models),
        rpm=key.rpm or 0,
        tpm=key.tpm or 0,
        concurrency=key.concurrency or 0,
        budget_usd=key.budget_usd,
        budget_period=key.budget_period or "total",
        tags=key.tags,
        expires=math.inf if key.expires is None else key.expires,
    )


class IssuedKeys:
    """`security.Issued` over a database, which this owns and asks in a thread of its own. Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[bytes, Key] = {}
        self._unknown: dict[bytes, None] = {}
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}
        self._revision = 0
        self._thread = ThreadPoolExecutor(1, "keys")
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = False
        self._migrated = False
        self._failing = False
        """The database did not answer the last question."""
        self._asked_at = math.inf
        """When the question began that the thread waits for: monotonic time."""

    async def start(self) -> None:
        """Notes where changes are counted from, and begins to look for them."""
        await self._poll_once()
        self._spawn(self._poll())
        self._spawn(self._preload())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.submit(self._database.close)
        self._thread.shutdown(wait=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _preload(self) -> None:
        """The first keys, so that they are known when the database is not there."""
        after = ""
        while len(self._keys) < PRELOADED:
            try:
                rows, found = await self._question(self._page, after)
            except StoreDown as error:
                self._failed(error)
                return
            self._keep(list(found), found)
            if len(rows) < BATCH:
                return
            after = rows[-1].id

    def _page(self, after: str) -> tuple[list[StoredKey], dict[bytes, Key]]:
        rows = self._database.list_keys(after=after, limit=BATCH)
        return rows, self._open(rows)

    # security.Issued

    def get(self, digest: bytes) -> Key | bool:
        found = self._keys.get(digest)
        return found if found is not None else digest not in self._unknown

    def load(self, digest: bytes, then: Callable[[], None]) -> None:
        waiting = self._waiting.get(digest)
        if waiting is not None:
            waiting.append(then)
        elif len(self._waiting) >= MAX_WAITING:
            self._loop.call_soon(then)
        else:
            self._waiting[digest] = [then]
            if not self._asking:
                self._asking = True
                self._spawn(self._ask())

    # asking

    async def _question(self, ask: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """What `ask` returns, which runs in the thread. Raises StoreDown."""
        return await self._loop.run_in_executor(self._thread, functools.partial(self._timed, ask, *args, **more))

    def _timed(self, ask: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """In the thread."""
        self._asked_at = time.monotonic()
        try:
            return ask(*args, **more)
        finally:
            self._asked_at = math.inf

    async def _ask(self) -> None:
        try:
            while self._waiting:
                digests = list(self._waiting)[:BATCH]
                try:
                    found = await self._question(self._read, digests)
                    self._answered()
                    self._keep(digests, found)
                except StoreDown as error:
                    self._failed(error)
                except Exception:  # the edge: those who wait are told in any case
                    log.exception("keys could not be looked up")
                self._tell(digests)
        finally:
            self._asking = False

    def _tell(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            for then in self._waiting.pop(digest):
                try:
                    then()
                except Exception:  # the edge: the others are told in any case
                    log.exception("fault after a key was looked up")

    def _read(self, digests: list[bytes]) -> dict[bytes, Key]:
        """In the thread."""
        self._migrate()
        rows = self._database.keys_of([digest.hex() for digest in digests])
        return self._open(rows)

    def _migrate(self) -> None:
        if not self._migrated:
            self._database.migrate()
            self._migrated = True

    def _open(self, rows: Iterable[StoredKey]) -> dict[bytes, Key]:
        now = time.time()
        usable = [row for row in rows if row.revoked is None]
        found = {}
        for row in usable:
            key = opened(row)
            found[bytes.fromhex(row.digest)] = key
            if row.old_digest and (row.old_until or 0.0) > now:
                until = min(key.expires, row.old_until or 0.0)
                found[bytes.fromhex(row.old_digest)] = opened(msgspec.structs.replace(row, expires=until))
        return found

    def _keep(self, digests: Iterable[bytes], found: dict[bytes, Key]) -> None:
        for digest in digests:
            key = found.get(digest)
            if key is not None:
                self._keys[digest] = key
            else:
                self._unknown[digest] = None
        for table, most in ((self._keys, MAX_KEYS), (self._unknown, MAX_UNKNOWN)):
            while len(table) > most:
                del table[next(iter(table))]

    # changes

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            try:
                await self._poll_once()
            except Exception:
                log.exception("looking for changed keys failed")

    async def _poll_once(self) -> None:
        try:
            changed, revision = await self._question(self._changes)
        except StoreDown as error:
            self._failed(error)
            return
        self._answered()
        self._revision = revision
        if changed is None:  # too many to look at one by one
            self._keys.clear()
            self._unknown.clear()
        elif changed:
            self._take(changed)

    def _changes(self) -> tuple[list[StoredKey] | None, int]:
        """In the thread."""
        self._migrate()
        newest = self._database.revision()
        if newest == self._revision:
            return [], newest
        changed = self._database.keys_since(self._revision, limit=BATCH)
        return (None, newest) if len(changed) == BATCH else (changed, changed[-1].revision if changed else newest)

    def _take(self, changed: list[StoredKey]) -> None:
        """Forgets what is known of changed keys: the next request reads them anew."""
        ids = {row.id for row in changed}
        for digest in [digest for digest, key in self._keys.items() if key.id in ids]:
            del self._keys[digest]
        self._unknown.clear()

    @property
    def down(self) -> bool:
        """The database did not answer the last question, or does not answer the one that it was asked."""
        return self._failing or time.monotonic() - self._asked_at > SILENT_SECONDS

    def _failed(self, error: StoreDown) -> None:
        if not self._failing:
            log.error("keys are served from memory alone: %s", error.message)
        self._failing = True

    def _answered(self) -> None:
        if self._failing:
            log.error("the database of keys answers again")
        self._failing = False
