"""Finds and saves stored responses for requests that run in callbacks. The queries run in a database thread."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from svc.errors import SvcError
from svc.gateway.stored_responses.references import find_items, resolve_references
from svc.settings import ResponsesSettings
from svc.stores.database.base import Database, StoreUnavailable
from svc.stores.database.thread import DatabaseThread
from svc.wire.stored_response import EarlierItems, StateReference, StoredItem, StoredResponse

log = logging.getLogger("svc.gateway")

T = TypeVar("T")

QUERY_TIMEOUT_SECONDS: Final = 10.0
MAX_PENDING_QUERIES: Final = 1000
"""Maximum queries in progress. Beyond it, requests get 503 and responses are not stored."""
RESPONSE_PRUNE_INTERVAL_SECONDS: Final = 600.0
_SECONDS_PER_DAY: Final = 86_400.0


class FoundState(msgspec.Struct, frozen=True):
    """The stored response and items of a StateReference."""

    previous: StoredResponse | None
    items: EarlierItems
    is_complete: bool
    """Whether everything that the request refers to was found."""
    is_denied: bool = False
    """Whether it refers to what was deleted, has expired, or is another key's. No provider may get such a request."""


class ResponseStore:
    """The stored responses of a gateway. `close` waits for the queries that it has started."""

    def __init__(self, database: DatabaseThread, *, prunes: bool) -> None:
        """`prunes`: delete expired responses also before the first one is saved."""
        self._database = database
        self._prunes = prunes
        self._tasks: set[asyncio.Task[None]] = set()
        self._prune_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to delete expired responses every RESPONSE_PRUNE_INTERVAL_SECONDS."""
        self._prune_task = asyncio.get_running_loop().create_task(self._prune(), name="prune responses")

    async def close(self) -> None:
        """Stop, after the running queries."""
        if self._prune_task is not None:
            self._prune_task.cancel()
            await asyncio.wait([self._prune_task])
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=QUERY_TIMEOUT_SECONDS)

    def find(self, key_id: str, reference: StateReference, on_found: Callable[[FoundState | SvcError], None]) -> None:
        """Call `on_found` with the stored items that a request refers to, or with an error."""
        self._run(lambda database: find_state(database, key_id, reference, time.time()), on_found)

    def save(self, build: Callable[[], StoredResponse], on_saved: Callable[[SvcError | None], None]) -> None:
        """Save a response, then call `on_saved`. `build` runs in the database thread."""
        self._prunes = True
        self._run(lambda database: _put_response(database, build(), time.time()), on_saved)

    def _run(self, query: Callable[[Database], T], callback: Callable[[T | SvcError], None]) -> None:
        if len(self._tasks) >= MAX_PENDING_QUERIES:
            callback(_unavailable_error())
            return
        task = asyncio.get_running_loop().create_task(self._query(query, callback))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _query(self, query: Callable[[Database], T], callback: Callable[[T | SvcError], None]) -> None:
        result: T | SvcError
        try:
            result = await asyncio.wait_for(self._database.run_query(query), QUERY_TIMEOUT_SECONDS)
        except (SvcError, TimeoutError) as error:
            log.error("a query for stored responses failed: %s", getattr(error, "message", "timeout"))
            result = _unavailable_error()
        except Exception:  # boundary: no one awaits the task, and the request must continue
            log.exception("a query for stored responses failed")
            result = _unavailable_error()
        callback(result)

    async def _prune(self) -> None:
        while True:
            try:
                while self._prunes and not await self._database.run_query(_prune_expired):
                    pass
            except SvcError as error:
                log.warning("expired responses were not deleted: %s", error.message)
            await asyncio.sleep(RESPONSE_PRUNE_INTERVAL_SECONDS)


def _put_response(database: Database, response: StoredResponse, now: float) -> None:
    """Save a response with the items that its input refers to, so that it stays complete without their responses."""
    items, _ = resolve_references(database, response.key_id, response.items, now)
    database.put_response(msgspec.structs.replace(response, items=items))


def _prune_expired(database: Database) -> bool:
    """Delete a batch of expired responses. Returns whether none is left."""
    return not database.prune_responses(time.time())


def _unavailable_error() -> StoreUnavailable:
    return StoreUnavailable("The database of stored responses does not respond. Try again.")


def expiry_of(settings: ResponsesSettings, created_at: float) -> float:
    """Return when a response expires, in Unix seconds."""
    return created_at + settings.retain_days * _SECONDS_PER_DAY if settings.retain_days else math.inf


def find_state(database: Database, key_id: str, reference: StateReference, now: float) -> FoundState:
    """Return what the database has of a reference. Raises StoreUnavailable."""
    previous: StoredResponse | None = None
    conversation: list[StoredItem] | None = []
    missing: list[str] = []
    if reference.previous_response_id is not None:
        previous = database.get_response(key_id, reference.previous_response_id, now)
        conversation = database.list_conversation(key_id, reference.previous_response_id, now)
        if conversation is None:
            missing.append(database.find_missing_response(key_id, reference.previous_response_id, now) or "")
    by_id = find_items(database, key_id, reference.item_ids, now)
    missing += [item_id for item_id in reference.item_ids if item_id not in by_id]
    is_denied = bool(missing) and database.has_stored_id(missing)
    # The provider may know what an earlier request of the conversation refers to.
    resolved, unknown = resolve_references(database, key_id, conversation or [], now)
    items = EarlierItems([item.body for item in resolved], by_id)
    return FoundState(previous, items, not missing and not unknown, is_denied)
