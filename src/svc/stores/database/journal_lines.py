"""Converts journal lines (one JSON LedgerEntry each) to batches and sums, and batches to entries. No I/O.

One call decodes all lines of a segment. The lines of one key and hour are stored unchanged. If a line is not in the
canonical form (broken, or another format of time or id), the segment is parsed line by line, which is slower.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, reduce
from operator import add, attrgetter
from random import getrandbits
from typing import Annotated, Any

import msgspec

from svc.stores.database.base import LedgerEntry
from svc.stores.database.segment import (
    ERROR_STATUSES,
    OK_STATUS,
    SECONDS_PER_HOUR,
    TOTAL_FIELDS,
    BatchLines,
    EntryBatch,
    FieldTotals,
    JournalSegment,
    StatusSumKey,
    SumKey,
    UsageTotals,
)
from svc.stores.database.segment_summary import HOUR_PREFIX_LENGTH, SegmentSummary, SummaryGroup

_TIMESTAMP_LENGTH = len("2026-01-01T00:00:00.000Z")
_REQUEST_ID_PATTERN = re.compile(r"(req_[0-9a-f]{16})([0-9a-f]{8})")
_REQUEST_ID_LENGTH, _ID_PREFIX_LENGTH = 28, 20

FillPrice = Callable[[LedgerEntry], LedgerEntry]
"""Returns the entry with its price, or the same object if the price is still unknown."""


class _CanonicalEntry(LedgerEntry, frozen=True, kw_only=True, gc=False):
    """An entry in the canonical form. `gc=False` reduces the time to create one by a third."""

    time: Annotated[str, msgspec.Meta(min_length=_TIMESTAMP_LENGTH, max_length=_TIMESTAMP_LENGTH)]
    request_id: Annotated[str, msgspec.Meta(min_length=_REQUEST_ID_LENGTH, max_length=_REQUEST_ID_LENGTH)]


class _PackedEntry(LedgerEntry, frozen=True, kw_only=True, array_like=True):
    """An entry as a JSON array without field names, which halves its size."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LedgerEntry).decode
_decode_all = msgspec.json.Decoder(LedgerEntry).decode_lines
_decode_canonical = msgspec.json.Decoder(_CanonicalEntry).decode_lines
_unpack = msgspec.json.Decoder(_PackedEntry).decode
_STATUS_FIELD = b'"status":"'
_OK_STATUS_FIELD = b'"status":"ok"'
_total_getters = {name: (attrgetter(name), getattr(FieldTotals(), name)) for name in TOTAL_FIELDS}


def parse_segment(data: bytes, fill_price: FillPrice | None = None) -> JournalSegment:
    """Parse complete lines to a segment."""
    try:
        text = data.decode()
        entries: list[LedgerEntry] = [*_decode_canonical(text)]
        if fill_price is not None:
            text = _fill_prices(text, entries, fill_price)
        return _build_canonical_segment(text, entries)
    except (msgspec.MsgspecError, ValueError):
        return build_segment(*parse_entries(data, fill_price))


def parse_summarized_segment(data: bytes, summary: SegmentSummary) -> JournalSegment:
    """Parse lines whose summary was recorded while they were written. Raises ValueError if the two do not match."""
    if not summary.has_final_prices or len(data) != summary.end - summary.start or not data.endswith(b"\n"):
        raise ValueError("the summary lacks a price or does not match the lines")
    batches: dict[tuple[str, str], list[SummaryGroup]] = defaultdict(list)
    hours: dict[SumKey, UsageTotals] = defaultdict(UsageTotals)
    for group in summary.groups:
        batches[group.key.id, group.hour].append(group)
        hours[_group_sum_key(group)].add(_group_totals(group))
    if len(batches) == 1:
        entry_batches = [_summarized_batch(data, summary.groups)]
    else:
        entry_batches = [
            _summarized_batch(lines, groups)
            for lines, groups in zip(_lines_by_batch(data, summary, batches.values()), batches.values(), strict=True)
        ]
    return JournalSegment(
        batches=entry_batches,
        hourly_sums=hours,
        status_sums=_sum_lines_by_status(data),
        entry_count=summary.line_count,
    )


def parse_entries(data: bytes, fill_price: FillPrice | None = None) -> tuple[list[LedgerEntry], int]:
    """Parse line by line. Returns the entries and the number of broken lines."""
    entries, lines = [], data.removesuffix(b"\n").split(b"\n")
    for line in lines:
        try:
            entry = _decode(line)
            parse_millis(entry.time)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError):
            continue
        entries.append(fill_price(entry) if fill_price is not None and entry.cost_usd is None else entry)
    return entries, len(lines) - len(entries)


def build_segment(entries: Sequence[LedgerEntry], broken: int = 0) -> JournalSegment:
    """Build a segment from entries in any form. Raises ValueError for an invalid time."""
    canonical_entries = [entry for entry in entries if _REQUEST_ID_PATTERN.fullmatch(entry.request_id)]
    other_entries = [entry for entry in entries if not _REQUEST_ID_PATTERN.fullmatch(entry.request_id)]
    batches = _split_into_batches(
        [encode_entry(entry) for entry in canonical_entries], canonical_entries, _format_timestamps(canonical_entries)
    )
    batches += [_single_entry_batch(entry) for entry in other_entries]
    return JournalSegment(
        batches=batches,
        hourly_sums=_sum_by_hour(entries, _format_timestamps(entries)),
        status_sums=_sum_by_status(entries),
        entry_count=len(entries),
        broken_lines=broken,
    )


def sum_by_hour_and_status(
    entries: Sequence[LedgerEntry],
) -> tuple[dict[SumKey, UsageTotals], dict[StatusSumKey, UsageTotals]]:
    """Return the sums of entries, oldest first, as a segment of them has. Raises ValueError for an invalid time."""
    return _sum_by_hour(entries, _format_timestamps(entries)), _sum_by_status(entries)


def decode_batch(packed: str, lines: str | None) -> list[LedgerEntry]:
    """Return the entries of a batch."""
    return [LedgerEntry(**msgspec.structs.asdict(_unpack(packed)))] if lines is None else _decode_all(lines)


def decode_timed_batch(packed: str, lines: str | None, last: int) -> list[tuple[int, LedgerEntry]]:
    """Return the entries of a batch with their times (ms since 1970). `last` is the time of the newest one."""
    entries = decode_batch(packed, lines)
    return [(last, entries[0])] if lines is None else [(entry_millis(entry, last), entry) for entry in entries]


def encode_entry(entry: LedgerEntry) -> str:
    """Return the journal line of an entry, without its line end."""
    return _encode(entry).decode()


def entry_millis(entry: LedgerEntry, default: int = 0) -> int:
    """Return an entry's time in milliseconds since 1970.

    Returns `default` if the time is invalid, for example after disk damage.
    """
    try:
        return parse_millis(entry.time)
    except ValueError:
        return default


def parse_request_id(id: str) -> tuple[str, int] | None:
    """Return the prefix and number of a request id, or None if the gateway did not generate the id."""
    match = _REQUEST_ID_PATTERN.fullmatch(id)
    return None if match is None else (match[1], int(match[2], 16))


def parse_millis(timestamp: str) -> int:
    """Return an entry's `time` in milliseconds since 1970. Raises ValueError."""
    if len(timestamp) != _TIMESTAMP_LENGTH or not timestamp.endswith("Z"):
        return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
    return _parse_whole_second_millis(timestamp[:-5]) + int(timestamp[-4:-1])


@lru_cache(maxsize=64)
def _parse_whole_second_millis(timestamp: str) -> int:
    """Parse a time without its milliseconds. Many entries share one second."""
    return round(datetime.fromisoformat(timestamp).replace(tzinfo=UTC).timestamp()) * 1000


def _format_timestamps(entries: Sequence[LedgerEntry]) -> list[str]:
    """Return the times of entries in the canonical form."""
    times_ms = [parse_millis(entry.time) for entry in entries]
    return [
        f"{datetime.fromtimestamp(time_ms // 1000, UTC).isoformat()[:-6]}.{time_ms % 1000:03d}Z" for time_ms in times_ms
    ]


def _build_canonical_segment(text: str, entries: Sequence[LedgerEntry]) -> JournalSegment:
    """Build a segment from lines in the canonical form. Raises ValueError for any other form."""
    timestamps = [entry.time for entry in entries]
    if {timestamp[-1] for timestamp in timestamps} != {"Z"}:
        raise ValueError("a time that is not in UTC")
    hours = _sum_by_hour(entries, timestamps)
    single_batch = _multi_entry_batch(text, entries, timestamps) if len({place[:2] for place in hours}) == 1 else None
    batches = (
        _split_into_batches(_split_lines(text, entries), entries, timestamps)
        if single_batch is None
        else [single_batch]
    )
    return JournalSegment(
        batches=batches, hourly_sums=hours, status_sums=_sum_by_status(entries), entry_count=len(entries)
    )


def _split_lines(text: str, entries: Sequence[LedgerEntry]) -> list[str]:
    """Return the lines of a text. Raises ValueError if their number differs from that of the entries."""
    lines = text.split("\n")[:-1]
    if len(lines) != len(entries) or not all(lines):
        raise ValueError("a line that is not an entry")
    return lines


def _fill_prices(text: str, entries: list[LedgerEntry], fill_price: FillPrice) -> str:
    """Return the lines with the prices that are known now, and update `entries` in place. Raises ValueError."""
    priced_entries = {
        number: priced_entry
        for number, entry in enumerate(entries)
        if entry.cost_usd is None and (priced_entry := fill_price(entry)) is not entry
    }
    if not priced_entries:
        return text
    lines = _split_lines(text, entries)
    for number, priced_entry in priced_entries.items():
        entries[number], lines[number] = priced_entry, encode_entry(priced_entry)
    return "\n".join(lines) + "\n"


def _sum_by_hour(entries: Sequence[LedgerEntry], timestamps: Sequence[str]) -> dict[SumKey, UsageTotals]:
    groups: dict[tuple[object, ...], list[LedgerEntry]] = defaultdict(list)
    for entry, timestamp in zip(entries, timestamps, strict=True):
        tags = tuple(entry.tags.items()) if entry.tags else ()
        groups[timestamp[:HOUR_PREFIX_LENGTH], entry.key_id, entry.model, entry.provider, tags].append(entry)
    hours: dict[SumKey, UsageTotals] = {}
    for (hour, *_), grouped in groups.items():
        sum_key = entry_sum_key(grouped[0], _parse_whole_second_millis(f"{hour}:00:00") // 1000)
        totals = hours.get(sum_key)
        if totals is None:
            hours[sum_key] = sum_entries(grouped)
        else:  # equal tags in a different order
            totals.add(sum_entries(grouped))
    return hours


def _sum_by_status(entries: Iterable[LedgerEntry]) -> dict[StatusSumKey, UsageTotals]:
    groups: dict[StatusSumKey, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        if entry.status != OK_STATUS:
            hour = parse_millis(entry.time) // (SECONDS_PER_HOUR * 1000) * SECONDS_PER_HOUR
            groups[StatusSumKey(*entry_sum_key(entry, hour), entry.status)].append(entry)
    return {sum_key: sum_entries(grouped) for sum_key, grouped in groups.items()}


def _sum_lines_by_status(data: bytes) -> dict[StatusSumKey, UsageTotals]:
    """Return the sums of lines without decoding those with the status `ok`. Raises ValueError."""
    if data.count(_OK_STATUS_FIELD) == data.count(_STATUS_FIELD):  # no other status, and no tag of that name
        return {}
    others = b"".join(
        [
            line
            for line in data.splitlines(keepends=True)
            if line.count(_STATUS_FIELD) != 1 or _OK_STATUS_FIELD not in line
        ]
    )
    try:
        return _sum_by_status(_decode_all(others))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def sum_entries(entries: Sequence[LedgerEntry]) -> UsageTotals:
    """Return the totals of entries, oldest first. A value that is not known counts as 0."""
    # `sum` adds floats otherwise from Python 3.12 on, so the result would differ from that of SegmentSummary.
    totals: dict[str, Any] = {
        name: reduce(add, filter(None, map(get_value, entries)), zero)
        for name, (get_value, zero) in _total_getters.items()
    }
    key_name = next((entry.key_name for entry in reversed(entries) if entry.key_name), "")
    priced = sum([entry.cost_usd is not None for entry in entries])
    errors = sum([entry.status in ERROR_STATUSES for entry in entries])
    return UsageTotals(key_name=key_name, requests=len(entries), priced=priced, errors=errors, **totals)


def _lines_by_batch(data: bytes, summary: SegmentSummary, batches: Iterable[list[SummaryGroup]]) -> Iterable[bytes]:
    """Return the lines of each batch."""
    lines_of_group: dict[int, list[bytes]] = {}
    parts: list[list[bytes]] = []
    for groups in batches:
        parts.append([])
        lines_of_group.update({group.index: parts[-1] for group in groups})
    for number, line in zip(summary.line_groups, data.splitlines(keepends=True), strict=True):
        lines_of_group[number].append(line)
    return map(b"".join, parts)


def _summarized_batch(data: bytes, groups: Sequence[SummaryGroup]) -> EntryBatch:
    """Build the batch of one key, hour and process."""
    count = sum(group.request_count for group in groups)
    if count == 1:
        return _single_entry_batch(_decode(data))
    low, high = (
        parse_request_id(min(group.min_request_id for group in groups)),
        parse_request_id(max(group.max_request_id for group in groups)),
    )
    if low is None or high is None or low[0] != high[0]:
        raise ValueError("requests that are not of one process")
    first, last = (
        parse_millis(min(group.first_time for group in groups)),
        parse_millis(max(group.last_time for group in groups)),
    )
    return _new_batch(groups[0].key.id, count, (first, last), low[0], (low[1], high[1]), data)


def _group_totals(group: SummaryGroup) -> UsageTotals:
    totals = {name: getattr(group, name) for name in TOTAL_FIELDS}
    return UsageTotals(
        key_name=group.key.name,
        requests=group.request_count,
        priced=group.priced_requests,
        errors=group.error_count,
        **totals,
    )


def _group_sum_key(group: SummaryGroup) -> SumKey:
    tags = _encode_tags(tuple(group.key.tags.items())) if group.key.tags else "{}"
    start = _parse_whole_second_millis(f"{group.hour}:00:00") // 1000
    return SumKey(start, group.key.id, group.model or "", group.provider or "", tags)


def entry_sum_key(entry: LedgerEntry, start: int) -> SumKey:
    """Return the key of an entry's sum in the hour that begins at `start` (Unix seconds)."""
    tags = _encode_tags(tuple(entry.tags.items())) if entry.tags else "{}"
    return SumKey(start, entry.key_id, entry.model or "", entry.provider or "", tags)


@lru_cache(maxsize=256)
def _encode_tags(tags: tuple[tuple[str, str], ...]) -> str:
    """Encode tags as sorted JSON. Cached: all requests of a key have the same tags."""
    return _encode(dict(sorted(tags))).decode()


def _split_into_batches(
    lines: Sequence[str], entries: Sequence[LedgerEntry], timestamps: Sequence[str]
) -> list[EntryBatch]:
    """Group entries by key, hour and process."""
    line_numbers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, (entry, timestamp) in enumerate(zip(entries, timestamps, strict=True)):
        line_numbers[timestamp[:HOUR_PREFIX_LENGTH], entry.key_id, entry.request_id[:_ID_PREFIX_LENGTH]].append(number)
    entry_batches = []
    for numbers in line_numbers.values():
        if len(numbers) == 1:
            entry_batches.append(_single_entry_batch(entries[numbers[0]]))
            continue
        batch_entries = [entries[number] for number in numbers]
        text = "\n".join([lines[number] for number in numbers]) + "\n"
        multi_entry_batch = _multi_entry_batch(text, batch_entries, [timestamps[number] for number in numbers])
        entry_batches += (
            [_single_entry_batch(entry) for entry in batch_entries]
            if multi_entry_batch is None
            else [multi_entry_batch]
        )
    return entry_batches


def _multi_entry_batch(text: str, entries: Sequence[LedgerEntry], timestamps: Sequence[str]) -> EntryBatch | None:
    """Return entries of one key and hour as one batch, or None if they are from several processes."""
    if len(entries) == 1:
        return None
    ids = [entry.request_id for entry in entries]
    low, high = parse_request_id(min(ids)), parse_request_id(max(ids))
    if low is None or high is None or low[0] != high[0]:
        return None
    first, last = parse_millis(min(timestamps)), parse_millis(max(timestamps))
    return _new_batch(entries[0].key_id, len(entries), (first, last), low[0], (low[1], high[1]), text.encode())


def _new_batch(
    key_id: str, count: int, times: tuple[int, int], prefix: str, numbers: tuple[int, int], lines: bytes
) -> EntryBatch:
    first, last = times
    low, high = numbers
    return EntryBatch(
        id=f"{last:012x}{getrandbits(48):012x}",  # not a secret: no cryptographic randomness
        key_id=key_id,
        first_ms=first,
        last_ms=last,
        count=count,
        id_prefix=prefix,
        min_number=low,
        max_number=high,
        lines=BatchLines.from_bytes(lines),
    )


def _single_entry_batch(entry: LedgerEntry) -> EntryBatch:
    time_ms = parse_millis(entry.time)
    packed_entry = _encode(msgspec.structs.astuple(entry)).decode()
    return EntryBatch(
        id=entry.request_id, key_id=entry.key_id, first_ms=time_ms, last_ms=time_ms, packed_entry=packed_entry
    )
