"""Ledger entries of requests."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.accounts.test_keys import create, until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway, run
from tests.e2e.reading import data_lines
from tests.e2e.test_partial_outages import logged
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold, reset, sse, stall


def usage(gateway: Gateway, *options: str) -> list[dict[str, Any]]:
    done = run("usage", "--json", *options, home=gateway.home)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def entry_of(gateway: Gateway, request_id: str, seconds: float = 5.0) -> dict[str, Any]:
    """Wait for the single ledger entry of a request and return it."""
    deadline = time.monotonic() + seconds
    while True:
        rows = gateway.request("GET", "/v1/usage?limit=1000", key=gateway.key).json["data"]
        found = [row for row in rows if row["request_id"] == request_id]
        if found:
            assert len(found) == 1
            return found[0]
        assert time.monotonic() < deadline, f"no entry of {request_id}"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


def test_ledger_json_response_entry_has_tokens_and_cost(gateway: Gateway) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    got = gateway.chat(headers={"x-request-id": "mine-1"})
    entry = entry_of(gateway, got.headers["x-request-id"])
    reported = got.json["usage"]
    assert began <= datetime.fromisoformat(entry["time"]) <= datetime.now(UTC)
    assert entry["time"].endswith("Z")
    assert entry["client_request_id"] == "mine-1"
    assert entry["endpoint"] == "/v1/chat/completions"
    assert (entry["model_asked"], entry["model"], entry["provider"]) == (GPT, GPT, "openai")
    assert (entry["attempts"], entry["status"], entry["http_status"]) == (1, "ok", 200)
    assert entry["prompt_tokens"] == reported["prompt_tokens"]
    assert entry["completion_tokens"] == reported["completion_tokens"]
    assert entry["cost_usd"] == pytest.approx(
        (reported["prompt_tokens"] * 0.15 + reported["completion_tokens"] * 0.6) / 1e6
    )
    assert 0 < entry["ttfb_ms"] <= entry["latency_ms"]
    assert entry["estimated"] is False


def test_ledger_translated_stream_entry_has_tokens_and_cost(gateway: Gateway) -> None:
    got = gateway.chat(CLAUDE, stream=True)
    assert got.whole
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["provider"], entry["status"]) == ("anthropic", "ok")
    assert entry["prompt_tokens"] > 0
    assert entry["completion_tokens"] > 0
    assert entry["cost_usd"] > 0


@pytest.mark.parametrize(
    ("letter", "model", "header"),
    [("A", GPT, "x-request-id"), ("B", CLAUDE, "request-id")],
    ids=["openai", "anthropic"],
)
def test_ledger_entry_has_request_id_of_provider(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str, header: str
) -> None:
    fake = fakes[letter]
    wire: Any = openai_wire if letter == "A" else anthropic_wire
    whole = openai_wire.chat() if letter == "A" else anthropic_wire.message()
    headers = {header: 'req_"theirs"', "x-other-id": "other"}
    fake.plays(
        answer(200, whole, headers=headers),
        sse(wire.stream(), headers=headers),
        sse(wire.stream(), headers=headers),
        answer(400, wire.error(), headers=headers),
        answer(503, wire.error(), headers={header: "req_first"}),
        answer(200, whole, headers=headers),
        answer(200, whole),
        *[answer(200, whole, headers={header: value}) for value in ("x" * 129, "\u00fc", "")],
    )
    answers = [gateway.chat(model), gateway.chat(model, stream=True), gateway.message(model, stream=True)]
    answers += [gateway.chat(model) for _ in range(6)]
    ids = [entry_of(gateway, got.headers["x-request-id"])["upstream_request_id"] for got in answers]
    assert ids == ['req_"theirs"'] * 5 + [None] * 4
    assert not [got for got in answers if "theirs" in str(got.header_list)]


def test_ledger_fallback_is_billed_to_answering_model(start_gateway: StartGateway) -> None:
    env = {"PROVIDER_A_BASE_URL": f"http://127.0.0.1:{closed_port()}/v1"}
    gateway = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n', env=env)
    got = gateway.chat()
    assert got.status == 200
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["model_asked"], entry["model"], entry["provider"], entry["attempts"]) == (GPT, CLAUDE, "anthropic", 2)
    uncached = entry["prompt_tokens"] - entry["cached_tokens"]
    cost = uncached * 3 + entry["cached_tokens"] * 0.3 + entry["completion_tokens"] * 15
    assert entry["cost_usd"] == pytest.approx(cost / 1e6)


def test_ledger_failover_entry_lists_each_attempt(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    """Provider A fails twice, the second time with a rate limit. Provider B answers."""
    gateway = start_gateway(config=f'[routing]\nretries = 1\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.plays(answer(500, openai_wire.error("down")))
    provider_a.plays(answer(429, openai_wire.error("too many")))
    got = gateway.chat()
    assert (got.status, got.headers["x-svc-attempts"]) == (200, "3")
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["attempts"], entry["status"], entry["code"]) == (3, "ok", None)
    detail = entry["attempts_detail"]
    assert [list(attempt) for attempt in detail] == [["provider", "model", "outcome", "code", "ms", "connect_ms"]] * 3
    assert [tuple(attempt.values())[:4] for attempt in detail] == [
        ("openai", GPT, "error", "provider_error"),
        ("openai", GPT, "error", "rate_limit_exceeded"),
        ("anthropic", CLAUDE, "ok", None),
    ]
    assert all(0 < attempt["ms"] < entry["latency_ms"] for attempt in detail)
    admin = create(gateway, "--name", "boss", "--scope", "admin")
    assert gateway.request("GET", "/v1/admin/usage", key=admin["key"]).json["data"] == [entry]
    assert usage(gateway) == [entry]
    query = f"?request={entry['request_id']}"
    shown_alone = gateway.request("GET", f"/v1/usage{query}", key=gateway.key).json["data"]
    assert shown_alone == [{**entry, **{name: shown_alone[0][name] for name in ("cost_formula", "cost_terms")}}]
    assert gateway.request("GET", f"/v1/admin/usage{query}", key=admin["key"]).json["data"] == shown_alone
    other = create(gateway, "--name", "other")
    assert gateway.request("GET", f"/v1/usage{query}", key=other["key"]).json["data"] == []
    remote = {"SVC_API_KEY": admin["key"]}
    for place, env in (((), None), (("--gateway", gateway.url), remote)):
        one = ("usage", "--request", entry["request_id"], *place)
        assert json.loads(run(*one, "--json", home=gateway.home, env=env).stdout) == shown_alone[0]
        shown = run(*one, home=gateway.home, env=env).stdout
        assert entry["request_id"] in shown
        assert [line.split()[1] for line in shown.splitlines()[-3:]] == ["openai", "openai", "anthropic"]
        done = run("usage", "--request", "req_0", *place, home=gateway.home, env=env)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "no ledger entry of the request 'req_0'" in done.stderr


def test_ledger_single_attempt_over_an_open_connection_is_shown_but_not_logged(gateway: Gateway) -> None:
    gateway.chat()
    got = gateway.chat()
    entry = entry_of(gateway, got.headers["x-request-id"])
    attempt = {"provider": "openai", "model": GPT, "outcome": "ok", "code": None, "ms": entry["latency_ms"]}
    attempt["connect_ms"] = None
    assert entry["attempts_detail"] == [attempt]
    assert logged(gateway, got)["attempts_detail"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_ledger_attempt_with_a_new_connection_has_its_time(start_gateway: StartGateway, stream: bool) -> None:
    gateway = start_gateway()
    got = gateway.chat(stream=stream)
    (attempt,) = entry_of(gateway, got.headers["x-request-id"])["attempts_detail"]
    assert attempt["connect_ms"] > 0
    assert logged(gateway, got)["attempts_detail"] == [attempt]


@pytest.mark.parametrize("stream", [False, True])
def test_ledger_cache_write_tokens_have_own_price(gateway: Gateway, provider_b: FakeProvider, stream: bool) -> None:
    reported = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 100,
        "output_tokens": 3,
    }
    events = [
        anthropic_wire.event("message_start", message=anthropic_wire.message(usage=reported)),
        *anthropic_wire.block(0, anthropic_wire.text("Hi")),
        *anthropic_wire.closing(usage=reported),
    ]
    provider_b.plays(sse(events) if stream else answer(200, anthropic_wire.message(usage=reported)))
    got = gateway.chat(CLAUDE, stream=stream)
    entry = entry_of(gateway, got.headers["x-request-id"])
    tokens = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens")
    assert [entry[name] for name in tokens] == [125, 100, 20, 3, 0]
    assert entry["cost_usd"] == pytest.approx((5 * 3 + 100 * 0.3 + 20 * 3.75 + 3 * 15) / 1e6)
    assert [attempt["provider"] for attempt in entry["attempts_detail"]] == ["anthropic"]


def test_ledger_stream_whose_end_has_no_usage_is_estimated(gateway: Gateway, provider_b: FakeProvider) -> None:
    """The start event has the tokens of the prompt, but only the first token of the completion."""
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    events = [
        anthropic_wire.event(
            "message_start", message=anthropic_wire.message(usage={"input_tokens": 5, "output_tokens": 1})
        ),
        *anthropic_wire.block(0, anthropic_wire.text("The quick brown fox jumps over the lazy dog. " * 20)),
        anthropic_wire.event("message_delta", delta=stop),
        anthropic_wire.event("message_stop"),
    ]
    for send in (gateway.chat, gateway.message):
        provider_b.plays(sse(events))
        got = send(CLAUDE, stream=True)
        entry = entry_of(gateway, got.headers["x-request-id"])
        assert (entry["status"], entry["prompt_tokens"], entry["estimated"]) == ("ok", 5, True)
        assert 100 < entry["completion_tokens"] < 1000


def test_ledger_upstream_error_entry_has_no_tokens(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.always_plays(answer(400, {"error": {"message": "no"}}))
    got = gateway.chat()
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["http_status"], entry["attempts"]) == ("error", 400, 1)
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["cost_usd"]) == (None, None, None)
    (attempt,) = entry["attempts_detail"]
    assert (attempt["provider"], attempt["outcome"], attempt["code"]) == ("openai", "error", "invalid_request")


@pytest.mark.parametrize("tokens", [2**63, 10**400])
@pytest.mark.parametrize("stream", [False, True])
def test_ledger_token_count_out_of_range_is_recorded_as_zero(
    gateway: Gateway, provider_a: FakeProvider, tokens: int, stream: bool
) -> None:
    """A number that no database accepts must not block the entries after it."""
    reported = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    events = [
        *openai_wire.stream(usage=False, done=False),
        openai_wire.chunk(choices=[], usage=reported),
        openai_wire.DONE,
    ]
    provider_a.plays(sse(events) if stream else answer(200, openai_wire.chat(usage=reported)))
    got = gateway.chat(stream=stream)
    assert got.status == 200
    assert got.whole
    assert entry_of(gateway, got.headers["x-request-id"])["prompt_tokens"] == 0
    assert entry_of(gateway, gateway.chat().headers["x-request-id"])["prompt_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_ledger_reasoning_tokens_only_in_total_are_billed_as_output(
    gateway: Gateway, provider_a: FakeProvider, stream: bool
) -> None:
    reported = {"prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 402}
    events = [
        *openai_wire.stream(usage=False, done=False),
        openai_wire.chunk(choices=[], usage=reported),
        openai_wire.DONE,
    ]
    provider_a.plays(sse(events) if stream else answer(200, openai_wire.chat(usage=reported)))
    got = gateway.chat(stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    shown = json.loads(data_lines(got.body)[-2])["usage"] if stream else got.json["usage"]
    assert shown == reported
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (7, 395)
    assert entry["cost_usd"] == pytest.approx((7 * 0.15 + 395 * 0.6) / 1e6)


def test_ledger_request_without_attempt_has_no_entry(gateway: Gateway) -> None:
    refused = gateway.chat(temperature=9).headers["x-request-id"]
    entry_of(gateway, gateway.chat().headers["x-request-id"])
    rows = gateway.request("GET", "/v1/usage?limit=10000", key=gateway.key).json["data"]
    assert refused not in [row["request_id"] for row in rows]


def test_ledger_interrupted_stream_is_cut_and_estimated(gateway: Gateway, provider_a: FakeProvider) -> None:
    text = "one two three four five six seven eight nine ten"
    gate = Gate()  # a reset discards what the gateway has not read
    provider_a.plays(sse(openai_wire.stream(text)[:6], end=hold(gate) + reset()))
    request = {"model": GPT, "messages": HI, "stream": True}
    with gateway.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", request, key=gateway.key))
        raw.read_until(b"five")
        gate.open()
        got = raw.read()
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["http_status"], entry["estimated"]) == ("cut", 200, True)
    assert 2 <= entry["completion_tokens"] <= 20
    assert entry["cost_usd"] > 0


@pytest.mark.parametrize("model", [GPT, CLAUDE])
def test_ledger_client_disconnect_bills_received_tokens(
    gateway: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, model: str
) -> None:
    fake, wire = (provider_a, openai_wire) if model == GPT else (provider_b, anthropic_wire)
    events = wire.stream("a b c d e f g h i j k l m n o p")
    fake.plays(sse(events[:9], end=stall()))
    with gateway.raw() as raw:
        body = json.dumps({"model": model, "messages": HI, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        raw.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        got = raw.read_until(b"c")
        time.sleep(0.2)
        left = time.monotonic()
        raw.reset()
    assert fake.wait().wait_left() - left < 5
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["http_status"], entry["estimated"]) == ("client_closed", 499, True)
    assert [(each["outcome"], each["code"]) for each in entry["attempts_detail"]] == [("cancelled", None)]
    assert 1 <= entry["completion_tokens"] <= 20
    assert entry["prompt_tokens"] > 0
    assert entry["cost_usd"] > 0


def test_usage_key_sees_own_entries_and_admin_sees_all(gateway: Gateway) -> None:
    one = create(gateway, "--name", "one", "--tag", "team=crimson")
    two = create(gateway, "--name", "two")
    admin = create(gateway, "--name", "boss", "--scope", "chat,admin")
    body = {"model": GPT, "messages": HI}
    for made in (one, one, two):
        assert gateway.request("POST", "/v1/chat/completions", body, key=made["key"]).status == 200

    def ask(key: str, query: str = "") -> list[dict[str, Any]]:
        got = gateway.request("GET", f"/v1/usage{query}", key=key)
        assert got.json["object"] == "list"
        data: list[dict[str, Any]] = got.json["data"]
        return data

    until(lambda: [len(ask(made["key"])) for made in (one, two)] == [2, 1], 20)
    assert {row["key_id"] for row in ask(one["key"])} == {one["id"]}
    assert ask(one["key"])[0]["tags"] == {"team": "crimson"}
    assert [row["requests"] for row in ask(two["key"], "?by=model")] == [1]
    everything = {row["key"]: row for row in ask(admin["key"], "?by=key")}
    assert everything[one["id"]]["requests"] == 2
    assert everything[two["id"]]["key_name"] == "two"
    crimson = next(row for row in usage(gateway, "--by", "tag:team") if row["tag:team"] == "crimson")
    assert crimson["requests"] == 2
    assert set(crimson) == {"tag:team", "requests", "prompt_tokens", "completion_tokens", "cost_usd"}
    assert run("usage", "--by", "key", home=gateway.home).stdout.startswith("KEY")
    assert "two" in run("usage", "--since", "1h", home=gateway.home).stdout
    keys = json.loads(run("keys", "ls", "--json", home=gateway.home).stdout)
    assert next(row for row in keys if row["id"] == one["id"])["spent_usd"] > 0


def test_usage_command_selects_key_by_name_or_id(gateway: Gateway) -> None:
    shop = create(gateway, "--name", "the web shop")
    boss = create(gateway, "--name", "head", "--scope", "admin")
    body = {"model": GPT, "messages": HI}
    for secret in (shop["key"], gateway.key):
        got = gateway.request("POST", "/v1/chat/completions", body, key=secret)
        assert got.status == 200
    configured = entry_of(gateway, got.headers["x-request-id"])
    far = {"SVC_API_KEY": boss["key"]}
    for place, env in (((), None), (("--gateway", f"{gateway.url}/v1"), far)):
        for name, id in (
            ("the web shop", shop["id"]),
            (shop["id"], shop["id"]),
            (configured["key_name"], configured["key_id"]),
            (configured["key_id"], configured["key_id"]),
        ):
            done = run("usage", "--json", "--key", name, *place, home=gateway.home, env=env)
            assert {row["key_id"] for row in json.loads(done.stdout)} == {id}, done.stderr
        for name in ("the web", "key_0123456789abcdef", "env-0123456789ab", "../keys", ""):
            done = run("usage", "--key", name, *place, home=gateway.home, env=env)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"no key with the name or id {name!r}" in done.stderr
            assert done.stderr.endswith("See: svc keys ls\n")
    again = create(gateway, "--name", "the web shop")
    done = run("usage", "--key", "the web shop", home=gateway.home)
    assert (done.returncode, done.stdout) == (2, "")
    assert shop["id"] in done.stderr
    assert again["id"] in done.stderr


@pytest.mark.parametrize("query", ["by=nothing", "by=tag:", "since=soon", "limit=0", "limit=x", "limit=10001"])
def test_usage_invalid_query_returns_400_with_param(gateway: Gateway, query: str) -> None:
    got = gateway.request("GET", f"/v1/usage?{query}", key=gateway.key)
    assert (got.status, got.code) == (400, "invalid_request")
    assert got.json["error"]["param"] == query.partition("=")[0]


def test_usage_invalid_since_exits_2_and_missing_key_returns_401(gateway: Gateway) -> None:
    assert run("usage", "--since", "soon", home=gateway.home).returncode == 2
    assert gateway.request("GET", "/v1/usage", key=None).status == 401


def test_ledger_configured_price_is_used_and_unknown_price_is_null(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    models = '{ id = "priced", input_price = 1000.0, output_price = 2000.0 }, { id = "unpriced-model" }'
    config = (
        f'[[providers]]\nname = "own"\nbase_url = "{provider_a.address}/v1"\napi_key_env = "OWN"\nmodels = [{models}]\n'
    )
    gateway = start_gateway(config=config, env={"OWN": provider_a.key})
    entry = entry_of(gateway, gateway.chat("priced").headers["x-request-id"])
    assert entry["cost_usd"] == pytest.approx(entry["prompt_tokens"] * 1e-3 + entry["completion_tokens"] * 2e-3)
    assert entry_of(gateway, gateway.chat("unpriced-model").headers["x-request-id"])["cost_usd"] is None


def test_ledger_repeated_sigkill_loses_and_duplicates_no_entry(start_gateway: StartGateway) -> None:
    """Four times: clients send load, the process is killed, and is started again on the same state."""
    gateway = start_gateway()
    seen: set[str] = set()
    for _ in range(4):
        stop = threading.Event()
        threads = [
            threading.Thread(target=_send_load, args=(gateway, seen, stop, number % 2 == 0)) for number in range(6)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.6)
        os.kill(gateway.process.pid, signal.SIGKILL)
        stop.set()
        for thread in threads:
            thread.join(10)
        gateway.process.wait(5)
        gateway.start()
    until(lambda: seen <= {row["request_id"] for row in usage(gateway, "--limit", "10000")}, 20)
    rows = [row["request_id"] for row in usage(gateway, "--limit", "10000")]
    assert len(seen) > 100
    assert len(rows) == len(set(rows))
    assert not seen - set(rows)
    assert sum(row["requests"] for row in usage(gateway, "--by", "day")) == len(rows)


def _send_load(gateway: Gateway, seen: set[str], stop: threading.Event, stream: bool) -> None:
    while not stop.is_set():
        try:
            got = gateway.chat(stream=stream)
        except OSError:
            continue
        if got.whole and got.status == 200 and (not stream or b"[DONE]" in got.body):
            seen.add(got.headers["x-request-id"])


def test_usage_command_imports_journal_of_killed_gateway(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    ids = {gateway.chat().headers["x-request-id"] for _ in range(5)}
    os.kill(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait(5)
    assert {row["request_id"] for row in usage(gateway)} == ids
    assert list((gateway.home / "svc" / "journal").iterdir()) == []
    gateway.start()
