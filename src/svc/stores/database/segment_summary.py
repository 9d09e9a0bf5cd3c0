"""Sums of journal lines, recorded while the lines are written, so that ingestion does not decode them. No I/O.

journal writer ── add_line ──> SegmentSummary ── segment complete ──> `parse_summarized_segment`, with the lines
"""

from __future__ import annotations

from typing import Final

from svc.wire.key import ApiKey
from svc.wire.usage import TokenUsage

HOUR_PREFIX_LENGTH: Final = len("2026-01-01T00")


# begin: group totals, from ledger_fields.toml by `make ledger`
class GroupTotals:
    """The totals of FieldTotals, in a class that can be compiled."""

    __slots__ = (
        "completion_tokens",
        "cost_usd",
        "prompt_tokens",
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost_usd = 0.0


# end: group totals


class SummaryGroup(GroupTotals):
    """The lines of one key, hour (UTC), model and provider."""

    __slots__ = (
        "error_count",
        "first_time",
        "hour",
        "index",
        "key",
        "last_time",
        "max_request_id",
        "min_request_id",
        "model",
        "priced_requests",
        "provider",
        "request_count",
    )

    def __init__(
        self, index: int, key: ApiKey, model: str | None, provider: str | None, time: str, request_id: str
    ) -> None:
        """Create the group of its first line, which has this time and request id."""
        super().__init__()
        self.index = index
        self.key = key
        self.model = model
        self.provider = provider
        self.hour = time[:HOUR_PREFIX_LENGTH]
        self.first_time = self.last_time = time
        """The times of the oldest and of the newest line."""
        self.min_request_id = self.max_request_id = request_id
        """The smallest and the greatest request id."""
        self.request_count = 0
        self.error_count = 0
        """Number of requests that ended with an error or an interrupted stream."""
        self.priced_requests = 0
        """Number of requests whose cost is known."""

    def matches(self, key: ApiKey, model: str | None, provider: str | None, time: str) -> bool:
        """Return whether a line belongs to this group."""
        return key is self.key and model == self.model and provider == self.provider and time.startswith(self.hour)


class SegmentSummary:
    """The summary of `line_count` lines, bytes `start` to `end` of the journal `journal_name`."""

    __slots__ = (
        "_groups_by_key",
        "_last_group",
        "end",
        "file_lock",
        "groups",
        "has_final_prices",
        "journal_name",
        "line_count",
        "line_groups",
        "start",
    )

    def __init__(self, journal_name: str, start: int, file_lock: object = None) -> None:
        self.journal_name = journal_name
        self.file_lock = file_lock
        """Locks the file against other processes as long as this object exists."""
        self.start = start
        self.end = start
        self.line_count = 0
        self.groups: list[SummaryGroup] = []
        self.line_groups: list[int] = []
        """The index of each line's group, if there are several groups."""
        self.has_final_prices = True
        """False if the price of an entry was unknown when its line was written."""
        self._last_group: SummaryGroup | None = None
        self._groups_by_key: dict[tuple[ApiKey, str | None, str | None, str], SummaryGroup] = {}

    def add_line(
        self,
        line_bytes: int,
        key: ApiKey,
        model: str | None,
        provider: str | None,
        time: str,
        request_id: str,
        usage: TokenUsage | None,
        cost_usd: float | None,
        is_error: bool,
    ) -> None:
        """Add a line of `line_bytes` bytes. `time` and the other values are those of its LedgerEntry."""
        group = self._last_group
        if group is None or not group.matches(key, model, provider, time):
            group = self._last_group = self._get_group(key, model, provider, time, request_id)
        self.end += line_bytes
        self.line_count += 1
        if len(self.groups) > 1:
            self.line_groups.append(group.index)
        group.request_count += 1
        group.error_count += is_error
        if time > group.last_time:
            group.last_time = time
        elif time < group.first_time:  # the clock was set back
            group.first_time = time
        if request_id > group.max_request_id:
            group.max_request_id = request_id
        elif request_id < group.min_request_id:
            group.min_request_id = request_id
        # begin: add usage, from ledger_fields.toml by `make ledger`
        if usage is not None:
            group.prompt_tokens += usage.prompt_tokens
            group.completion_tokens += usage.completion_tokens
        # end: add usage
        if cost_usd is not None:
            group.cost_usd += cost_usd
            group.priced_requests += 1
        elif usage is not None:
            self.has_final_prices = False

    def _get_group(
        self, key: ApiKey, model: str | None, provider: str | None, time: str, request_id: str
    ) -> SummaryGroup:
        group_key = (key, model, provider, time[:HOUR_PREFIX_LENGTH])
        group = self._groups_by_key.get(group_key)
        if group is None:
            group = self._groups_by_key[group_key] = SummaryGroup(
                len(self.groups), key, model, provider, time, request_id
            )
            if group.index == 1:
                self.line_groups = [0] * self.line_count
            self.groups.append(group)
        return group
