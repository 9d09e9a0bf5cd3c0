"""What was spent, as the command and the API ask for it and show it: entries, or sums. No HTTP."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from svc.errors import InvalidRequest
from svc.stores.base import By, Database

MAX_ENTRIES = 10_000
DEFAULT_ENTRIES = 1000
_BYS: tuple[By, ...] = ("key", "model", "provider", "day")
_FIELDS = {"by", "since", "until", "key", "limit", "before"}
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Query(msgspec.Struct, frozen=True):
    """A question about usage."""

    by: By | None = None
    tag: str = ""
    since: float = 0.0
    until: float = math.inf
    limit: int | None = None
    """Rows at most; None is DEFAULT_ENTRIES of entries, MAX_ENTRIES of sums."""
    before: str | None = None
    key_id: str | None = None

    def answer(self, database: Database) -> list[dict[str, Any]]:
        """Entries, newest first; with `by` sums, the dearest first. Raises StoreDown."""
        if self.by is None:
            span = {"since": self.since, "until": self.until}
            found = database.entries(
                key_id=self.key_id, **span, before=self.before, limit=self.limit or DEFAULT_ENTRIES
            )
            return [msgspec.to_builtins(entry) for entry in found]
        rows = []
        sums = database.sums(self.by, tag=self.tag, key_id=self.key_id, since=self.since, until=self.until)
        for each in sums[: self.limit or MAX_ENTRIES]:
            row: dict[str, Any] = {f"tag:{self.tag}" if self.by == "tag" else self.by: each.value}
            if self.by == "key":
                row["key_name"] = each.name
            row |= {
                "requests": each.requests,
                "prompt_tokens": each.prompt_tokens,
                "completion_tokens": each.completion_tokens,
                "cost_usd": each.cost_usd,
            }
            rows.append(row)
        return rows


def query(given: Mapping[str, str]) -> Query:
    """From `by`, `since`, `until`, `key`, `limit`, `before`, as text; raises InvalidRequest that names the field."""
    unknown = sorted(set(given) - _FIELDS)
    if unknown:
        raise InvalidRequest(
            f"{unknown[0][:64]!r} is no question here: {', '.join(sorted(_FIELDS))}.", param=unknown[0][:64]
        )
    by, tag = _by(given.get("by"))
    limit = given.get("limit")
    if limit is not None and not (limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_ENTRIES):
        raise InvalidRequest(f"limit is a number from 1 to {MAX_ENTRIES}.", param="limit")
    return Query(
        by=by,
        tag=tag,
        since=moment(given.get("since"), "since") or 0.0,
        until=moment(given.get("until"), "until") or math.inf,
        limit=None if limit is None else int(limit),
        before=given.get("before"),
        key_id=given.get("key"),
    )


def _by(text: str | None) -> tuple[By | None, str]:
    if text is None:
        return None, ""
    for known in _BYS:
        if text == known:
            return known, ""
    kind, _, tag = text.partition(":")
    if kind != "tag" or not tag:
        raise InvalidRequest("by is key, model, provider, day or tag:NAME.", param="by")
    return "tag", tag


def moment(text: str | None, name: str) -> float | None:
    """Unix seconds of `2027-01-31`, `2027-01-31T10:00:00Z`, or `90m`, `12h`, `7d` ago; raises InvalidRequest."""
    if text is None:
        return None
    unit = _SPANS.get(text[-1:])
    if unit and text[:-1].isdecimal() and len(text) < 10:
        return time.time() - timedelta(seconds=int(text[:-1]) * unit).total_seconds()
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))  # a bare + in an address is a space
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{name} is a time like 2027-01-31T10:00:00Z, or 12h or 7d.", param=name) from None
