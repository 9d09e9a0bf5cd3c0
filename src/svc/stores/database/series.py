"""The query of usage over time, and its result. Data only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from svc.stores.database.entry_filter import EntryFilter
from svc.stores.database.segment import UsageTotals

SeriesInterval = Literal["minute", "hour", "day"]
SeriesGroup = Literal["key", "model", "provider", "tag"]
INTERVAL_SECONDS: Final[dict[SeriesInterval, int]] = {"minute": 60, "hour": 3600, "day": 86_400}
SERIES_SCAN_SECONDS: Final = 1.0
"""How long a query reads sums, or entries if the sums of hours and days lack a field of the query."""


class SeriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of usage over time. Its bounds are multiples of the interval, in Unix seconds."""

    filter: EntryFilter
    """`model` is the model of the response."""
    interval: SeriesInterval
    start: int
    end: int
    group_by: SeriesGroup | None = None
    tag: str = ""
    """The name of the tag for `group_by="tag"`."""
    scan_seconds: float = SERIES_SCAN_SECONDS
    is_cancelled: Callable[[], bool] = bool

    @property
    def needs_entries(self) -> bool:
        """Whether all sums lack a field of the query."""
        filter = self.filter
        selected = (filter.code, filter.http_status, filter.endpoint, filter.client_request_id)
        return self.interval == "minute" or any(value is not None for value in selected)


class UsageSeries(msgspec.Struct, frozen=True):
    """Totals by the start of the interval and the value of the group."""

    points: dict[tuple[int, str], UsageTotals]
    complete_since: int
    """From this time on (Unix seconds) all requests are counted. Later than `start` if there were too many to read."""
