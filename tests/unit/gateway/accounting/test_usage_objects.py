"""The cost of usage objects of public documentation, to the last decimal of the ledger: see `usage_objects.toml`."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.dialects.openai import embeddings
from svc.dialects.responses.native_schema import NATIVE_RESPONSE_DECODER
from svc.gateway.accounting.cost import compute_token_cost
from svc.gateway.accounting.cost_formula import entry_usage, explain_entry_cost, format_cost_formula
from svc.gateway.accounting.price import Price
from svc.stores.database.base import LedgerEntry
from svc.wire.usage import TokenUsage
from tests.codecs import codec_between, create_stream_transform

TABLE = tomllib.loads(Path(__file__).with_name("usage_objects.toml").read_text())


@dataclass
class Case:
    page: str
    model: str
    prices: dict[str, float]
    usage: str
    terms: str
    usd: str
    note: str = ""
    start: str = ""

    @property
    def price(self) -> Price:
        return Price(**self.prices)


def cases(kind: str) -> list[object]:
    return [pytest.param(Case(**row), id=f"{row['model']}-{number}") for number, row in enumerate(TABLE[kind])]


CLIENTS = pytest.mark.parametrize("client", [openai.dialect, anthropic.dialect], ids=["openai", "anthropic"])


def assert_cost(case: Case, usage: TokenUsage | None) -> None:
    assert usage is not None
    cost = compute_token_cost(case.price, usage)
    assert f"{cost:.9f}" == f"{Decimal(case.usd):.9f}"
    counts = {name: getattr(usage, name) for name in TokenUsage.count_names}
    entry = LedgerEntry(
        time="2026-03-04T10:20:30.456Z",
        request_id="r",
        key_id="k",
        key_name="n",
        endpoint="/v1/chat/completions",
        attempts=1,
        status="ok",
        http_status=200,
        cost_usd=cost,
        latency_ms=1.0,
        **counts,
    )
    assert entry_usage(entry) == usage
    assert format_cost_formula(explain_entry_cost(entry, case.price)) == f"({case.terms}) / 1000000"


def test_usage_objects_table_has_thirty_rows_whose_terms_add_up() -> None:
    rows = [Case(**row) for rows in TABLE.values() for row in rows]
    assert len(rows) >= 30
    for row in rows:
        products = [term.split(" x ") for term in row.terms.split(" + ")]
        assert sum(Decimal(tokens) * Decimal(usd) for tokens, usd in products) / 1_000_000 == Decimal(row.usd), row


@CLIENTS
@pytest.mark.parametrize("case", cases("openai"))
def test_openai_usage_in_json_costs_what_the_table_says(case: Case, client: Dialect) -> None:
    message = {"role": "assistant", "content": "Hi"}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": case.model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": json.loads(case.usage),
    }
    response = codec_between(client, openai.dialect).decode_response(json.dumps(body).encode())
    assert_cost(case, response.usage)


@CLIENTS
@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("place", ["own chunk", "last chunk", "x_groq"])
@pytest.mark.parametrize("case", cases("openai"))
def test_openai_usage_in_streams_costs_what_the_table_says(
    case: Case, place: str, include_usage: bool, client: Dialect
) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": case.model}
    usage = json.loads(case.usage)
    first = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}]}
    last: dict[str, object] = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    chunks = [first, last]
    if place == "own chunk":
        chunks.append({**chunk, "choices": [], "usage": usage})
    elif place == "last chunk":
        last["usage"] = usage
    else:
        last["x_groq"] = {"id": "r", "usage": usage}
    transform = create_stream_transform(openai.dialect, client, include_usage=include_usage)
    for each in chunks:
        transform.feed(b"data: " + json.dumps(each).encode() + b"\n\n")
    transform.feed(b"data: [DONE]\n\n")
    transform.end()
    assert transform.error is None
    assert_cost(case, transform.usage)


@CLIENTS
@pytest.mark.parametrize("case", cases("anthropic"))
def test_anthropic_usage_in_json_costs_what_the_table_says(case: Case, client: Dialect) -> None:
    body = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": case.model,
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {**json.loads(case.start or "{}"), **json.loads(case.usage)},
    }
    response = codec_between(client, anthropic.dialect).decode_response(json.dumps(body).encode())
    assert_cost(case, response.usage)


@CLIENTS
@pytest.mark.parametrize("case", cases("anthropic"))
def test_anthropic_usage_in_streams_costs_what_the_table_says(case: Case, client: Dialect) -> None:
    usage = json.loads(case.usage)
    start = json.loads(case.start) if case.start else {**usage, "output_tokens": 1}
    delta = usage if case.start else {"output_tokens": usage["output_tokens"]}
    message = {"id": "m", "type": "message", "role": "assistant", "model": case.model, "content": [], "usage": start}
    text = {"type": "text_delta", "text": "Hi"}
    events = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": delta},
        {"type": "message_stop"},
    ]
    transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
    for event in events:
        transform.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    transform.end()
    assert transform.error is None
    assert_cost(case, transform.usage)


@pytest.mark.parametrize("case", cases("responses"))
def test_responses_usage_costs_what_the_table_says(case: Case) -> None:
    body = {"id": "resp_1", "status": "completed", "model": case.model, "usage": json.loads(case.usage)}
    assert_cost(case, NATIVE_RESPONSE_DECODER.decode(json.dumps(body)).token_usage())


@pytest.mark.parametrize("case", cases("embeddings"))
def test_embeddings_usage_costs_what_the_table_says(case: Case) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    body = {"object": "list", "data": data, "model": case.model, "usage": json.loads(case.usage)}
    assert_cost(case, embeddings.decode_response(json.dumps(body).encode()).usage)
