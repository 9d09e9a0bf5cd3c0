"""Query the ledger for the overview: totals, the last hour by minute, and latencies. Blocking."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from svc.keys.usage_series import SeriesAmounts, UsagePoint, UsageSeriesRequest
from svc.stores.database.base import Database
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.series import SeriesQuery
from svc.wire.speech import LIVE_TRANSCRIPTION_PATH

LATENCY_SAMPLE_SIZE: Final = 2000
"""The newest successful requests from which percentiles are computed."""
OVERVIEW_READ_SECONDS: Final = 0.1
MINUTES_SHOWN: Final = 60


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds. Null if there is no request."""

    p50: float | None
    """Half of the requests took this long at most."""
    p99: float | None
    """99 of 100 requests took this long at most."""


class LedgerView(msgspec.Struct, frozen=True):
    """The part of the overview that comes from the database."""

    totals: SeriesAmounts
    per_minute: list[UsagePoint]
    latency_ms: Percentiles
    ttfb_ms: Percentiles
    sample_size: int
    is_empty: bool
    key_count: int


def read_overview(
    database: Database, key_id: str | None, start: int, end: int, is_cancelled: Callable[[], bool]
) -> LedgerView:
    """Return the view of one key, or for None of all keys, from `start` to before `end` (Unix seconds)."""
    own = EntryFilter(key_id=key_id)
    hours = SeriesQuery(
        filter=own,
        interval="hour",
        start=start,
        end=end,
        scan_seconds=math.inf,  # the totals are those of the whole window
        is_cancelled=is_cancelled,
    )
    totals = _run_series(database, hours)
    newest_minute = math.floor(end / 60) * 60
    minutes = SeriesQuery(
        filter=own,
        interval="minute",
        start=newest_minute - (MINUTES_SHOWN - 1) * 60,
        end=newest_minute + 60,
        scan_seconds=OVERVIEW_READ_SECONDS,
        is_cancelled=is_cancelled,
    )
    sample = database.search_entries(
        EntryFilter(key_id=key_id, status="ok"),
        start,
        EntryPosition(end * 1000, ""),
        SearchLimits(limit=LATENCY_SAMPLE_SIZE, seconds=OVERVIEW_READ_SECONDS, is_cancelled=is_cancelled),
    ).entries
    # A live session lasts as long as somebody speaks, which is no latency.
    timed = [entry for entry in sample if entry.endpoint != LIVE_TRANSCRIPTION_PATH]
    return LedgerView(
        totals=totals[0],
        per_minute=_run_series(database, minutes)[1],
        latency_ms=_percentiles([entry.latency_ms for entry in timed]),
        ttfb_ms=_percentiles([entry.ttfb_ms for entry in timed if entry.ttfb_ms is not None]),
        sample_size=len(timed),
        is_empty=not totals[0].requests and not database.has_usage(key_id),
        key_count=database.count_keys(),
    )


def _run_series(database: Database, query: SeriesQuery) -> tuple[SeriesAmounts, list[UsagePoint]]:
    usage = UsageSeriesRequest(query=query, by=None, is_csv=False).execute(database, query.is_cancelled)
    return usage.totals, usage.data


def _percentiles(values: list[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(p50=_nearest_rank(ordered, 0.5), p99=_nearest_rank(ordered, 0.99))


def _nearest_rank(ordered: list[float], share: float) -> float | None:
    """Return the smallest value that is not below `share` of the values."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
