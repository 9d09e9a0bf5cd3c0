"""Parse the parameters of usage over time, query it, and show it as JSON or CSV. No HTTP."""

from __future__ import annotations

import csv
import io
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from svc.errors import InvalidRequest
from svc.keys.request_search import (
    FILTER_PARAMETERS,
    format_millis,
    parse_entry_filter,
    parse_window,
    require_known,
)
from svc.keys.usage_query import parse_group_by
from svc.stores.database.base import Database
from svc.stores.database.segment import UsageTotals
from svc.stores.database.series import INTERVAL_SECONDS, SeriesGroup, SeriesInterval, SeriesQuery, UsageSeries
from svc.wire.usage import format_usd

MAX_SERIES_INTERVALS: Final[dict[SeriesInterval, int]] = {"minute": 360, "hour": 24 * 62, "day": 366 * 5}
"""The most intervals of a query: 6 hours, 62 days and 5 years."""
MAX_SERIES_GROUPS: Final = 100
"""The groups with the highest cost are shown, and the others together as one."""
SERIES_PARAMETERS: Final = FILTER_PARAMETERS | {"interval", "by", "format"}
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
"""The first characters by which a spreadsheet takes a cell for a formula."""
_GROUPS: Final[tuple[SeriesGroup | Literal["none"], ...]] = ("key", "model", "provider", "none")


class SeriesAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a set of requests."""

    requests: int
    """The number of requests."""
    errors: int
    """Those that ended with the status `error` or `cut`."""
    prompt_tokens: int
    """Tokens of the prompts."""
    completion_tokens: int
    """Tokens of the completions."""
    cost_usd: float | None
    """Cost in USD. Null if no request's price is known."""
    unpriced_requests: int
    """Requests that `cost_usd` excludes. They failed without usage, or the price of their model is not known."""


class SeriesGroupTotals(SeriesAmounts, frozen=True, kw_only=True):
    """The usage of one value of `by` in the whole window."""

    value: str | None
    """The value of `by`, empty if requests have none. Null stands for all groups after the first 100."""
    name: str | None
    """The name of the key, if `by` is `key`."""


class UsagePoint(SeriesAmounts, frozen=True, kw_only=True):
    """The usage of one value of `by` in one interval."""

    time: str
    """The start of the interval: ISO 8601, UTC."""
    value: str | None
    """The value of `by`, as in `groups`."""


class UsageOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Usage over time. The points of a group add up to its totals, and those of all groups to `totals`."""

    object: str = "usage_series"
    """Always `usage_series`."""
    interval: SeriesInterval
    """The length of an interval."""
    by: str | None
    """The kind of the groups: `key`, `model`, `provider` or `tag:NAME`. Null if there is one group."""
    since: str
    """The start of the first interval. It is not after the `since` of the query."""
    until: str
    """The end of the last interval. It is not before the `until` of the query."""
    complete_since: str
    """The start of the first interval in which all requests are counted. Earlier intervals are missing."""
    totals: SeriesAmounts
    """The usage of the window."""
    groups: list[SeriesGroupTotals]
    """The groups, highest cost first."""
    data: list[UsagePoint]
    """The points with requests, in the order of time and groups."""


class UsageSeriesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed query of usage over time."""

    query: SeriesQuery
    by: str | None
    is_csv: bool

    def execute(self, database: Database, is_cancelled: Callable[[], bool] = bool) -> UsageOverTime:
        """Return the usage. Raises StoreUnavailable."""
        series = database.get_usage_series(msgspec.structs.replace(self.query, is_cancelled=is_cancelled))
        return _show_series(self, series)


def parse_series_request(parameters: Mapping[str, str], key_id: str | None) -> UsageSeriesRequest:
    """Parse the parameters. `key_id` is the only key that may be read, or None for all. Raises InvalidRequest."""
    require_known(parameters, SERIES_PARAMETERS)
    interval = _parse_interval(parameters.get("interval", "hour"))
    group, tag = parse_group_by(parameters.get("by", "none"), _GROUPS)
    group_by: SeriesGroup | None = None if group == "none" else group
    if (format := parameters.get("format", "json")) not in ("json", "csv"):
        raise InvalidRequest("format must be json or csv.", param="format")
    since, until = parse_window(parameters)
    step = INTERVAL_SECONDS[interval]
    if until == math.inf:
        until = math.floor(time.time()) + 1
    start = math.floor(since / step) * step
    end = max(math.ceil(until / step) * step, start + step)
    if (end - start) // step > MAX_SERIES_INTERVALS[interval]:
        limit = MAX_SERIES_INTERVALS[interval]
        raise InvalidRequest(f"The window has more than {limit} intervals: choose a later since.", param="since")
    query = SeriesQuery(
        filter=parse_entry_filter(parameters, key_id),
        interval=interval,
        start=start,
        end=end,
        group_by=group_by,
        tag=tag,
    )
    by = f"tag:{tag}" if group_by == "tag" else group_by
    return UsageSeriesRequest(query=query, by=by, is_csv=format == "csv")


def csv_file_name(usage: UsageOverTime) -> str:
    """Return a file name with the range of the usage, which sorts by time."""
    since, until = (f"{time[:10].replace('-', '')}T{time[11:13]}{time[14:16]}Z" for time in (usage.since, usage.until))
    return f"usage_{since}_{until}.csv"


def encode_csv(usage: UsageOverTime) -> bytes:
    """Return the points as CSV (RFC 4180). A text that a spreadsheet would take for a formula gets an apostrophe."""
    names = {group.value: group.name or "" for group in usage.groups}
    with io.StringIO(newline="") as text:
        writer = csv.writer(text)
        amounts = SeriesAmounts.__struct_fields__
        group_names = [] if usage.by is None else ["key", "key_name"] if usage.by == "key" else [usage.by]
        writer.writerow(["time", *group_names, *amounts])
        for point in usage.data:
            value = "(other)" if point.value is None else point.value
            groups = [value] if usage.by else []
            if usage.by == "key":
                groups.append(names[point.value])
            cost = "" if point.cost_usd is None else format_usd(point.cost_usd)
            counts = [point.requests, point.errors, point.prompt_tokens, point.completion_tokens]
            writer.writerow([point.time, *map(_neutralize, groups), *counts, cost, point.unpriced_requests])
        return text.getvalue().encode()


def _neutralize(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell


def _parse_interval(text: str) -> SeriesInterval:
    for interval in MAX_SERIES_INTERVALS:
        if text == interval:
            return interval
    raise InvalidRequest("interval must be minute, hour or day.", param="interval")


def _show_series(request: UsageSeriesRequest, series: UsageSeries) -> UsageOverTime:
    by_group: dict[str, UsageTotals] = defaultdict(UsageTotals)
    totals = UsageTotals()
    for (_, value), point in sorted(series.points.items(), key=lambda item: item[0][0]):  # the newest name is kept
        by_group[value].add(point)
        totals.add(point)
    ranked = sorted(by_group, key=lambda value: (-by_group[value].cost_usd, -by_group[value].requests, value))
    shown: dict[str, str | None] = {value: value for value in ranked[:MAX_SERIES_GROUPS]}
    groups: dict[str | None, UsageTotals] = defaultdict(UsageTotals)
    points: dict[tuple[int, str | None], UsageTotals] = defaultdict(UsageTotals)
    for value in ranked:
        groups[shown.get(value)].add(by_group[value])
    for (start, value), point in series.points.items():
        points[start, shown.get(value)].add(point)
    places = {value: place for place, value in enumerate(groups)}
    ordered = sorted(points, key=lambda key: (key[0], places[key[1]]))
    query = request.query
    return UsageOverTime(
        interval=query.interval,
        by=request.by,
        since=format_millis(query.start * 1000),
        until=format_millis(query.end * 1000),
        complete_since=format_millis(series.complete_since * 1000),
        totals=SeriesAmounts(**show_amounts(totals)),
        groups=[
            SeriesGroupTotals(
                value=value, name=total.key_name if query.group_by == "key" and value else None, **show_amounts(total)
            )
            for value, total in groups.items()
        ],
        data=[
            UsagePoint(time=format_millis(start * 1000), value=value, **show_amounts(points[start, value]))
            for start, value in ordered
        ],
    )


def show_amounts(totals: UsageTotals) -> dict[str, Any]:
    """Return the fields of SeriesAmounts."""
    return {
        "requests": totals.requests,
        "errors": totals.errors,
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "cost_usd": round(totals.cost_usd, 9) if totals.priced else None,
        "unpriced_requests": totals.unpriced,
    }
