"""Reads from the ledger what an explanation needs: what used a limit, and what is usual at a provider. Blocks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS
from svc.stores.database.base import Database, LedgerEntry
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.wire.limit_state import LimitState

HOUR_SECONDS: Final = 3600
MAX_COMPARED_REQUESTS: Final = 1000
MIN_COMPARED_REQUESTS: Final = 5
"""With fewer other requests, there is no comparison."""
MAX_WINDOW_ENTRIES: Final = 500
"""Entries that are read to say what used a limit."""
LONGEST_REQUEST_SECONDS: Final = 600
"""Requests that ended this long after a refusal can have been in flight."""


class LimitConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a limit by requests for one model."""

    model: str
    """The model."""
    requests: int
    """Requests in the period of the limit."""
    running: int
    """The requests in flight when this request was refused. 0 for a budget."""
    tokens: int
    """Their tokens."""
    cost_usd: float
    """Their cost."""


class ProviderPace(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of other successful requests for the same model at the same provider, in the same hour."""

    requests: int
    """The number of requests."""
    latency_ms: float
    """The median of `latency_ms`."""
    ttfb_ms: float
    """The median of `ttfb_ms`."""
    tokens_per_second: float | None
    """The median of the tokens per second. Null if no request had tokens."""


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """The facts in the database about a key's limit that refused a request."""

    consumers: list[LimitConsumer]
    """The models that used the limit, the largest use first."""
    is_issued: bool
    """Whether the key is in the database."""
    has_own_limit: bool
    """Whether the key has this limit itself."""


def read_limit_use(
    database: Database, key_id: str, state: LimitState, refused_at: float, is_cancelled: Callable[[], bool] = bool
) -> LimitUse:
    """Return what used a limit until a request was refused, in Unix seconds. Raises StoreUnavailable."""
    key = database.get_key(key_id)
    own = None if key is None else getattr(key, "budget_usd" if state.name == "budget" else state.name)
    return LimitUse(
        consumers=_read_consumers(database, key_id, state, refused_at, is_cancelled),
        is_issued=key is not None,
        has_own_limit=own is not None,
    )


def _read_consumers(
    database: Database, key_id: str, state: LimitState, refused_at: float, is_cancelled: Callable[[], bool]
) -> list[LimitConsumer]:
    if state.name == "budget" and state.scope == "key":
        sums = database.aggregate_usage("model", key_id=key_id, since=state.period_start or 0.0, until=refused_at)
        return [
            LimitConsumer(
                model=each.value or "unknown",
                requests=each.requests,
                running=0,
                tokens=(each.prompt_tokens or 0) + (each.completion_tokens or 0),
                cost_usd=each.cost_usd or 0.0,
            )
            for each in sums
        ]
    page = database.search_entries(
        EntryFilter(key_id=key_id),
        refused_at - COUNTER_WINDOW_SECONDS,
        EntryPosition(math.ceil((refused_at + LONGEST_REQUEST_SECONDS) * 1000), ""),
        SearchLimits(limit=MAX_WINDOW_ENTRIES, seconds=1.0, is_cancelled=is_cancelled),
    )
    by_model: dict[str, LimitConsumer] = {}
    for entry in page.entries:
        ended_at = datetime.fromisoformat(entry.time).timestamp()
        started_at = ended_at - entry.latency_ms / 1000
        is_other = state.scope == "ephemeral_key" and entry.ephemeral_id != state.scope_id
        if is_other or started_at >= refused_at:
            continue
        is_running = ended_at >= refused_at
        if not is_running and (state.name == "concurrency" or started_at < refused_at - COUNTER_WINDOW_SECONDS):
            continue
        model = entry.model or entry.model_asked or "unknown"
        seen = by_model.get(model, LimitConsumer(model=model, requests=0, running=0, tokens=0, cost_usd=0.0))
        by_model[model] = LimitConsumer(
            model=model,
            requests=seen.requests + 1,
            running=seen.running + is_running,
            tokens=seen.tokens + (entry.prompt_tokens or 0) + (entry.completion_tokens or 0),
            cost_usd=seen.cost_usd + (entry.cost_usd or 0.0),
        )
    return sorted(by_model.values(), key=lambda each: (each.tokens, each.requests), reverse=True)


def read_pace(database: Database, entry: LedgerEntry, is_cancelled: Callable[[], bool] = bool) -> ProviderPace | None:
    """Return what is usual at the provider of an entry, or None if there were too few other requests."""
    if entry.provider is None or entry.model is None:
        return None
    ended_at = datetime.fromisoformat(entry.time).timestamp()
    hour = math.floor(ended_at / HOUR_SECONDS) * HOUR_SECONDS
    page = database.search_entries(
        EntryFilter(provider=entry.provider, model=entry.model, status="ok", endpoint=entry.endpoint),
        hour,
        EntryPosition(min(hour + HOUR_SECONDS, math.ceil(time.time()) + 1) * 1000, ""),
        SearchLimits(limit=MAX_COMPARED_REQUESTS, seconds=1.0, is_cancelled=is_cancelled),
    )
    others = [other for other in page.entries if other.request_id != entry.request_id and not other.from_cache]
    if len(others) < MIN_COMPARED_REQUESTS:
        return None
    paces = [pace for other in others if (pace := tokens_per_second(other)) is not None]
    first_bytes = [other.latency_ms if other.ttfb_ms is None else other.ttfb_ms for other in others]
    return ProviderPace(
        requests=len(others),
        latency_ms=round(statistics.median([other.latency_ms for other in others]), 3),
        ttfb_ms=round(statistics.median(first_bytes), 3),
        tokens_per_second=round(statistics.median(paces), 1) if paces else None,
    )


def tokens_per_second(entry: LedgerEntry) -> float | None:
    """Return the pace of the output. Without a stream, it includes the time to the first byte."""
    if not entry.completion_tokens or entry.latency_ms <= 0:
        return None
    output_ms = entry.latency_ms - (entry.ttfb_ms or 0.0)
    if output_ms < 0.05 * entry.latency_ms:
        output_ms = entry.latency_ms
    return round(entry.completion_tokens / output_ms * 1000, 1)
