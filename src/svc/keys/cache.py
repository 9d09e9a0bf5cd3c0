"""Cache the issued keys that are in use. `svc.keys.lifecycle` creates and changes keys.

    lookup of a secret:    cache ── miss ──> the database, in one query for all waiting requests
    change elsewhere:      every POLL_INTERVAL_SECONDS a cheap query for changes since the last one

The cache contains at most MAX_CACHED_KEYS keys that were requested, so its size is independent of the number of issued
keys. While the database is unavailable, cached keys stay valid.
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
"""Interval between two queries for changes. A change applies everywhere within 1 s."""
MAX_CACHED_KEYS = 50_000
"""Maximum cached keys: 60 MB at 1.2 kB each."""
MAX_UNKNOWN_DIGESTS = 50_000
"""Rejected secrets that are cached, so that a flood of them does not reach the database."""
MAX_PENDING_LOOKUPS = 10_000
"""Maximum secrets that wait for one database query."""
MAX_PRELOADED_KEYS = 10_000
"""Keys that are loaded at the start, in the background."""
KEYS_PER_QUERY = 500
KEY_QUERY_TIMEOUT_SECONDS = 5.0
"""Timeout of a database query. All of these queries are short."""
MAX_QUERY_SILENCE_SECONDS = 2.0
"""Time without a response to a query after which the cache reports that the database is down."""


def to_api_key(stored_key: StoredKey) -> ApiKey:
    """Convert a stored key to the form that requests use."""
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
    """A `security.IssuedKeySource` that owns a database and queries it in a thread. Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[bytes, ApiKey] = {}
        self._unknown_digests: dict[bytes, None] = {}
        self._digests_by_id: dict[str, tuple[bytes, ...]] = {}
        """The digests of the keys whose record is cached as a whole. Empty for an unknown id."""
        self._pending_lookups: dict[bytes | str, list[Callable[[], None]]] = {}
        """Callbacks by digest, or by the id of a key."""
        self._revision = 0
        self._thread = ThreadPoolExecutor(1, "keys")
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_looking_up = False
        self._is_migrated = False
        self._is_failing = False
        """The last query failed."""
        self._query_started_at = math.inf
        """Monotonic start time of the query that the thread waits for."""

    async def start(self) -> None:
        """Read the current change number, and start polling."""
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
        """Load the first keys, so that they are cached if the database becomes unavailable."""
        after = ""
        while len(self._keys) < MAX_PRELOADED_KEYS:
            try:
                rows, api_keys = await self._run_query(self._read_page, after)
            except StoreUnavailable as error:
                self._record_failure(error)
                return
            self._cache_keys(list(api_keys), api_keys)
            self._cache_ids([row.id for row in rows], api_keys)
            if len(rows) < KEYS_PER_QUERY:
                return
            after = rows[-1].id

    def _read_page(self, after: str) -> tuple[list[StoredKey], dict[bytes, ApiKey]]:
        rows = self._database.list_keys(after=after, limit=KEYS_PER_QUERY)
        return rows, self._to_api_keys(rows)

    # security.IssuedKeySource

    def get(self, digest: bytes) -> ApiKey | bool:
        key = self._keys.get(digest)
        return key if key is not None else digest not in self._unknown_digests

    def load(self, digest: bytes, on_loaded: Callable[[], None]) -> None:
        self._add_lookup(digest, on_loaded)

    def find_by_id(self, id: str) -> list[tuple[bytes, ApiKey]] | None:
        digests = self._digests_by_id.get(id)
        if digests is None:
            return None
        found = [(digest, key) for digest in digests if (key := self._keys.get(digest)) is not None]
        return found if len(found) == len(digests) else None  # one was removed from the full cache

    def load_by_id(self, id: str, on_loaded: Callable[[], None]) -> None:
        self._add_lookup(id, on_loaded)

    def _add_lookup(self, digest: bytes | str, on_loaded: Callable[[], None]) -> None:
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

    # queries

    async def _run_query(self, query: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Run a query in the thread, and return its result. Raises StoreUnavailable."""
        return await self._loop.run_in_executor(self._thread, functools.partial(self._run_timed, query, *args, **more))

    def _run_timed(self, query: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Runs in the thread."""
        self._query_started_at = time.monotonic()
        try:
            return query(*args, **more)
        finally:
            self._query_started_at = math.inf

    async def _process_lookups(self) -> None:
        try:
            while self._pending_lookups:
                lookups = list(self._pending_lookups)[:KEYS_PER_QUERY]
                digests = [lookup for lookup in lookups if isinstance(lookup, bytes)]
                ids = [lookup for lookup in lookups if isinstance(lookup, str)]
                try:
                    api_keys = await self._run_query(self._read_keys, digests, ids)
                    self._record_success()
                    self._cache_keys([*digests, *(digest for digest in api_keys if digest not in digests)], api_keys)
                    self._cache_ids(ids, api_keys)
                except StoreUnavailable as error:
                    self._record_failure(error)
                except Exception:  # boundary: waiting requests must be notified
                    log.exception("keys could not be looked up")
                self._notify_waiters(lookups)
        finally:
            self._is_looking_up = False

    def _notify_waiters(self, lookups: Iterable[bytes | str]) -> None:
        for lookup in lookups:
            for callback in self._pending_lookups.pop(lookup):
                try:
                    callback()
                except Exception:  # boundary: other requests must be notified
                    log.exception("error in a callback of a key lookup")

    def _read_keys(self, digests: list[bytes], ids: list[str]) -> dict[bytes, ApiKey]:
        """Runs in the thread."""
        self._ensure_migrated()
        rows = self._database.find_keys_by_digest([digest.hex() for digest in digests]) if digests else []
        return self._to_api_keys([*rows, *(self._database.find_keys_by_id(ids) if ids else ())])

    def _ensure_migrated(self) -> None:
        if not self._is_migrated:
            self._database.migrate()
            self._is_migrated = True

    def _to_api_keys(self, rows: Iterable[StoredKey]) -> dict[bytes, ApiKey]:
        now = time.time()
        usable = [row for row in rows if row.revoked is None]
        api_keys = {}
        for row in usable:
            key = to_api_key(row)
            api_keys[bytes.fromhex(row.digest)] = key
            if row.old_digest and (row.old_until or 0.0) > now:
                until = min(key.expires, row.old_until or 0.0)
                api_keys[bytes.fromhex(row.old_digest)] = to_api_key(msgspec.structs.replace(row, expires=until))
        return api_keys

    def _cache_keys(self, digests: Iterable[bytes], api_keys: dict[bytes, ApiKey]) -> None:
        for digest in digests:
            key = api_keys.get(digest)
            if key is not None:
                self._keys[digest] = key
            else:
                self._unknown_digests[digest] = None
        self._trim_tables()

    def _cache_ids(self, ids: Iterable[str], api_keys: dict[bytes, ApiKey]) -> None:
        """Remember which of the cached keys have these ids. `api_keys` has all keys of these ids."""
        digests: dict[str, tuple[bytes, ...]] = {}
        for digest, key in api_keys.items():
            digests[key.id] = (*digests.get(key.id, ()), digest)
        for id in ids:
            self._digests_by_id[id] = digests.get(id, ())
        while len(self._digests_by_id) > MAX_CACHED_KEYS:
            del self._digests_by_id[next(iter(self._digests_by_id))]

    def _trim_tables(self) -> None:
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
                log.exception("polling for changed keys failed")

    async def _poll_once(self) -> None:
        try:
            changed, revision = await self._run_query(self._read_changes)
        except StoreUnavailable as error:
            self._record_failure(error)
            return
        self._record_success()
        self._revision = revision
        if changed is None:  # too many changes to read one by one
            self._keys.clear()
            self._unknown_digests.clear()
            self._digests_by_id.clear()
        elif changed:
            self._invalidate(changed)

    def _read_changes(self) -> tuple[list[StoredKey] | None, int]:
        """Runs in the thread."""
        self._ensure_migrated()
        newest = self._database.latest_key_revision()
        if newest == self._revision:
            return [], newest
        changed = self._database.list_changed_keys(self._revision, limit=KEYS_PER_QUERY)
        return (
            (None, newest) if len(changed) == KEYS_PER_QUERY else (changed, changed[-1].revision if changed else newest)
        )

    def _invalidate(self, changed: list[StoredKey]) -> None:
        """Remove changed keys from the cache, and add their new state while there is room.

        Ephemeral keys of a new key then need no query.
        """
        ids = {row.id for row in changed}
        for digest in [digest for digest, key in self._keys.items() if key.id in ids]:
            del self._keys[digest]
        for id in ids:
            self._digests_by_id.pop(id, None)
        self._unknown_digests.clear()
        if len(self._keys) < MAX_PRELOADED_KEYS:
            api_keys = self._to_api_keys(changed)
            self._cache_keys(list(api_keys), api_keys)
            self._cache_ids(ids, api_keys)

    @property
    def is_down(self) -> bool:
        """Return whether the last query failed, or the running one has exceeded MAX_QUERY_SILENCE_SECONDS."""
        return self._is_failing or time.monotonic() - self._query_started_at > MAX_QUERY_SILENCE_SECONDS

    def _record_failure(self, error: StoreUnavailable) -> None:
        if not self._is_failing:
            log.error("the key database is unavailable, only cached keys are accepted: %s", error.message)
        self._is_failing = True

    def _record_success(self) -> None:
        if self._is_failing:
            log.warning("the key database responds again")
        self._is_failing = False
