"""Segments of a journal: the fast parser and the slow one give the same result."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import msgspec
import pytest

from svc.stores.database import journal_lines
from svc.stores.database.base import LedgerEntry
from svc.stores.database.segment import MIN_COMPRESSED_BYTES, BatchLines, EntryBatch, JournalSegment

PROCESS = "req_c37a0b2ee7673eb9"


def entry(number: int, **fields: object) -> LedgerEntry:
    made = {
        "time": f"2026-03-04T10:{number // 1000 % 60:02}:{number // 60 % 60:02}.{number % 1000:03}Z",
        "request_id": f"{PROCESS}{number:08x}",
        "key_id": "k",
        "key_name": "n",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "provider": "p",
        "attempts": 1,
        "status": "ok",
        "http_status": 200,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cost_usd": 0.5,
        "latency_ms": 1.0,
    } | fields
    return msgspec.convert(made, LedgerEntry)


def journal(*entries: LedgerEntry) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in entries)


def text_of(batch: EntryBatch) -> str | None:
    return None if batch.lines is None else batch.lines.text


def entries_in(found: JournalSegment) -> list[LedgerEntry]:
    return [each for batch in found.batches for each in journal_lines.decode_batch(batch.packed_entry, text_of(batch))]


def comparable(found: JournalSegment) -> tuple[Any, ...]:
    """Return everything except the batches' own ids."""
    batches = [
        (b.key_id, b.first_ms, b.last_ms, b.count, b.id_prefix, b.min_number, b.max_number, b.packed_entry, text_of(b))
        for b in found.batches
    ]
    return (
        sorted(map(repr, batches)),
        dict(found.hourly_sums),
        dict(found.status_sums),
        found.entry_count,
        found.broken_lines,
    )


def mixed_entries() -> list[LedgerEntry]:
    rng = random.Random(4)
    names: list[dict[str, object]] = [
        {},
        {"key_id": "k2", "key_name": "zwei\u2028\x85", "tags": {"b": "1", "a": "\u00e4"}},
        {"key_id": "k2", "tags": {"a": "\u00e4", "b": "1"}},
        {"model": None, "provider": None, "cost_usd": None},
        {"time": "2026-03-04T11:00:00.000Z"},
        {"request_id": f"req_{1:024x}"},
        {"prompt_tokens": None, "completion_tokens": None},
    ]
    return [entry(number, **rng.choice(names)) for number in range(200)]


def test_parse_segment_one_key_and_hour_keeps_lines_unchanged() -> None:
    data = journal(*[entry(number) for number in (7, 5, 9)])
    (batch,) = journal_lines.parse_segment(data).batches
    assert text_of(batch) == data.decode()
    assert (batch.key_id, batch.count, batch.id_prefix, batch.min_number, batch.max_number) == ("k", 3, PROCESS, 5, 9)
    assert (batch.first_ms, batch.last_ms) == (1772618400005, 1772618400009)


def test_parse_segment_mixed_keys_hours_and_processes_keeps_every_entry() -> None:
    entries = mixed_entries()
    found = journal_lines.parse_segment(journal(*entries))
    assert sorted(entries_in(found), key=str) == sorted(entries, key=str)
    assert found.entry_count == sum(batch.count for batch in found.batches) == 200
    assert sum(amounts.requests for amounts in found.hourly_sums.values()) == 200
    assert sum(amounts.priced for amounts in found.hourly_sums.values()) == sum(
        each.cost_usd is not None for each in entries
    )
    assert sum(amounts.prompt_tokens for amounts in found.hourly_sums.values()) == sum(
        e.prompt_tokens or 0 for e in entries
    )
    assert sum(amounts.completion_tokens for amounts in found.hourly_sums.values()) == sum(
        e.completion_tokens or 0 for e in entries
    )
    assert len({place.tags for place in found.hourly_sums}) == 2  # the order of tags makes no difference
    for batch in found.batches:
        moments = [
            journal_lines.entry_millis(each) for each in journal_lines.decode_batch(batch.packed_entry, text_of(batch))
        ]
        assert (batch.first_ms, batch.last_ms) == (min(moments), max(moments))
        assert batch.first_ms // 3_600_000 == batch.last_ms // 3_600_000


def test_parse_segment_and_build_segment_give_equal_results() -> None:
    entries = mixed_entries()
    assert comparable(journal_lines.parse_segment(journal(*entries))) == comparable(
        journal_lines.build_segment(entries)
    )


@pytest.mark.parametrize(
    "broken",
    [
        b"{nonsense",
        b"",
        b"\xff\xfe",
        b"{}",
        b'{"time":"2026-03-04T10:00:00.000Z"}',
        journal(entry(1))[:-1] * 2,  # two entries on one line
        journal(entry(1))[:-20],
        journal(entry(1)).replace(b'"n"', b'"\xff"')[:-1],
        journal(entry(1)).replace(b":200", b':"ok"')[:-1],
        journal(entry(1, time="2026-99-04T10:00:00.000Z"))[:-1],
        journal(entry(1, time="yesterday"))[:-1],
        journal(entry(1)).replace(b'"n"', b'"\x00"')[:-1],
    ],
)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_parse_segment_broken_line_is_skipped(broken: bytes, at: int) -> None:
    kept = [entry(number, key_id=f"k{number % 2}") for number in range(4)]
    data = journal(*kept[:at]) + broken + b"\n" + journal(*kept[at:])
    found = journal_lines.parse_segment(data)
    assert sorted(entries_in(found), key=lambda each: each.request_id) == kept
    assert (found.entry_count, found.broken_lines) == (4, 1)


def test_parse_segment_other_time_formats_are_parsed() -> None:
    stamps = [
        "2026-03-04T11:59:59+01:00",
        "2026-03-04T10:00:00Z",
        "2026-03-04T10:00:00.0005Z",
        "2026-03-04T10:00:00+0000",
    ]
    found = journal_lines.parse_segment(journal(*[entry(number, time=stamp) for number, stamp in enumerate(stamps)]))
    assert [place.start for place in found.hourly_sums] == [1772618400]
    assert found.entry_count == 4
    assert [each.time for each in entries_in(found)] == stamps


def test_parse_segment_entry_without_price_is_repriced() -> None:
    def reprice(given: LedgerEntry) -> LedgerEntry:
        return given if given.model == "unknown" else msgspec.structs.replace(given, cost_usd=2.0)

    entries = [entry(0), entry(1, cost_usd=None), entry(2, cost_usd=None, model="unknown"), entry(3, cost_usd=0.0)]
    for data in (journal(*entries), journal(*entries, entry(4, request_id="other"))):
        found = journal_lines.parse_segment(data, reprice)
        costs = {each.request_id[-1]: each.cost_usd for each in entries_in(found)}
        assert {number: costs[number] for number in "0123"} == {"0": 0.5, "1": 2.0, "2": None, "3": 0.0}
        assert sum(amounts.cost_usd for amounts in found.hourly_sums.values()) == sum(filter(None, costs.values()))
    (batch, *_) = journal_lines.parse_segment(journal(*entries), reprice).batches
    assert [json.loads(line)["cost_usd"] for line in (text_of(batch) or "").splitlines()] == [0.5, 2.0, None, 0.0]


def test_parse_segment_foreign_request_id_gets_its_own_batch() -> None:
    odd = [f"{PROCESS}0000000G", f"{PROCESS}000000000", "r1", "r2", PROCESS.upper() + "00000001"]
    found = journal_lines.parse_segment(journal(entry(1), *[entry(2, request_id=id) for id in odd], entry(3)))
    assert {batch.id for batch in found.batches if batch.lines is None} == set(odd)
    assert [batch.count for batch in found.batches if batch.lines is not None] == [2]


def test_batch_lines_large_batch_is_compressed_and_small_one_is_not() -> None:
    few, many = ([entry(number) for number in range(count)] for count in (2, MIN_COMPRESSED_BYTES // 100))
    for entries, zipped in ((few, False), (many, True)):
        (batch,) = journal_lines.parse_segment(journal(*entries)).batches
        assert batch.lines is not None
        assert (batch.lines.compressed is not None, batch.lines.uncompressed is None) == (zipped, zipped)
        assert batch.lines.text == journal(*entries).decode()
        if batch.lines.compressed is not None:
            assert len(batch.lines.compressed) < len(batch.lines.text) / 10


def test_batch_lines_compressed_by_previous_version_is_read() -> None:
    text = journal(entry(1), entry(2)).decode()
    assert BatchLines(None, zlib.compress(text.encode(), 1)).text == text


@pytest.mark.parametrize(
    ("at", "to"), [(0, b"x"), (0, b""), (4, b"\xff" * 12), (20, b"\x00" * 50), (60, b"?"), (-1, b"")], ids=repr
)
def test_batch_lines_damaged_data_raises_value_error(at: int, to: bytes) -> None:
    whole = BatchLines.from_bytes(b"x" * MIN_COMPRESSED_BYTES + journal(*map(entry, range(50)))).compressed
    assert whole is not None
    damaged = whole[:at] + to + whole[at + len(to) :] if to else whole[:at]
    with pytest.raises(ValueError, match=r"."):
        assert BatchLines(None, damaged).text is None
