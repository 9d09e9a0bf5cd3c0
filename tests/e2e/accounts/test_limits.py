"""Limits and budgets, as a client meets them."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway, run
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold


@pytest.fixture
def gateway(shared_gateway: Gateway, fakes: object) -> Gateway:
    return shared_gateway


def ask(gateway: Gateway, key: str, **fields: object) -> Got:
    body = {"model": GPT, "messages": HI, **fields}
    return gateway.request("POST", "/v1/chat/completions", body, key=key)


def seconds(text: str) -> float:
    """`1m0.5s`, `45s`."""
    found = re.fullmatch(r"(?:(\d+)m)?([\d.]+)s", text)
    assert found, text
    return int(found[1] or 0) * 60 + float(found[2])


def test_the_reset_is_the_truth(gateway: Gateway) -> None:
    made = create(gateway, "--name", "waiting", "--rpm", "1", "--tpm", "100000")
    first = ask(gateway, made["key"])
    time.sleep(1.1)
    later = ask(gateway, made["key"])
    assert (first.status, later.status) == (200, 429)
    for kind in ("requests", "tokens"):
        name = f"x-ratelimit-reset-{kind}"
        assert 1.0 < seconds(first.headers[name]) - seconds(later.headers[name]) < 3
    assert abs(int(later.headers["retry-after"]) - seconds(later.headers["x-ratelimit-reset-requests"])) <= 1


def test_several_answers_are_reserved(gateway: Gateway) -> None:
    made = create(gateway, "--name", "many", "--tpm", "100000")
    one = ask(gateway, made["key"], max_tokens=1000)
    four = ask(gateway, made["key"], max_tokens=1000, n=4)
    left = [int(got.headers["x-ratelimit-remaining-tokens"]) for got in (one, four)]
    assert 3990 < left[0] - one.json["usage"]["total_tokens"] - left[1] + 1000 + 40 < 4100 + 1000
    got = ask(gateway, made["key"], max_tokens=1000, n=101)
    assert (got.status, got.json["error"]["param"]) == (400, "max_tokens")


def test_requests_a_minute(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = create(gateway, "--name", "slow", "--rpm", "3")
    got = [ask(gateway, made["key"]) for _ in range(5)]
    assert [each.status for each in got] == [200, 200, 200, 429, 429]
    assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == ["2", "1", "0", "0", "0"]
    assert {each.headers["x-ratelimit-limit-requests"] for each in got} == {"3"}
    assert 60 <= seconds(got[0].headers["x-ratelimit-reset-requests"]) <= 61
    assert 50 <= seconds(got[3].headers["x-ratelimit-reset-requests"]) <= 61
    assert got[3].code == "rate_limit_exceeded"
    assert 55 <= int(got[3].headers["retry-after"]) <= 61
    assert "x-should-retry" not in got[3].headers
    assert "x-svc-attempts" not in got[3].headers
    assert len(provider_a.requests) == 3


def test_what_does_not_reach_a_model_does_not_count(gateway: Gateway) -> None:
    made = create(gateway, "--name", "careful", "--rpm", "1")
    assert gateway.request("GET", "/v1/models", key=made["key"]).status == 200
    assert ask(gateway, made["key"], temperature=7).status == 400
    assert chat(gateway, made["key"], "no-such-model") == 404
    assert ask(gateway, made["key"]).status == 200
    assert ask(gateway, made["key"]).status == 429


def test_tokens_a_minute_are_reserved_and_settled(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = create(gateway, "--name", "short", "--tpm", "1000")
    first = ask(gateway, made["key"], max_tokens=600)
    assert first.status == 200
    reserved = 1000 - int(first.headers["x-ratelimit-remaining-tokens"])
    assert 600 < reserved < 640
    used = first.json["usage"]["total_tokens"]
    second = ask(gateway, made["key"], max_tokens=600)
    assert second.status == 200
    assert abs((1000 - int(second.headers["x-ratelimit-remaining-tokens"])) - (reserved + used)) <= 1
    gate = Gate()
    provider_a.plays(hold(gate) + answer(400, b"{}"))
    thread = threading.Thread(target=ask, args=(gateway, made["key"]), kwargs={"max_tokens": 800})
    thread.start()
    gate.reached()
    assert ask(gateway, made["key"], max_tokens=600).status == 429
    gate.open()
    thread.join(10)


def test_a_request_that_can_never_be_let_through(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = create(gateway, "--name", "tiny", "--tpm", "100", "--budget-usd", "0.001")
    got = ask(gateway, made["key"], max_tokens=200)
    assert (got.status, got.code) == (400, "invalid_request")
    assert got.json["error"]["param"] == "max_tokens"
    rich = create(gateway, "--name", "poor", "--budget-usd", "0.000001")
    assert ask(gateway, rich["key"], max_tokens=200).status == 400
    assert provider_a.requests == []


def test_concurrency(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = create(gateway, "--name", "narrow", "--concurrency", "2")
    gates = [Gate(), Gate()]
    provider_a.plays(*(hold(gate) + answer(500, b"{}") for gate in gates))
    with gateway.raw() as one, gateway.raw() as two:
        for raw, gate in ((one, gates[0]), (two, gates[1])):
            body = json.dumps({"model": GPT, "messages": HI}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {made['key']}\r\n"
            raw.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            gate.reached()
        assert ask(gateway, made["key"]).status == 429
        one.reset()  # a client that leaves frees its place
        until(lambda: ask(gateway, made["key"]).status == 200, 1.0)
    for gate in gates:
        gate.open()


def test_a_budget_is_kept_and_seen_after_a_restart(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    made = create(gateway, "--name", "spender", "--budget-usd", "0.0001", "--budget-period", "day")
    statuses = []
    for _ in range(30):
        got = ask(gateway, made["key"], max_tokens=100)
        statuses.append(got.status)
        if got.status == 429:
            break
    assert set(statuses) == {200, 429}
    assert 1 <= int(got.headers["retry-after"]) <= 120
    assert "budget" in got.json["error"]["message"]
    time.sleep(1)
    rows = json.loads(run("keys", "ls", "--json", home=gateway.home).stdout)
    spent = rows[0]["spent_usd"]
    assert 0.00003 < spent <= 0.0001
    assert gateway.stop() == 0
    gateway.start()
    assert ask(gateway, made["key"], max_tokens=100).status == 429
    assert ask(gateway, made["key"], max_tokens=1).status == 200


def test_limits_for_keys_that_carry_none(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[limits]\nrpm = 2\n")
    assert [gateway.chat().status for _ in range(3)] == [200, 200, 429]
    made = create(gateway, "--name", "own", "--rpm", "3")
    assert [ask(gateway, made["key"]).status for _ in range(4)] == [200, 200, 200, 429]


def test_anthropic_clients_get_their_shape(gateway: Gateway) -> None:
    made = create(gateway, "--name", "messages", "--rpm", "1")
    body = {"model": "claude-3-5-sonnet-20241022", "messages": HI, "max_tokens": 5}
    assert gateway.request("POST", "/v1/messages", body, key=made["key"]).status == 200
    got = gateway.request("POST", "/v1/messages", body, key=made["key"])
    assert got.status == 429
    assert got.json["type"] == "error"
    assert got.json["error"]["type"] == "rate_limit_error"


def test_many_at_once_get_no_more_than_the_limit(gateway: Gateway) -> None:
    made = create(gateway, "--name", "hammered", "--rpm", "50")
    through: list[int] = []

    def hammer() -> None:
        with gateway.raw() as raw:
            for _ in range(20):
                got = raw.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=made["key"])
                through.append(got.status)

    threads = [threading.Thread(target=hammer) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert through.count(200) == 50
    assert through.count(429) == 150
