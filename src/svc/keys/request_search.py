"""Parse the parameters of a search for requests, and run it on the ledger. No HTTP."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from svc.errors import InvalidRequest
from svc.keys.usage_query import parse_time, show_entry
from svc.stores.database.base import Database, EntryPage
from svc.stores.database.batch_rows import MAX_TIME_MS, to_ceil_millis
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.entry_search import matches_filter

MAX_REQUESTS_PER_PAGE: Final = 500
DEFAULT_REQUESTS_PER_PAGE: Final = 50
DEFAULT_WINDOW_SECONDS: Final = 86_400
MAX_FILTER_CHARACTERS: Final = 256
REQUEST_STATUSES: Final = ("ok", "error", "cut", "client_closed")
_TEXT_FILTERS: Final = ("model", "provider", "key", "code", "endpoint")
FILTER_PARAMETERS: Final = frozenset({"since", "until", *_TEXT_FILTERS, "status", "http_status", "tag"})
_SEARCH_PARAMETERS: Final = FILTER_PARAMETERS | {"request", "limit", "cursor"}
_REFUSAL_PARAMETERS: Final = frozenset(
    {"since", "until", "key", "model", "code", "http_status", "endpoint", "tag", "reached", "request", "limit"}
)
_MAX_SHOWN_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_CURSOR_PATTERN: Final = re.compile(r"([0-9]{1,15})-([!-~]{0,64})")


class RequestSearch(msgspec.Struct, frozen=True):
    """A search for the entries of the ledger."""

    filter: EntryFilter
    since: float
    end: EntryPosition
    limit: int = DEFAULT_REQUESTS_PER_PAGE
    request_id: str | None = None
    """The gateway's id of a request, or the one that the client sent."""

    def execute(self, database: Database, is_cancelled: Callable[[], bool] = bool) -> EntryPage:
        """Return a page of entries. Raises StoreUnavailable."""
        filter = self.filter
        if self.request_id is not None:
            entry = database.get_entry(self.request_id)
            if entry is not None:
                entries = [entry] if matches_filter(filter, entry) else []
                return EntryPage(entries, None, to_ceil_millis(self.since))
            filter = msgspec.structs.replace(filter, client_request_id=self.request_id)
        return database.search_entries(
            filter, self.since, self.end, SearchLimits(limit=self.limit, is_cancelled=is_cancelled)
        )


class RefusalQuery(msgspec.Struct, frozen=True):
    """A query of refused requests. Times are in the form of ledger entries."""

    filter: EntryFilter
    since_time: str
    until_time: str
    limit: int
    limit_name: str | None
    """The limit that was reached."""
    request_id: str | None


def parse_refusal_query(parameters: Mapping[str, str], key_id: str | None) -> RefusalQuery:
    """Parse the parameters of a list of refused requests, as `parse_request_search` does."""
    require_known(parameters, _REFUSAL_PARAMETERS)
    since, until = parse_window(parameters)
    for name in ("request", "reached"):
        if name in parameters:
            _check_text(name, parameters[name])
    return RefusalQuery(
        filter=parse_entry_filter(parameters, key_id),
        since_time=format_millis(to_ceil_millis(since)),
        until_time=format_millis(to_ceil_millis(until)),
        limit=_parse_limit(parameters.get("limit")),
        limit_name=parameters.get("reached"),
        request_id=parameters.get("request"),
    )


def show_page(page: EntryPage) -> dict[str, Any]:
    """Return the page of the API."""
    return {
        "object": "list",
        "data": [show_entry(entry) for entry in page.entries],
        "next_cursor": None if page.next_end is None else f"{page.next_end.time_ms}-{page.next_end.request_id}",
        "searched_until": format_millis(page.searched_until_ms),
    }


def format_millis(time_ms: int) -> str:
    """Return a time as ISO 8601, in UTC, with milliseconds."""
    time_ms = min(time_ms, _MAX_SHOWN_TIME_MS)
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def parse_request_search(parameters: Mapping[str, str], key_id: str | None) -> RequestSearch:
    """Parse the parameters of a search. `key_id` is the only key whose entries it may find, or None for all.

    Raises InvalidRequest with the field name.
    """
    require_known(parameters, _SEARCH_PARAMETERS)
    since, until = parse_window(parameters)
    end = EntryPosition(to_ceil_millis(until), "")
    if "cursor" in parameters:
        end = min(end, _parse_cursor(parameters["cursor"]))
    request_id = parameters.get("request")
    if request_id is not None:
        _check_text("request", request_id)
    return RequestSearch(
        filter=parse_entry_filter(parameters, key_id),
        since=since,
        end=end,
        limit=_parse_limit(parameters.get("limit")),
        request_id=request_id,
    )


def require_known(parameters: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise InvalidRequest if a parameter is not known."""
    unknown_names = sorted(set(parameters) - known)
    if unknown_names:
        raise InvalidRequest(
            f"{unknown_names[0][:64]!r} is not a parameter of this query: {', '.join(sorted(known))}.",
            param=unknown_names[0][:64],
        )


def parse_window(parameters: Mapping[str, str]) -> tuple[float, float]:
    """Return `since` and `until` in Unix seconds. Without `since`, the window has 24 hours. Raises InvalidRequest."""
    until = parse_time(parameters.get("until"), "until")
    since = parse_time(parameters.get("since"), "since")
    if since is None:
        since = (time.time() if until is None else until) - DEFAULT_WINDOW_SECONDS
    if until is not None and until < since:
        raise InvalidRequest("until must not be before since.", param="until")
    return max(since, 0.0), math.inf if until is None else until


def parse_entry_filter(parameters: Mapping[str, str], key_id: str | None) -> EntryFilter:
    """Return the filter of the parameters. `key_id` as for `parse_request_search`. Raises InvalidRequest."""
    for name in _TEXT_FILTERS:
        if name in parameters:
            _check_text(name, parameters[name])
    status = parameters.get("status")
    if status is not None and status not in REQUEST_STATUSES:
        raise InvalidRequest(f"status must be one of {', '.join(REQUEST_STATUSES)}.", param="status")
    http_status = parameters.get("http_status")
    if http_status is not None and not re.fullmatch("[1-5][0-9][0-9]", http_status):
        raise InvalidRequest("http_status must be a number from 100 to 599.", param="http_status")
    return EntryFilter(
        key_id=parameters.get("key") if key_id is None else key_id,
        model=parameters.get("model"),
        provider=parameters.get("provider"),
        status=status,
        code=parameters.get("code"),
        http_status=None if http_status is None else int(http_status),
        endpoint=parameters.get("endpoint"),
        tag=_parse_tag(parameters.get("tag")),
    )


def _check_text(name: str, text: str) -> None:
    if not 0 < len(text) <= MAX_FILTER_CHARACTERS:
        raise InvalidRequest(f"{name} must have 1 to {MAX_FILTER_CHARACTERS} characters.", param=name)


def _parse_tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, colon, value = text.partition(":")
    if not name or not colon or len(text) > MAX_FILTER_CHARACTERS:
        raise InvalidRequest(f"tag must be NAME:VALUE, with {MAX_FILTER_CHARACTERS} characters at most.", param="tag")
    return name, value


def _parse_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_REQUESTS_PER_PAGE
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_REQUESTS_PER_PAGE:
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_REQUESTS_PER_PAGE}.", param="limit")
    return int(text)


def _parse_cursor(text: str) -> EntryPosition:
    match = _CURSOR_PATTERN.fullmatch(text)
    if match is None or int(match[1]) > MAX_TIME_MS:
        raise InvalidRequest("cursor must be the next_cursor of the page before.", param="cursor")
    return EntryPosition(int(match[1]), match[2])
