"""How entries are shown: each attempt in a list, and one request by its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from svc.errors import InvalidRequest
from svc.keys.usage_query import UsageQuery, parse_usage_query
from svc.stores.database.base import AttemptDetail, LedgerEntry
from svc.stores.database.sqlite import SqliteDatabase

OK = {"provider": "p", "model": "m", "outcome": "ok", "code": None, "ms": 1.5, "connect_ms": None}
FAILED = {**OK, "outcome": "error", "code": "provider_error"}


def entry_of(id: str, **fields: object) -> LedgerEntry:
    known = {
        "time": "2026-03-04T10:20:30.456Z",
        "request_id": id,
        "key_id": "k1",
        "key_name": "one",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "provider": "p",
        "attempts": 1,
        "status": "ok",
        "http_status": 200,
        "latency_ms": 1.5,
    }
    return msgspec.convert(known | fields, LedgerEntry)


def query_rows(tmp_path: Path, entries: list[LedgerEntry], query: UsageQuery) -> list[dict[str, Any]]:
    database = SqliteDatabase(tmp_path / "svc.db")
    try:
        database.migrate()
        database.insert_entries(entries)
        return query.execute(database)
    finally:
        database.close()


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, [OK]),
        ({"attempts": 0, "from_cache": True}, []),
        ({"status": "client_closed", "http_status": 499}, [OK]),
        ({"attempts_detail": [AttemptDetail(**FAILED)], "status": "error"}, [FAILED]),
        ({"status": "error", "code": "provider_error"}, [FAILED]),
        ({"status": "cut", "code": "provider_error"}, [FAILED]),
        ({"attempts": 2}, None),
    ],
    ids=[
        "one",
        "cached",
        "client left after it",
        "recorded",
        "old version",
        "old version, cut",
        "old version, several",
    ],
)
@pytest.mark.parametrize("parameters", [{}, {"request": "r1"}], ids=["list", "one"])
def test_usage_query_shows_attempts_as_list(
    tmp_path: Path, fields: dict[str, object], shown: object, parameters: dict[str, str]
) -> None:
    (row,) = query_rows(tmp_path, [entry_of("r1", **fields)], parse_usage_query(parameters))
    assert row["attempts_detail"] == shown


def test_usage_query_request_id_finds_its_entry(tmp_path: Path) -> None:
    entries = [entry_of("r1"), entry_of("r2", key_id="k2")]
    for id, key_id, found in (("r2", None, 1), ("r2", "k2", 1), ("r2", "k1", 0), ("r3", None, 0), ("R2", None, 0)):
        query = msgspec.structs.replace(parse_usage_query({"request": id}), key_id=key_id)
        rows = query_rows(tmp_path, entries, query)
        assert [row["request_id"] for row in rows] == [id] * found


@pytest.mark.parametrize(
    "parameters",
    [
        *({"request": id} for id in ("", "a\0b", "a\nb", "r" * 65)),
        *({"request": "r1", name: "1"} for name in ("by", "since", "until", "limit", "before", "key")),
    ],
)
def test_usage_query_request_with_invalid_id_or_other_parameter_is_rejected(parameters: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_usage_query(parameters)
    assert caught.value.param == "request"


@pytest.mark.parametrize("since", ["2026-03-04T00:00:00Z", "5m"])
def test_usage_query_since_after_until_is_rejected(since: str) -> None:
    with pytest.raises(InvalidRequest, match="since must not be later") as caught:
        parse_usage_query({"since": since, "until": "2026-03-03T00:00:00Z"})
    assert caught.value.param == "since"
