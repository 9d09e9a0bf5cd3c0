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

from svc.stores.database.base import Database, StoredKey, StoreUnavailable
from svc.wire.key import ApiKey

log = logging.getLogger("svc.keys")

P = ParamSpec("P")
T = TypeVar("T")

POLL_INTERVAL_SECONDS = 0.3
"""Seconds between two looks for changes; a change holds everywhere within 1 s."""
MAX_CACHED_KEYS = 50_000
"""Keys in memory; with 1.2 kB each these are 60 MB at most."""
MAX_UNKNOWN_DIGESTS = 50_000
"""Refused secrets that are remembered, so that a flood of them does not reach the database."""
MAX_PENDING_LOOKUPS = 10_000
"""Secrets that may wait for one answer of the database."""
MAX_PRELOADED_KEYS = 10_000
"""Keys that are read at the start, in the background."""
KEYS_PER_QUERY = 500
KEY_QUERY_TIMEOUT_SECONDS = 5.0
"""A question that the database does not answer within so long is given up; all of these are short."""
MAX_QUERY_SILENCE_SECONDS = 2.0
"""After so long without an answer to a question, the keys are said to be served from memory alone."""


def to_api_key(stored_key: StoredKey) -> ApiKey:
    """A stored key as requests are checked against it."""
    return ApiKey(
        id=stored_key.id,
        name=stored_key.name,
        scopes=frozenset(stored_key.scopes),
        models=None if stored_key.models is None else frozenset(stored_key.models),
        rpm=stored_key.rpm or 0,
        tpm=stored_key.tpm or 0,
        concurrency=stored_key.concurrency or 0,
        budget_usd=stored_key.budget_usd,
        budget_period=stored_key.budget_period or "total",
        tags=stored_key.tags,
        expires=math.inf if stored_key.expires is None else stored_key.expires,
    )


class IssuedKeyCache:
    """`security.Issued` over a database, which this owns and asks in a thread of its own. Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[bytes, ApiKey] = {}
        self._unknown_digests: dict[bytes, None] = {}
        self._pending_lookups: dict[bytes, list[Callable[[], None]]] = {}
        self._revision = 0
        self._thread = ThreadPoolExecutor(1, "keys")
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_looking_up = False
        self._is_migrated = False
        self._is_failing = False
        """The database did not answer the last question."""
        self._query_started_at = math.inf
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
        while len(self._keys) < MAX_PRELOADED_KEYS:
            try:
                rows, found = await self._run_query(self._read_page, after)
            except StoreUnavailable as error:
                self._record_failure(error)
                return
            self._cache_keys(list(found), found)
            if len(rows) < KEYS_PER_QUERY:
                return
            after = rows[-1].id

    def _read_page(self, after: str) -> tuple[list[StoredKey], dict[bytes, ApiKey]]:
        rows = self._database.list_keys(after=after, limit=KEYS_PER_QUERY)
        return rows, self._to_api_keys(rows)

    # security.Issued

    def get(self, digest: bytes) -> ApiKey | bool:
        found = self._keys.get(digest)
        return found if found is not None else digest not in self._unknown_digests

    def load(self, digest: bytes, on_loaded: Callable[[], None]) -> None:
        callbacks = self._pending_lookups.get(digest)
        if callbacks is not None:
            callbacks.append(on_loaded)
        elif len(self._pending_lookups) >= MAX_PENDING_LOOKUPS:
            self._loop.call_soon(on_loaded)
        else:
            self._pending_lookups[digest] = [on_loaded]
            if not self._is_looking_up:
                self._is_looking_up = True
                self._spawn(self._process_lookups())

    # asking

    async def _run_query(self, query: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """What `ask` returns, which runs in the thread. Raises StoreDown."""
        return await self._loop.run_in_executor(self._thread, functools.partial(self._run_timed, query, *args, **more))

    def _run_timed(self, query: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """In the thread."""
        self._query_started_at = time.monotonic()
        try:
            return query(*args, **more)
        finally:
            self._query_started_at = math.inf

    async def _process_lookups(self) -> None:
        try:
            while self._pending_lookups:
                digests = list(self._pending_lookups)[:KEYS_PER_QUERY]
                try:
                    found = await self._run_query(self._read_keys, digests)
                    self._record_success()
                    self._cache_keys(digests, found)
                except StoreUnavailable as error:
                    self._record_failure(error)
                except Exception:  # the edge: those who wait are told in any case
                    log.exception("keys could not be looked up")
                self._notify_waiters(digests)
        finally:
            self._is_looking_up = False

    def _notify_waiters(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            for then in self._pending_lookups.pop(digest):
                try:
                    then()
                except Exception:  # the edge: the others are told in any case
                    log.exception("fault after a key was looked up")

    def _read_keys(self, digests: list[bytes]) -> dict[bytes, ApiKey]:
        """In the thread."""
        self._ensure_migrated()
        rows = self._database.find_keys_by_digest([digest.hex() for digest in digests])
        return self._to_api_keys(rows)

    def _ensure_migrated(self) -> None:
        if not self._is_migrated:
            self._database.migrate()
            self._is_migrated = True

    def _to_api_keys(self, rows: Iterable[StoredKey]) -> dict[bytes, ApiKey]:
        now = time.time()
        usable = [row for row in rows if row.revoked is None]
        found = {}
        for row in usable:
            key = to_api_key(row)
            found[bytes.fromhex(row.digest)] = key
            if row.old_digest and (row.old_until or 0.0) > now:
                until = min(key.expires, row.old_until or 0.0)
                found[bytes.fromhex(row.old_digest)] = to_api_key(msgspec.structs.replace(row, expires=until))
        return found

    def _cache_keys(self, digests: Iterable[bytes], found: dict[bytes, ApiKey]) -> None:
        for digest in digests:
            key = found.get(digest)
            if key is not None:
                self._keys[digest] = key
            else:
                self._unknown_digests[digest] = None
        for table, max_entries in ((self._keys, MAX_CACHED_KEYS), (self._unknown_digests, MAX_UNKNOWN_DIGESTS)):
            while len(table) > max_entries:
                del table[next(iter(table))]

    # changes

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            try:
                await self._poll_once()
            except Exception:
                log.exception("looking for changed keys failed")

    async def _poll_once(self) -> None:
        try:
            changed, revision = await self._run_query(self._read_changes)
        except StoreUnavailable as error:
            self._record_failure(error)
            return
        self._record_success()
        self._revision = revision
        if changed is None:  # too many to look at one by one
            self._keys.clear()
            self._unknown_digests.clear()
        elif changed:
            self._invalidate(changed)

    def _read_changes(self) -> tuple[list[StoredKey] | None, int]:
        """In the thread."""
        self._ensure_migrated()
        newest = self._database.latest_key_revision()
        if newest == self._revision:
            return [], newest
        changed = self._database.list_changed_keys(self._revision, limit=KEYS_PER_QUERY)
        return (
            (None, newest) if len(changed) == KEYS_PER_QUERY else (changed, changed[-1].revision if changed else newest)
        )

    def _invalidate(self, changed: list[StoredKey]) -> None:
        """Forgets what is known of changed keys: the next request reads them anew."""
        ids = {row.id for row in changed}
        for digest in [digest for digest, key in self._keys.items() if key.id in ids]:
            del self._keys[digest]
        self._unknown_digests.clear()

    @property
    def is_down(self) -> bool:
        """The database did not answer the last question, or does not answer the one that it was asked."""
        return self._is_failing or time.monotonic() - self._query_started_at > MAX_QUERY_SILENCE_SECONDS

    def _record_failure(self, error: StoreUnavailable) -> None:
        if not self._is_failing:
            log.error("keys are served from memory alone: %s", error.message)
        self._is_failing = True

    def _record_success(self) -> None:
        if self._is_failing:
            log.error("the database of keys answers again")
        self._is_failing = False
