"""What is made from the table of ledger fields is current, and what was written before the newest fields is read."""

from __future__ import annotations

import msgspec
import pytest

from svc.stores.database import journal_lines
from svc.stores.database.base import AttemptDetail, LedgerEntry
from tests.unit.gateway.accounting import generate_ledger
from tests.unit.gateway.accounting.generate_ledger import Field

FIELDS_OF_FIRST_BATCHES = (
    *("time", "request_id", "client_request_id", "key_id", "key_name", "tags", "endpoint", "model_asked", "model"),
    *("provider", "attempts", "status", "http_status", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("reasoning_tokens", "cost_usd", "latency_ms", "ttfb_ms", "cache_write_tokens", "estimated", "from_cache"),
    *("resumed", "code"),
)
"""The order in which databases have entries without the names of their fields."""
VALUES: dict[str, object] = {
    "time": "2026-03-04T10:20:30.456Z",
    "request_id": "req_c37a0b2ee7673eb900000001",
    "client_request_id": "mine",
    "key_id": "k",
    "key_name": "n",
    "tags": {"team": "x"},
    "endpoint": "/v1/chat/completions",
    "model_asked": "a",
    "model": "m",
    "provider": "p",
    "attempts": 2,
    "status": "ok",
    "http_status": 200,
    "prompt_tokens": 3,
    "cached_tokens": 1,
    "completion_tokens": 2,
    "reasoning_tokens": 0,
    "cost_usd": 0.5,
    "latency_ms": 1.0,
    "ttfb_ms": 0.5,
    "cache_write_tokens": 4,
    "estimated": True,
    "from_cache": False,
    "resumed": 1,
    "code": "provider_error",
}


@pytest.mark.parametrize("path", generate_ledger.make(), ids=lambda path: path.name)
def test_what_is_made_from_the_table_is_current(path) -> None:
    assert path.read_text(encoding="utf-8") == generate_ledger.make()[path], "run: make ledger"


def test_a_new_field_reaches_entry_record_line_and_page(monkeypatch) -> None:
    """One more line of the table, and nothing else."""
    fields = generate_ledger.fields
    new = Field("region", "str | None", "The region of the provider.", default="None", usual="None")
    monkeypatch.setattr(generate_ledger, "fields", lambda table: [*fields(table), *([new] if table == "entry" else [])])
    made = {path.name: text for path, text in generate_ledger.make().items()}
    assert "    region: str | None = None\n" in made["base.py"]
    assert "        region: str | None = None,\n" in made["record.py"]
    assert '"region":%b' in made["record.py"]
    assert "_encode_text(record.region)" in made["record.py"]
    assert '"region":null\'' in made["record.py"]
    assert "| `region` | string or null | The region of the provider. |\n" in made["ledger.md"]


def test_fields_keep_their_places_in_batches_of_one() -> None:
    assert LedgerEntry.__struct_fields__[: len(FIELDS_OF_FIRST_BATCHES)] == FIELDS_OF_FIRST_BATCHES
    assert tuple(field.name for field in generate_ledger.fields("entry")) == LedgerEntry.__struct_fields__


def test_new_fields_are_optional() -> None:
    for field in generate_ledger.fields("entry")[len(FIELDS_OF_FIRST_BATCHES) :]:
        assert field.default is not None, field.name


def test_an_entry_from_before_the_newest_fields_is_read() -> None:
    known = LedgerEntry(**VALUES)
    assert known.attempts_detail is None
    packed = msgspec.json.encode([VALUES[name] for name in FIELDS_OF_FIRST_BATCHES]).decode()
    line = msgspec.json.encode(VALUES).decode() + "\n"
    assert journal_lines.decode_batch(packed, None) == [known]
    assert journal_lines.decode_batch("", line) == [known]
    assert journal_lines.parse_entries(line.encode()) == ([known], 0)
    assert journal_lines.parse_segment(line.encode()).entry_count == 1


def test_an_entry_with_newer_fields_is_read() -> None:
    """As the version before reads what this one writes: fields that it does not know are left out."""
    attempts = [AttemptDetail(provider="p", model="m", outcome="error", code="provider_error", ms=1.5)]
    known = LedgerEntry(**VALUES, attempts_detail=attempts)
    packed = msgspec.json.encode([*msgspec.structs.astuple(known), {"more": 1}]).decode()
    line = msgspec.json.encode({**msgspec.to_builtins(known), "newer": [1]}).decode() + "\n"
    assert journal_lines.decode_batch(packed, None) == [known]
    assert journal_lines.decode_batch("", line) == [known]
    assert journal_lines.parse_segment(line.encode() * 2).broken_lines == 0
