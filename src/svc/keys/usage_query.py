"""Query the ledger for entries or totals, for the command line and the admin API. No HTTP."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec

from svc.errors import InvalidRequest
from svc.stores.database.base import AttemptDetail, Database, GroupBy, LedgerEntry

MAX_USAGE_ROWS = 10_000
DEFAULT_USAGE_ENTRIES = 1000
_GROUPINGS: tuple[GroupBy, ...] = ("key", "model", "provider", "day")
Group = TypeVar("Group", bound=str)
_USAGE_QUERY_FIELDS = {"by", "since", "until", "key", "limit", "before", "request"}
_MAX_REQUEST_ID_LENGTH = 64
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class UsageQuery(msgspec.Struct, frozen=True):
    """A query of the ledger."""

    by: GroupBy | None = None
    tag: str = ""
    since: float = 0.0
    until: float = math.inf
    limit: int | None = None
    """Maximum rows. None selects the default for entries, or the maximum for totals."""
    before: str | None = None
    key_id: str | None = None
    request_id: str | None = None
    """Selects the entry of one request. Only `key_id` restricts it."""

    def execute(self, database: Database) -> list[dict[str, Any]]:
        """Return entries, newest first, or with `by` totals, highest cost first. Raises StoreUnavailable."""
        if self.request_id is not None:
            entry = database.get_entry(self.request_id)
            return [] if entry is None or self.key_id not in (None, entry.key_id) else [show_entry(entry)]
        if self.by is None:
            span = {"since": self.since, "until": self.until}
            entries = database.list_entries(
                key_id=self.key_id, **span, before=self.before, limit=self.limit or DEFAULT_USAGE_ENTRIES
            )
            return [show_entry(entry) for entry in entries]
        rows = []
        sums = database.aggregate_usage(self.by, tag=self.tag, key_id=self.key_id, since=self.since, until=self.until)
        for usage_sum in sums[: self.limit or MAX_USAGE_ROWS]:
            amounts = msgspec.structs.asdict(usage_sum)
            value, name = amounts.pop("value"), amounts.pop("name")
            if usage_sum.cost_usd is None or not usage_sum.unpriced_requests:
                del amounts["unpriced_requests"]
            row = {f"tag:{self.tag}" if self.by == "tag" else self.by: value}
            if self.by == "key":
                row["key_name"] = name
            rows.append(row | amounts)
        return rows


def show_entry(entry: LedgerEntry) -> dict[str, Any]:
    """Return the entry with its attempts. The journal omits a single successful attempt."""
    if entry.attempts_detail is None and entry.attempts <= 1:
        entry = msgspec.structs.replace(entry, attempts_detail=list_attempts(entry))
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    return fields


def list_attempts(entry: LedgerEntry) -> list[AttemptDetail]:
    """Return the attempts of an entry. They are missing if an older version did not record them."""
    if entry.attempts_detail is not None:
        return entry.attempts_detail
    return [_single_attempt(entry)] if entry.attempts == 1 else []


def _single_attempt(entry: LedgerEntry) -> AttemptDetail:
    """Return the only attempt of a request. It failed if an older version recorded the error of the request alone."""
    has_failed = entry.status in ("error", "cut")
    return AttemptDetail(
        provider=entry.provider or "",
        model=entry.model or "",
        outcome="error" if has_failed else "ok",
        code=entry.code if has_failed else None,
        ms=entry.latency_ms,
    )


def parse_usage_query(parameters: Mapping[str, str]) -> UsageQuery:
    """Parse the parameters of the API: `by`, `since` and so on. Raises InvalidRequest with the field name."""
    unknown_names = sorted(set(parameters) - _USAGE_QUERY_FIELDS)
    if unknown_names:
        raise InvalidRequest(
            f"{unknown_names[0][:64]!r} is not a parameter of this query: {', '.join(sorted(_USAGE_QUERY_FIELDS))}.",
            param=unknown_names[0][:64],
        )
    if "request" in parameters:
        return _parse_request_query(parameters)
    by, tag = (None, "") if "by" not in parameters else parse_group_by(parameters["by"], _GROUPINGS)
    limit = parameters.get("limit")
    if limit is not None and not (limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_USAGE_ROWS):
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_USAGE_ROWS}.", param="limit")
    since = parse_time(parameters.get("since"), "since") or 0.0
    until = parse_time(parameters.get("until"), "until") or math.inf
    if since > until:
        raise InvalidRequest("since must not be later than the end of the period, until.", param="since")
    return UsageQuery(
        by=by,
        tag=tag,
        since=since,
        until=until,
        limit=None if limit is None else int(limit),
        before=parameters.get("before"),
        key_id=parameters.get("key"),
    )


def _parse_request_query(parameters: Mapping[str, str]) -> UsageQuery:
    other_names = sorted(set(parameters) - {"request"})
    if other_names:
        raise InvalidRequest(f"request cannot be combined with {', '.join(other_names)}.", param="request")
    id = parameters["request"]
    if not id.isprintable() or not 0 < len(id) <= _MAX_REQUEST_ID_LENGTH:
        raise InvalidRequest("request is the x-request-id of a response, such as req_….", param="request")
    return UsageQuery(request_id=id)


def parse_group_by(text: str, groups: Sequence[Group]) -> tuple[Group | Literal["tag"], str]:
    """Return the group that `by` names, and for `tag:NAME` the name of the tag. Raises InvalidRequest."""
    for group in groups:
        if text == group:
            return group, ""
    kind, _, tag = text.partition(":")
    if kind != "tag" or not tag:
        raise InvalidRequest(f"by must be {', '.join(groups)} or tag:NAME.", param="by")
    return "tag", tag


def parse_time(text: str | None, name: str) -> float | None:
    """Parse a date, a time, or `90m`, `12h`, `7d` ago into Unix seconds. Raises InvalidRequest."""
    if text is None:
        return None
    unit = _SECONDS_PER_UNIT.get(text[-1:])
    if unit and text[:-1].isdecimal() and len(text) < 10:
        return time.time() - timedelta(seconds=int(text[:-1]) * unit).total_seconds()
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # an unescaped + in a query string is a space
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{name} must be a time such as 2027-01-31T10:00:00Z, or an age such as 12h or 7d.", param=name
        ) from None
