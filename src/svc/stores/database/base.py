"""The types of stored keys and ledger entries, and the Database interface. No implementation.

A Database is blocking. In an event loop, call each instance from its own thread (`DatabaseThread`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from svc.errors import SvcError
from svc.stores.budget_period import BudgetPeriod
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.segment import JournalSegment
from svc.stores.database.series import SeriesQuery, UsageSeries
from svc.wire.stored_response import StoredItem, StoredResponse

GroupBy = Literal["key", "model", "provider", "tag", "day"]


class StoreUnavailable(SvcError):
    """The database or Redis is unavailable. The message is for the operator, and a client does not get it.

    To fix: Retry after the seconds of `retry-after`. `svc doctor` names the cause.
    """

    status = 503

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class CommitOutcomeUnknown(StoreUnavailable):
    """The connection was lost during the commit: the transaction may have been applied, or not."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An issued key. Only the SHA-256 (hex) of its secret is stored. Times are Unix seconds."""

    id: str
    name: str
    prefix: str
    """The first characters of the secret, which identify it to a person."""
    digest: str
    old_digest: str | None = None
    """The digest of the secret before the last rotation, which is valid until `old_until`."""
    old_until: float | None = None
    created: float
    expires: float | None = None
    revoked: float | None = None
    scopes: tuple[str, ...] = ("chat", "speech", "registry:read")
    models: tuple[str, ...] | None = None
    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None
    budget_usd: float | None = None
    budget_period: BudgetPeriod | None = None
    tags: dict[str, str] = {}
    revision: int = 0
    """Increases with every change of any key."""


# begin: entry, from ledger_fields.toml by `make ledger`
class AttemptDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a provider, in a ledger entry."""

    provider: str
    """The provider of the attempt."""
    model: str
    """The model of the attempt."""
    outcome: str
    """`ok`, `error` or `cancelled`. An attempt is cancelled if it lost a hedge or the client disconnected."""
    code: str | None = None
    """The code of the error that ended the attempt."""
    ms: float
    """Milliseconds from the attempt's start to its end."""
    connect_ms: float | None = None
    """Milliseconds to open a new connection, which `ms` includes: DNS, TCP, proxy and TLS. Null if none was opened."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was sent to a provider or served from the cache. Unknown values are null, never 0."""

    time: str
    """When the response ended: ISO 8601, UTC, with milliseconds."""
    request_id: str
    """The gateway's request id, as in the header `x-request-id`."""
    client_request_id: str | None = None
    """The request id that the client sent in `x-request-id`."""
    key_id: str
    """The id of the key that the client sent."""
    key_name: str
    """The name of that key when the response ended."""
    tags: dict[str, str] = {}
    """The tags of that key."""
    endpoint: str
    """The path of the endpoint."""
    model_asked: str | None = None
    """The model that the client requested."""
    model: str | None = None
    """The model of the response, or of the last attempt."""
    provider: str | None = None
    """The provider of the response, or of the last attempt."""
    attempts: int
    """The number of attempts at providers, including hedges and fallbacks. 0 if there was none."""
    status: str
    """`ok`, `error`, `cut` (the stream was interrupted) or `client_closed`."""
    http_status: int
    """The HTTP status of the response. 499 if the client disconnected."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, including cached and cache-write tokens."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the provider read from its cache."""
    completion_tokens: int | None = None
    """Tokens of the completion, including reasoning tokens."""
    reasoning_tokens: int | None = None
    """Tokens that the model spent on reasoning."""
    cost_usd: float | None = None
    """Cost in USD, to nine decimal places. Null if the price is not known."""
    latency_ms: float
    """Milliseconds from the request's arrival to the end of the response."""
    ttfb_ms: float | None = None
    """Milliseconds from the request's arrival to the first byte of the response."""
    cache_write_tokens: int | None = None
    """Tokens of the prompt that the provider wrote to its cache."""
    estimated: bool = False
    """True if the provider did not report usage. The token counts are then estimates of the gateway."""
    from_cache: bool = False
    """True for a response from the gateway's cache. It costs no tokens."""
    resumed: int = 0
    """How often another backend continued the interrupted stream. Tokens and cost are the sums over all parts."""
    code: str | None = None
    """The code of the error that ended the request."""
    attempts_detail: list[AttemptDetail] | None = None
    """One object for each attempt, in the order of their ends."""
    ephemeral_id: str | None = None
    """The id of the ephemeral key that the client sent. `key_id` is then the id of its parent."""
    upstream_request_id: str | None = None
    """The provider's own request id, from a header of its last response."""
    cache_write_1h_tokens: int | None = None
    """Those of `cache_write_tokens` that stay in the cache for an hour. Anthropic charges more for them."""
    prompt_audio_tokens: int | None = None
    """Those of `prompt_tokens` that are audio."""
    prompt_image_tokens: int | None = None
    """Those of `prompt_tokens` that are images, if the provider reports them."""
    completion_audio_tokens: int | None = None
    """Those of `completion_tokens` that are audio."""
    completion_image_tokens: int | None = None
    """Those of `completion_tokens` that are images, if the provider reports them."""


# end: entry


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one value of `group_by`. `name` is the key's name if `group_by` is `key`."""

    value: str
    name: str | None = None
    requests: int
    # begin: usage sum, from ledger_fields.toml by `make ledger`
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None if no request's price is known."""
    # end: usage sum
    unpriced_requests: int = 0
    """Requests that `cost_usd` does not include. Missing in the API if there are none, or if `cost_usd` is null."""


class EntryPage(msgspec.Struct, frozen=True):
    """A page of entries, newest first."""

    entries: list[LedgerEntry]
    next_end: EntryPosition | None
    """The exclusive end of the next page, or None if there is no other entry."""
    searched_until_ms: int
    """All matching entries after this time are on this page or an earlier one."""


STATEMENT_TIMEOUT_SECONDS = 35.0
"""Timeout of a statement. It exceeds the server's own timeout (30 s), so a working server reports it first."""


class Database(Protocol):
    """Keys and ledger entries. Every method may raise StoreUnavailable. The instance can be used again after it."""

    def migrate(self) -> tuple[int, int]:
        """Migrate the schema, under a lock. Return the version before, 0 for a new database, and the version after.

        A newer schema that works with this program is left as it is. Raises UsageError if it does not. A read-only
        database must have been migrated.
        """

    def record_schema_version(self, version: int | None = None) -> tuple[int, int]:
        """Migrate, and record `version` (the newest if None). Return the recorded version before and after.

        A program from before schema version 8 starts only if the recorded version is its own or older. Nothing is
        undone. Raises UsageError if programs of that version cannot use the database.
        """

    def partition_entries(self) -> bool:
        """Partition the entries by month, so that `prune_entries` drops whole months. Returns False if they are.

        Raises UsageError if the database has no partitions.
        """

    def repair_sums(self, before: float = math.inf) -> Iterator[int]:
        """Complete the sums of entries that an older program stored, one key and hour after the other, newest first.

        Only hours that end no later than `before` (Unix seconds) are repaired. Each step reads one batch, or completes
        the sums of a key and hour in a transaction, and yields the number of entries whose sums are now complete.
        Other methods can be called between two steps.
        """

    def close(self) -> None: ...

    def ping(self) -> None:
        """Connect if necessary, and run a statement that changes nothing."""

    def is_read_only(self) -> bool:
        """Return whether the server refuses all changes, as a standby of PostgreSQL does."""

    def check_schema(self) -> None:
        """Check, without a change, that this program and its user can use the schema. It may be missing.

        Raises UsageError for a schema that needs a newer program, and StoreUnavailable.
        """

    def put_key(self, key: StoredKey) -> StoredKey:
        """Add or replace a key by its id, and return it with the next revision."""

    def update_key(self, id: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        """Replace a key by the result of `change`, in one transaction. Returns None for an unknown id.

        If `change` raises, the transaction is rolled back and the exception propagates.
        """

    def list_keys(self, *, after: str = "", limit: int = 1000) -> list[StoredKey]:
        """Return keys in the order of ids. `after` is the last id of the previous page."""

    def count_keys(self) -> int:
        """Return the number of keys, including revoked ones."""

    def get_key(self, id: str) -> StoredKey | None:
        """Return one key, or None for an unknown id."""

    def get_last_used_times(self, ids: Sequence[str]) -> dict[str, float]:
        """Return when each key was last used, in Unix seconds: the start of the hour if its entries are pruned."""

    def find_keys_by_digest(self, digests: Sequence[str]) -> list[StoredKey]:
        """Return the keys whose current or old secret has one of these digests."""

    def find_keys_by_id(self, ids: Sequence[str]) -> list[StoredKey]:
        """Return the keys with these ids."""

    def list_changed_keys(self, revision: int, *, limit: int = 1000) -> list[StoredKey]:
        """Return the keys changed after a revision, oldest change first."""

    def latest_key_revision(self) -> int:
        """Return the revision of the newest change of a key. Cheap enough for polling."""

    def committed_offset(self, journal: str) -> int:
        """Return how many bytes of a journal are ingested.

        Call it before reading the journal. Otherwise another process can ingest and delete the same bytes in between.
        """

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        """Add the entries in bytes `start` to `end` of a journal, and add them to the sums, in one transaction.

        Returns False, and adds nothing, if another process has ingested these bytes. Then continue at
        `committed_offset`.
        """

    def delete_journal(self, journal: str) -> None:
        """Delete the offset of a journal that is empty or deleted."""

    def insert_entries(self, entries: Iterable[LedgerEntry]) -> int:
        """Add entries that are not yet stored (by request id), and add them to the sums, in one transaction.

        Returns the number of new entries. For entries without a place in a journal. Slow: it searches for each one.
        """

    def list_entries(
        self,
        *,
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[LedgerEntry]:
        """Return entries, newest first, with `since` <= time < `until`.

        `before` is the last request id of the previous page.
        """

    def get_entry(self, request_id: str) -> LedgerEntry | None:
        """Return the entry of one request, or None for an unknown id."""

    def search_entries(self, filter: EntryFilter, since: float, end: EntryPosition, limits: SearchLimits) -> EntryPage:
        """Return matching entries, newest first, from `since` (Unix seconds) to before `end`."""

    def get_usage_series(self, query: SeriesQuery) -> UsageSeries:
        """Return usage over time."""

    def has_usage(self, key_id: str | None) -> bool:
        """Return whether there has been a request, or one of this key."""

    def interrupt(self) -> None:
        """End the running statement of another thread, which raises StoreUnavailable. Never raises."""

    def aggregate_usage(
        self,
        group_by: GroupBy,
        *,
        tag: str = "",
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
    ) -> list[UsageSum]:
        """Return the usage with `since` <= time < `until`, most expensive first, or newest day first.

        `tag` is the name of the tag for `group_by="tag"`.
        """

    def get_spent_usd(self, period_starts: Mapping[str, float]) -> dict[str, float]:
        """Return the USD that each key has spent since a midnight (Unix seconds, UTC). 0 means since its creation."""

    def get_ephemeral_spent_usd(self, key_id: str, ephemeral_id: str, since: float) -> float:
        """Return the USD that an ephemeral key of `key_id` has spent since it was issued (Unix seconds).

        Reads all entries of `key_id` since then.
        """

    def put_response(self, response: StoredResponse) -> None:
        """Add a response with its items. The responses that it continues expire no earlier than it."""

    def get_response(self, key_id: str, id: str, now: float) -> StoredResponse | None:
        """Return a response without its items. None if it is unknown, expired, or another key's."""

    def list_conversation(self, key_id: str, id: str, now: float) -> list[StoredItem] | None:
        """Return the items of a response and of those that it continues, oldest first.

        Returns None if one of them is unknown, deleted, expired, or another key's.
        """

    def find_missing_response(self, key_id: str, id: str, now: float) -> str | None:
        """Return the id at which a conversation breaks: of the newest response that `list_conversation` lacks."""

    def list_response_items(self, key_id: str, response_id: str) -> list[StoredItem]:
        """Return the items of one response: first those of its request, then its output."""

    def find_response_items(self, key_id: str, item_ids: Sequence[str], now: float) -> list[StoredItem]:
        """Return the items with these ids. Unknown ones, and those of other keys, are missing."""

    def has_stored_id(self, ids: Sequence[str]) -> bool:
        """Return whether any key has stored a response or an output item with one of these ids.

        Ids of deleted and expired responses count, for 30 days after their creation at least.
        """

    def delete_response(self, key_id: str, id: str, now: float) -> bool:
        """Delete a response with its items, but not their ids.

        Returns False if it is unknown, expired, or another key's.
        """

    def prune_responses(self, now: float, *, limit: int = 500) -> int:
        """Delete up to `limit` expired responses, and as many expired ids. Returns the number deleted."""

    def prune_entries(self, before: float, *, limit: int = 10_000) -> int:
        """Delete up to `limit` entries older than `before`, but not their sums. Returns the number deleted.

        In a partitioned database, deletes those older than the month of `before`. Dropped months are not counted.
        """
