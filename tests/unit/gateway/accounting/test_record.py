"""Encoded records decode to their ledger entries."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.gateway.accounting.bill import EMPTY_BILL, ZERO_BILL, Bill
from svc.gateway.accounting.record import (
    AttemptOutcome,
    AttemptRecord,
    RequestRecord,
    RequestStatus,
    encode_record,
    escape_unprintable,
)
from svc.stores.database.base import AttemptDetail, LedgerEntry
from svc.wire.key import ApiKey, EphemeralKey
from svc.wire.usage import TokenUsage

KEY = ApiKey("key_1", 'a "name"\n\\ with \u2028 and é', tags={"team": 'se"arch', "": "\x00"})
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SPECIAL_COUNTS = (
    *("cache_write_1h_tokens", "prompt_audio_tokens", "prompt_image_tokens"),
    *("completion_audio_tokens", "completion_image_tokens"),
)
COUNT = st.integers(0, 2**31)
USAGE = st.builds(TokenUsage, *[COUNT] * len(TokenUsage.count_names))
NANOS = st.integers(0, 10**15).map(lambda nanos: nanos / 10**9)
SECONDS = st.floats(0, 1e5)
CODE = st.none() | st.just("provider_error")
OUTCOMES = {"ok": "ok", "failed": "error", "abandoned": "cancelled", "hedge_loss": "cancelled"}
ATTEMPT = st.builds(
    AttemptRecord,
    st.just("req_1"),
    TEXT,
    TEXT,
    st.none(),
    st.sampled_from(get_args(AttemptOutcome)),
    CODE,
    st.none(),
    SECONDS,
)
ATTEMPTS = st.just(()) | st.lists(ATTEMPT, min_size=1, max_size=3).map(tuple)


def entry_of(record: RequestRecord) -> LedgerEntry:
    return msgspec.json.decode(encode_record(record) + b"}", type=LedgerEntry)


@given(
    requested_model=TEXT,
    model=st.none() | TEXT,
    client_id=st.none() | TEXT,
    status=st.sampled_from(get_args(RequestStatus)),
    seconds=SECONDS,
    first=st.none() | SECONDS,
    bill=st.just(EMPTY_BILL) | st.builds(Bill, USAGE, st.none() | NANOS, st.booleans()),
    code=CODE,
    attempts=st.integers(0, 9),
    detail=ATTEMPTS,
)
def test_record_encoded_line_decodes_to_ledger_entry(
    requested_model: str,
    model: str | None,
    client_id: str | None,
    status: RequestStatus,
    seconds: float,
    first: float | None,
    bill: Bill,
    code: str | None,
    attempts: int,
    detail: tuple[AttemptRecord, ...],
) -> None:
    record = RequestRecord(
        KEY,
        "/v1/messages",
        requested_model,
        status,
        502,
        time="2026-01-02T03:04:05.678Z",
        request_id="req_1",
        client_request_id=client_id,
        model=model,
        provider=model and "openai",
        attempt_count=attempts,
        duration_seconds=seconds,
        first_byte_seconds=first,
        code=code,
        bill=bill,
        resume_count=attempts,
        attempt_records=detail,
    )
    usage = bill.usage
    assert entry_of(record) == LedgerEntry(
        time="2026-01-02T03:04:05.678Z",
        request_id="req_1",
        client_request_id=client_id,
        key_id=KEY.id,
        key_name=KEY.name,
        tags=KEY.tags,
        endpoint="/v1/messages",
        model_asked=requested_model,
        model=model,
        provider=model and "openai",
        attempts=attempts,
        status=status,
        http_status=502,
        **{name: usage and getattr(usage, name) for name in SPECIAL_COUNTS},
        prompt_tokens=usage and usage.prompt_tokens,
        cached_tokens=usage and usage.cached_tokens,
        completion_tokens=usage and (usage.completion_tokens or (None if bill.is_estimated else 0)),
        reasoning_tokens=usage and usage.reasoning_tokens,
        cost_usd=bill.cost_usd,
        latency_ms=pytest.approx(seconds * 1000, abs=0.00051, rel=1e-12),
        ttfb_ms=first and pytest.approx(first * 1000, abs=0.00051, rel=1e-12),
        cache_write_tokens=usage and usage.cache_write_tokens,
        estimated=bill.is_estimated,
        resumed=attempts,
        code=code,
        attempts_detail=[
            AttemptDetail(
                provider=each.provider,
                model=each.model,
                outcome=OUTCOMES[each.outcome],
                code=each.code,
                ms=pytest.approx(each.duration_ms, abs=0.00051, rel=1e-12),
                connect_ms=each.connect_seconds and pytest.approx(each.connect_seconds * 1000, abs=0.00051, rel=1e-12),
            )
            for each in detail
        ]
        or None,
    )


KEYS = (
    KEY,
    ApiKey(KEY.id, KEY.name),
    ApiKey("key_2", "two"),
    EphemeralKey(
        "ek_1",
        KEY,
        b"",
        scopes=KEY.scopes,
        models=None,
        own_rpm=0,
        own_budget_usd=None,
        tags={"user": "7"},
        issued_at=0,
        expires=1e12,
    ),
)
"""The first two are one key before and after a change of its tags."""
OPTIONAL_NAME = st.none() | st.sampled_from(["a", "b"])
FAILED = AttemptRecord(
    "req_1", "openai", "m\u2028", None, "failed", "provider_error", 502, 500.0, connect_seconds=0.0125
)
RECORDS = st.builds(
    RequestRecord,
    st.sampled_from(KEYS),
    st.sampled_from(["/v1/messages", "/v1/chat/completions"]),
    OPTIONAL_NAME,
    st.sampled_from(get_args(RequestStatus)),
    st.sampled_from([200, 200, 502]),
    time=st.just("2026-01-02T03:04:05.678Z"),
    request_id=st.just("req_1"),
    client_request_id=OPTIONAL_NAME,
    model=OPTIONAL_NAME,
    provider=OPTIONAL_NAME,
    attempt_count=st.integers(0, 2),
    duration_seconds=SECONDS,
    first_byte_seconds=st.none() | SECONDS,
    code=st.sampled_from([None, None, None, "provider_error"]),
    bill=st.just(EMPTY_BILL)
    | st.builds(
        Bill,
        st.builds(TokenUsage, *[st.sampled_from([0, 0, 1, 999, 1000, 2**70])] * len(TokenUsage.count_names)),
        st.none() | NANOS,
        st.booleans(),
    ),
    from_cache=st.sampled_from([False, False, False, True]),
    resume_count=st.sampled_from([0, 0, 0, 1]),
    upstream_request_id=OPTIONAL_NAME,
    attempt_records=st.sampled_from([(), (), (), (FAILED,)]),
)
"""Records that mostly have default values."""


def expected_fields(record: RequestRecord) -> dict[str, object]:
    """Return the fields of the line, without any cache."""
    usage, bill = record.bill.usage, record.bill
    estimated = bill.is_estimated
    return {
        "time": record.time,
        "request_id": record.request_id,
        "client_request_id": record.client_request_id,
        "key_id": record.key.id,
        "key_name": record.key.name,
        "tags": record.key.tags,
        "endpoint": record.endpoint,
        "model_asked": record.requested_model,
        "model": record.model,
        "provider": record.provider,
        "attempts": record.attempt_count,
        "status": record.status,
        "http_status": record.http_status,
        "prompt_tokens": usage and usage.prompt_tokens,
        "cached_tokens": usage and usage.cached_tokens,
        "completion_tokens": usage and (None if estimated and not usage.completion_tokens else usage.completion_tokens),
        "reasoning_tokens": usage and usage.reasoning_tokens,
        "cost_usd": bill.cost_usd,
        "latency_ms": pytest.approx(record.duration_seconds * 1000, abs=0.00051, rel=1e-12),
        "ttfb_ms": record.first_byte_seconds
        if record.first_byte_seconds is None
        else pytest.approx(record.first_byte_seconds * 1000, abs=0.00051, rel=1e-12),
        "cache_write_tokens": usage and usage.cache_write_tokens,
        "estimated": estimated,
        "from_cache": record.from_cache,
        "resumed": record.resume_count,
        "code": record.code,
        "attempts_detail": [
            {
                "provider": each.provider,
                "model": each.model,
                "outcome": OUTCOMES[each.outcome],
                "code": each.code,
                "ms": each.duration_ms,
                "connect_ms": each.connect_seconds
                and pytest.approx(each.connect_seconds * 1000, abs=0.00051, rel=1e-12),
            }
            for each in record.attempt_records
        ]
        or None,
        "ephemeral_id": record.key.ephemeral_id,
        "upstream_request_id": record.upstream_request_id,
        **{name: usage and getattr(usage, name) for name in SPECIAL_COUNTS},
    }


@given(st.lists(RECORDS, min_size=2, max_size=12))
def test_encode_record_line_is_independent_of_previous_record(records: list[RequestRecord]) -> None:
    for record in (*records, *records[::-1]):
        assert json.loads(encode_record(record) + b"}") == expected_fields(record)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escape_unprintable_characters_are_escaped(text: str) -> None:
    line = escape_unprintable(msgspec.json.encode({"text": text}))
    assert line.decode().isprintable()
    assert msgspec.json.decode(line) == json.loads(line) == {"text": text}


def test_escape_printable_characters_are_kept() -> None:
    line = msgspec.json.encode({"text": "Größe 模型 🦙"})
    assert escape_unprintable(line) == line
    assert (
        escape_unprintable(b'"a\xe2\x80\xa8\xe2\x80\xae\xf3\xa0\x80\x81\x7fb"')
        == rb'"a\u2028\u202e\udb40\udc01\u007fb"'
    )


def test_record_line_has_field_order_of_ledger_entry() -> None:
    """msgspec decodes fields fastest in the order of the struct."""
    record = RequestRecord(
        KEY,
        "/v1/chat/completions",
        None,
        "ok",
        200,
        time="t",
        request_id="r",
        client_request_id=None,
        model=None,
        provider=None,
        attempt_count=0,
        duration_seconds=0.0,
        first_byte_seconds=None,
        code=None,
        bill=ZERO_BILL,
        from_cache=True,
    )
    assert tuple(msgspec.json.decode(encode_record(record) + b"}")) == LedgerEntry.__struct_fields__
    assert entry_of(record).cost_usd == 0
    assert entry_of(record).from_cache
