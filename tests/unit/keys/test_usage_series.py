"""The parameters of usage over time, and its CSV."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest

from svc.errors import InvalidRequest
from svc.keys.usage_series import SeriesAmounts, SeriesGroupTotals, UsageOverTime, UsagePoint, csv_file_name, encode_csv
from svc.keys.usage_series import parse_series_request as parse

AMOUNTS = {
    "requests": 1,
    "errors": 0,
    "prompt_tokens": 2,
    "completion_tokens": 3,
    "cost_usd": 0.000000001,
    "unpriced_requests": 0,
}


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_cell_that_begins_like_a_formula_gets_an_apostrophe(value: str) -> None:
    lines = rows(usage("model", value))
    assert lines[0] == [
        "time",
        "model",
        "requests",
        "errors",
        "prompt_tokens",
        "completion_tokens",
        "cost_usd",
        "unpriced_requests",
    ]
    assert lines[1] == ["t", f"'{value}", "1", "0", "2", "3", "0.000000001", "0"]


def test_csv_quotes_values_and_ends_lines_as_rfc_4180_says() -> None:
    text = encode_csv(usage("tag:team", 'a,"b"\nc'))
    assert text.endswith(b'\r\nt,"a,""b""\nc",1,0,2,3,0.000000001,0\r\n')


def test_csv_of_keys_has_their_names_and_other_groups_are_named() -> None:
    assert rows(usage("key", "k1", name="=shop"))[1][1:3] == ["k1", "'=shop"]
    assert rows(usage("model", None))[1][1] == "(other)"
    assert rows(usage(None, ""))[1] == ["t", "1", "0", "2", "3", "0.000000001", "0"]


def test_csv_file_is_named_by_its_range() -> None:
    named = msgspec.structs.replace(usage(None, ""), since="2026-03-04T00:00:00.000Z", until="2026-03-05T07:30:00.000Z")
    assert csv_file_name(named) == "usage_20260304T0000Z_20260305T0730Z.csv"


def test_window_is_widened_to_whole_intervals() -> None:
    query = parse({"since": "2026-01-01T10:20:00Z", "until": "2026-01-01T11:00:01Z"}, "k").query
    assert (query.start % 3600, query.end - query.start, query.filter.key_id) == (0, 2 * 3600, "k")
    assert not query.needs_entries
    day = parse({"since": "2026-01-01T10:20:00Z", "until": "2026-01-01T10:20:00Z", "interval": "day"}, None).query
    assert day.end - day.start == 86_400


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"interval": "week"}, "interval"),
        ({"by": "colour"}, "by"),
        ({"by": "tag:"}, "by"),
        ({"format": "xlsx"}, "format"),
        ({"interval": "minute", "since": "7h"}, "since"),
        ({"since": "1970-01-01"}, "since"),
        ({"limit": "5"}, "limit"),
        ({"status": "refused"}, "status"),
    ],
)
def test_invalid_parameter_is_named(parameters: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(parameters, None)
    assert caught.value.param == param


def usage(by: str | None, value: str | None, name: str | None = None) -> UsageOverTime:
    return UsageOverTime(
        interval="hour",
        by=by,
        since="t",
        until="t",
        complete_since="t",
        totals=SeriesAmounts(**AMOUNTS),  # type: ignore[arg-type]
        groups=[SeriesGroupTotals(value=value, name=name, **AMOUNTS)],  # type: ignore[arg-type]
        data=[UsagePoint(time="t", value=value, **AMOUNTS)],  # type: ignore[arg-type]
    )


def rows(found: UsageOverTime) -> list[list[str]]:
    return list(csv.reader(io.StringIO(encode_csv(found).decode(), newline="")))
