"""The messages between a gateway and its query process, and the queries. Each message has its length before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from svc.keys import lifecycle
from svc.keys.lifecycle import ShownKey
from svc.keys.request_search import parse_request_search, show_page
from svc.keys.usage_query import UsageQuery
from svc.keys.usage_series import csv_file_name, encode_csv, parse_series_request
from svc.ledger_queries.explanation_facts import LimitUse, ProviderPace, read_limit_use, read_pace
from svc.ledger_queries.overview import LedgerView, read_overview
from svc.ledger_queries.recent_use import CurrentUse, read_recent_use
from svc.stores.database.base import Database, LedgerEntry
from svc.wire.limit_state import LimitState

T = TypeVar("T")
IsCancelled = Callable[[], bool]
LENGTH_BYTES: Final = 4


class LedgerQuery(msgspec.Struct, Generic[T], frozen=True):
    """A query whose result has the type `result_type`."""

    result_type: ClassVar[Any]

    def execute(self, database: Database, is_cancelled: IsCancelled) -> T:
        """Return the result. Raises StoreUnavailable."""
        raise NotImplementedError


class RequestsQuery(LedgerQuery[bytes], frozen=True, tag="requests"):
    """A search for requests. Its result is the body of the response. The parameters are valid."""

    result_type: ClassVar[Any] = bytes
    parameters: dict[str, str]
    key_id: str | None

    def execute(self, database: Database, is_cancelled: IsCancelled) -> bytes:
        """Return the JSON of a page."""
        page = parse_request_search(self.parameters, self.key_id).execute(database, is_cancelled)
        return msgspec.json.encode(show_page(page))


class SeriesBody(msgspec.Struct, frozen=True):
    """The body of a response with usage over time."""

    body: bytes
    csv_file_name: str | None
    """Null for JSON."""


class UsageSeriesQuery(LedgerQuery[SeriesBody], frozen=True, tag="series"):
    """Usage over time. The parameters are valid."""

    result_type: ClassVar[Any] = SeriesBody
    parameters: dict[str, str]
    key_id: str | None

    def execute(self, database: Database, is_cancelled: IsCancelled) -> SeriesBody:
        """Return JSON or CSV, as the parameters want it."""
        request = parse_series_request(self.parameters, self.key_id)
        series = request.execute(database, is_cancelled)
        if request.is_csv:
            return SeriesBody(encode_csv(series), csv_file_name(series))
        return SeriesBody(msgspec.json.encode(series), None)


class OverviewQuery(LedgerQuery[LedgerView], frozen=True, tag="overview"):
    """The overview of one key, or for None of all keys. `start` and `end` are in Unix seconds."""

    result_type: ClassVar[Any] = LedgerView
    key_id: str | None
    start: int
    end: int

    def execute(self, database: Database, is_cancelled: IsCancelled) -> LedgerView:
        """Return the view."""
        return read_overview(database, self.key_id, self.start, self.end, is_cancelled)


class RecentUseQuery(LedgerQuery[CurrentUse], frozen=True, tag="recent"):
    """The use of the current hour, and with `has_entries` the newest entries."""

    result_type: ClassVar[Any] = CurrentUse
    has_entries: bool

    def execute(self, database: Database, is_cancelled: IsCancelled) -> CurrentUse:
        """Return the use."""
        return read_recent_use(database, has_entries=self.has_entries, is_cancelled=is_cancelled)


class EntryQuery(LedgerQuery["LedgerEntry | None"], frozen=True, tag="entry"):
    """The entry of one request."""

    result_type: ClassVar[Any] = LedgerEntry | None
    request_id: str

    def execute(self, database: Database, is_cancelled: IsCancelled) -> LedgerEntry | None:
        """Return the entry, or None for an unknown id."""
        return database.get_entry(self.request_id)


class PaceQuery(LedgerQuery["ProviderPace | None"], frozen=True, tag="pace"):
    """The usual times at the provider of an entry."""

    result_type: ClassVar[Any] = ProviderPace | None
    entry: LedgerEntry

    def execute(self, database: Database, is_cancelled: IsCancelled) -> ProviderPace | None:
        """Return the medians, or None if there were too few other requests."""
        return read_pace(database, self.entry, is_cancelled)


class LimitUseQuery(LedgerQuery[LimitUse], frozen=True, tag="limit_use"):
    """The use of a key's limit until a request was refused. `refused_at` is in Unix seconds."""

    result_type: ClassVar[Any] = LimitUse
    key_id: str
    state: LimitState
    refused_at: float

    def execute(self, database: Database, is_cancelled: IsCancelled) -> LimitUse:
        """Return the use."""
        return read_limit_use(database, self.key_id, self.state, self.refused_at, is_cancelled)


class UsageRowsQuery(LedgerQuery["list[dict[str, Any]]"], frozen=True, tag="usage"):
    """The rows of `GET /v1/usage`."""

    result_type: ClassVar[Any] = list[dict[str, Any]]
    usage: UsageQuery

    def execute(self, database: Database, is_cancelled: IsCancelled) -> list[dict[str, Any]]:
        """Return the rows."""
        return self.usage.execute(database)


class KeysQuery(LedgerQuery["list[ShownKey]"], frozen=True, tag="keys"):
    """The keys with their use, in the order of their ids."""

    result_type: ClassVar[Any] = list[ShownKey]
    after: str
    limit: int
    search: str
    revoked: bool | None

    def execute(self, database: Database, is_cancelled: IsCancelled) -> list[ShownKey]:
        """Return the keys after an id."""
        return lifecycle.list_keys(
            database, after=self.after, limit=self.limit, search=self.search, revoked=self.revoked
        )


AnyQuery = (
    RequestsQuery
    | UsageSeriesQuery
    | OverviewQuery
    | RecentUseQuery
    | EntryQuery
    | PaceQuery
    | LimitUseQuery
    | UsageRowsQuery
    | KeysQuery
)


class OpenDatabase(msgspec.Struct, frozen=True, tag="open"):
    """The first message to a query process. `url` can contain a password."""

    url: str


class StartQuery(msgspec.Struct, frozen=True, tag="start"):
    """Start a query. `id` is that of its result."""

    id: int
    query: AnyQuery


class CancelQuery(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for this query."""

    id: int


class QueryResult(msgspec.Struct, frozen=True, tag="result"):
    """The result of a query, as MessagePack."""

    id: int
    data: bytes


class QueryError(msgspec.Struct, frozen=True, tag="error"):
    """A query that failed."""

    id: int
    message: str
    is_store_unavailable: bool
    """Whether the database did not respond. Otherwise it is a bug, and the message has the traceback."""


def encode_message(message: msgspec.Struct) -> bytes:
    """Return a message with its length."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message without its length, or None at the end of the stream."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None
