"""What is stored of keys and of what they spent, and the seam to the databases that keep it. No implementation.

A Database is blocking: who runs an event loop calls it from a thread of its own, one thread for each instance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec

from svc.errors import SvcError
from svc.stores.database.segment import JournalSegment

BudgetPeriod = Literal["day", "month", "total"]
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
    """It went away at the commit: what was asked may have been done, or not."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An issued key as it lies in the database: the secret only as its SHA-256 (hex). Times are Unix seconds."""

    id: str
    name: str
    prefix: str
    """The first characters of the secret, by which a person recognises it."""
    digest: str
    old_digest: str | None = None
    """The secret before the last rotation, valid until `old_until`."""
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
    """Grows with every change of any key."""


# begin: entry, from ledger_fields.toml by `make ledger`
class AttemptDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a provider, as an entry has it."""

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


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request that reached for an upstream. Unknown is None, never 0."""

    time: str
    """When the response ended: ISO 8601, UTC, with milliseconds."""
    request_id: str
    """The gateway's id of the request, as in `x-request-id`."""
    client_request_id: str | None = None
    """The client's own `x-request-id`."""
    key_id: str
    """The id of the key that the client sent."""
    key_name: str
    """The name of that key when the response ended."""
    tags: dict[str, str] = {}
    """The tags of that key."""
    endpoint: str
    """The path of the endpoint."""
    model_asked: str | None = None
    """The model that the client named."""
    model: str | None = None
    """The model that answered, or that was tried last."""
    provider: str | None = None
    """The provider that answered, or that was tried last."""
    attempts: int
    """Attempts at providers, hedges and fallbacks included. 0 for a response from the cache."""
    status: str
    """`ok`, `error`, `cut` (the stream broke) or `client_closed`."""
    http_status: int
    """The HTTP status of the response. 499 if the client disconnected."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, cached and cache-write tokens included."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the provider read from its cache."""
    completion_tokens: int | None = None
    """Tokens of the completion, reasoning tokens included."""
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
    """True if the provider did not report usage: the token counts are the gateway's estimate."""
    from_cache: bool = False
    """True for a response from the gateway's cache, which costs no tokens."""
    resumed: int = 0
    """How often another target continued a broken stream. Tokens and cost are those of all parts."""
    code: str | None = None
    """The code of the error that ended the request."""
    attempts_detail: list[AttemptDetail] | None = None
    """One object for each attempt, in the order in which they ended."""


# end: entry


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent under one value of `by`; `name` is the key's name, for keys."""

    value: str
    name: str | None = None
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None when no request's price is known."""


STATEMENT_TIMEOUT_SECONDS = 35.0
"""A statement is given up after so long: a little later than a server that works gives it up itself (30 s)."""


class Database(Protocol):
    """Keys and entries. Every method may raise StoreDown, after which the instance can be used again."""

    def migrate(self) -> None:
        """Brings the schema up to date, under a lock; raises UsageError for one that a newer version has made."""

    def close(self) -> None: ...

    def ping(self) -> None:
        """Connect if need be, and run a statement that changes nothing."""

    def put_key(self, key: StoredKey) -> StoredKey:
        """Adds or replaces a key by its id, and gives it the next revision."""

    def update_key(self, id: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        """Puts what `change` makes of a key, with nobody else's change in between; None for an unknown id.

        What `change` raises is passed on, and nothing is changed.
        """

    def list_keys(self, *, after: str = "", limit: int = 1000) -> list[StoredKey]:
        """Every key, in the order of ids; `after` is the last id of the page before."""

    def get_key(self, id: str) -> StoredKey | None:
        """One key by its id."""

    def get_last_used_times(self, ids: Sequence[str]) -> dict[str, float]:
        """When each of these keys was used last, in Unix seconds; an hour's start where its entries are pruned."""

    def find_keys_by_digest(self, digests: Sequence[str]) -> list[StoredKey]:
        """The keys whose present or old secret has one of these digests."""

    def list_changed_keys(self, revision: int, *, limit: int = 1000) -> list[StoredKey]:
        """Keys changed after a revision, oldest change first."""

    def latest_key_revision(self) -> int:
        """That of the newest change of a key; cheap."""

    def committed_offset(self, journal: str) -> int:
        """So many bytes of a journal are in. It is to be asked before the journal is read: who has read before it may
        bring what others have taken, and forgotten, in between."""

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        """Adds what lies in a journal from byte `start` to `end`, and to the sums; all or none.

        False, and nothing is added, if others have taken from there: `taken` says where to go on.
        """

    def delete_journal(self, journal: str) -> None:
        """Of a journal that is empty, or gone."""

    def insert_entries(self, entries: Iterable[LedgerEntry]) -> int:
        """Adds entries that come from no place in a journal, if they are not there yet (by request id), and to the
        sums; all or none. How many were new. Each is looked for: this is slow."""

    def list_entries(
        self,
        *,
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[LedgerEntry]:
        """Newest first, from `since` to before `until`; `before` is the request id at which the page before ended."""

    def aggregate_usage(
        self,
        group_by: GroupBy,
        *,
        tag: str = "",
        key_id: str | None = None,
        since: float = 0.0,
        until: float = math.inf,
    ) -> list[UsageSum]:
        """What was spent from `since` to before `until`, the most expensive first; `tag` names that of `by="tag"`."""

    def get_spent_usd(self, period_starts: Mapping[str, float]) -> dict[str, float]:
        """USD that each key has spent since a midnight (Unix seconds, UTC; 0 is ever)."""

    def prune_entries(self, before: float, *, limit: int = 10_000) -> int:
        """Forgets the raw entries of before that time, so many at once; their sums stay. How many went."""


def budget_period_start(period: str | None, now: float | None = None) -> float:
    """When the budget period began that `now` is in, UTC; 0 for the total."""
    at = time.time() if now is None else now
    if period == "day":
        return at - at % 86_400
    if period == "month":
        first = datetime.fromtimestamp(at, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return first.timestamp()
    return 0.0


def budget_period_end(period: str | None, start: float) -> float:
    """When the budget period that began at `start` ends, in Unix seconds; infinity for the total."""
    if period == "day":
        return start + 86_400
    if period == "month":
        return budget_period_start("month", start + 32 * 86_400)
    return math.inf
