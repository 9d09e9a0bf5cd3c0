"""Rate limits, quotas and budgets as a client observes them."""

from __future__ import annotations

import json
import re
import threading
import time

import openai
import pytest

from tests.e2e.accounts.test_keys import create, until
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
    """Parse a duration such as `1m0.5s` or `45s`."""
    found = re.fullmatch(r"(?:(\d+)m)?([\d.]+)s", text)
    assert found, text
    return int(found[1] or 0) * 60 + float(found[2])


def test_rate_limit_reset_header_decreases_with_time(gateway: Gateway) -> None:
    made = create(gateway, "--name", "waiting", "--rpm", "1", "--tpm", "100000")
    first = ask(gateway, made["key"])
    time.sleep(1.1)
    later = ask(gateway, made["key"])
    assert (first.status, later.status) == (200, 429)
    for kind in ("requests", "tokens"):
        name = f"x-ratelimit-reset-{kind}"
        assert 1.0 < seconds(first.headers[name]) - seconds(later.headers[name]) < 3
    assert abs(int(later.headers["retry-after"]) - seconds(later.headers["x-ratelimit-reset-requests"])) <= 1


def test_tpm_request_with_n_choices_reserves_each_choice(gateway: Gateway) -> None:
    made = create(gateway, "--name", "many", "--tpm", "100000")
    one = ask(gateway, made["key"], max_tokens=1000)
    four = ask(gateway, made["key"], max_tokens=1000, n=4)
    left = [int(got.headers["x-ratelimit-remaining-tokens"]) for got in (one, four)]
    assert 3990 < left[0] - one.json["usage"]["total_tokens"] - left[1] + 1000 + 40 < 4100 + 1000
    got = ask(gateway, made["key"], max_tokens=1000, n=101)
    assert (got.status, got.json["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("limit", [("--tpm", "5000"), ("--budget-usd", "0.01")])
def test_limited_key_unbounded_output_returns_400(gateway: Gateway, limit: tuple[str, str]) -> None:
    key = create(gateway, "--name", "endless", *limit)["key"]
    for name in ("n_predict", "max_new_tokens"):
        got = ask(gateway, key, **{"max_tokens": 10, name: -1})
        assert (got.status, got.code, got.json["error"]["param"]) == (400, "invalid_request", name)


@pytest.mark.parametrize("name", ["n_predict", "max_new_tokens", "min_tokens"])
def test_limited_key_max_tokens_alias_is_reserved(gateway: Gateway, name: str) -> None:
    key = create(gateway, "--name", "names", "--tpm", "5000")["key"]
    got = ask(gateway, key, **{"max_tokens": 10, name: 6000})
    assert (got.status, got.code) == (400, "invalid_request")
    assert "may use 60" in got.json["error"]["message"]


def test_rpm_reached_returns_429_with_rate_limit_headers(gateway: Gateway, provider_a: FakeProvider) -> None:
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


LONG = [{"role": "user", "content": "x" * 40_000}, {"role": "nobody", "content": "Hi"}]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        ({"model": GPT, "messages": HI, "temperature": 7}, {}, 400),
        ({"model": GPT, "messages": LONG}, {}, 400),
        ({"model": "no-such-model", "messages": HI}, {}, 404),
        ({"model": GPT, "messages": HI}, {"content-type": "multipart/form-data; boundary=x"}, 400),
        ({"model": GPT, "messages": HI}, {"content-encoding": "gzip"}, 400),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_rpm_malformed_requests_count(
    gateway: Gateway, path: str, body: object, headers: dict[str, str], status: int
) -> None:
    made = create(gateway, "--name", "careless", "--rpm", "5", "--tpm", "100000")
    if isinstance(body, dict):
        body = {**body, "max_tokens": 5}
    got = [gateway.request("POST", path, body, key=made["key"], headers=headers) for _ in range(8)]
    assert [each.status for each in got] == [status] * 5 + [429] * 3
    assert [each.headers["x-ratelimit-remaining-requests"] for each in got[:5]] == ["4", "3", "2", "1", "0"]
    assert ask(gateway, made["key"]).status == 429


def test_rpm_request_rejected_for_concurrency_counts(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = create(gateway, "--name", "both", "--rpm", "3", "--concurrency", "1")
    gate = Gate()
    provider_a.plays(hold(gate) + answer(400, b"{}"))
    thread = threading.Thread(target=ask, args=(gateway, made["key"]))
    thread.start()
    gate.reached()
    messages = [ask(gateway, made["key"]).json["error"]["message"] for _ in range(3)]
    gate.open()
    thread.join(10)
    assert ["(concurrency)" in message for message in messages] == [True, True, False]
    assert "(rpm)" in messages[2]


def test_rpm_body_too_large_counts(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nmax_body = 1\n")
    made = create(gateway, "--name", "large", "--rpm", "2")
    assert ask(gateway, made["key"]).status == 200
    body = {"model": GPT, "messages": [{"role": "user", "content": "x" * 1_100_000}]}
    assert gateway.request("POST", "/v1/chat/completions", body, key=made["key"]).status == 413
    assert ask(gateway, made["key"]).status == 429


def test_rpm_requests_to_other_endpoints_do_not_count(gateway: Gateway) -> None:
    made = create(gateway, "--name", "reader", "--rpm", "1")
    assert gateway.request("GET", "/v1/models", key=made["key"]).status == 200
    assert gateway.request("POST", "/v1/nothing", {}, key=made["key"]).status == 404
    assert ask(gateway, made["key"]).status == 200
    assert ask(gateway, made["key"]).status == 429


def test_tpm_reservation_is_settled_with_actual_usage(gateway: Gateway, provider_a: FakeProvider) -> None:
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


def test_limits_request_larger_than_limit_returns_400(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = create(gateway, "--name", "tiny", "--tpm", "100", "--budget-usd", "0.001")
    got = ask(gateway, made["key"], max_tokens=200)
    assert (got.status, got.code) == (400, "invalid_request")
    assert got.json["error"]["param"] == "max_tokens"
    got = gateway.request("POST", "/v1/responses", {"model": GPT, "input": "Hi"}, key=made["key"])
    assert (got.status, got.json["error"]["param"]) == (400, "max_output_tokens")
    assert "max_output_tokens" in got.json["error"]["message"]
    rich = create(gateway, "--name", "poor", "--budget-usd", "0.000001")
    assert ask(gateway, rich["key"], max_tokens=200).status == 400
    assert provider_a.requests == []


def test_concurrency_limit_reached_returns_429_until_client_disconnects(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
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
        one.reset()  # a disconnected client frees its slot
        until(lambda: ask(gateway, made["key"]).status == 200, 20)
    for gate in gates:
        gate.open()


def test_budget_spent_is_enforced_after_restart(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    made = create(gateway, "--name", "spender", "--budget-usd", "0.0001", "--budget-period", "day")
    statuses = []
    for _ in range(30):
        got = ask(gateway, made["key"], max_tokens=100)
        statuses.append(got.status)
        if got.status == 429:
            break
    assert set(statuses) == {200, 429}
    assert "budget" in got.json["error"]["message"]
    time.sleep(1)
    rows = json.loads(run("keys", "ls", "--json", home=gateway.home).stdout)
    spent = rows[0]["spent_usd"]
    assert 0.00003 < spent <= 0.0001
    assert gateway.stop() == 0
    gateway.start()
    assert ask(gateway, made["key"], max_tokens=100).status == 429
    assert ask(gateway, made["key"], max_tokens=1).status == 200


def refusal_lines(gateway: Gateway, count: int) -> list[dict[str, object]]:
    """The access-log lines with status 429, once there are `count`."""

    def found() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("http_status") == 429]

    until(lambda: len(found()) >= count, 20)
    return found()


def test_budget_total_spent_returns_insufficient_quota(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    made = create(gateway, "--name", "broke", "--budget-usd", "0.00007")
    until(lambda: ask(gateway, made["key"], max_tokens=100).status == 429, 20)
    got = ask(gateway, made["key"], max_tokens=100)
    assert got.json["error"]["type"] == "insufficient_quota"
    assert got.code == "rate_limit_exceeded"
    assert got.headers["x-should-retry"] == "false"
    assert "retry-after" not in got.headers
    body = {"model": GPT, "messages": HI, "max_tokens": 100}
    message = gateway.request("POST", "/v1/messages", body, key=made["key"])
    assert (message.status, message.json["error"]["type"]) == (429, "rate_limit_error")
    assert message.headers["x-should-retry"] == "false"


def test_budget_total_spent_openai_client_does_not_retry(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    made = create(gateway, "--name", "broke", "--budget-usd", "0.00007")
    until(lambda: ask(gateway, made["key"], max_tokens=100).status == 429, 20)
    before = len(refusal_lines(gateway, 1))
    with (
        gateway.openai(api_key=made["key"], max_retries=2) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.chat.completions.create(model=GPT, messages=HI, max_tokens=100)
    assert caught.value.type == "insufficient_quota"
    time.sleep(0.6)  # a retry would be in the log by now
    assert len(refusal_lines(gateway, before + 1)) == before + 1


def test_limits_429_names_limit_in_message_log_and_metrics(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config="[routing]\nretries = 0\n")
    keys = {
        "rpm": create(gateway, "--name", "a", "--rpm", "1"),
        "tpm": create(gateway, "--name", "b", "--tpm", "200"),
        "concurrency": create(gateway, "--name", "c", "--concurrency", "1"),
        "budget": create(gateway, "--name", "d", "--budget-usd", "0.00007"),
        "upstream": create(gateway, "--name", "e"),
    }
    messages: dict[str, str] = {}
    for limit in ("rpm", "tpm", "budget"):
        until(lambda limit=limit: ask(gateway, keys[limit]["key"], max_tokens=100).status == 429, 20)
        messages[limit] = ask(gateway, keys[limit]["key"], max_tokens=100).json["error"]["message"]
    gate = Gate()
    provider_a.plays(hold(gate) + answer(500, b"{}"))
    thread = threading.Thread(target=ask, args=(gateway, keys["concurrency"]["key"]))
    thread.start()
    gate.reached()
    messages["concurrency"] = ask(gateway, keys["concurrency"]["key"]).json["error"]["message"]
    gate.open()
    thread.join(10)
    provider_a.plays(answer(429, b"{}"))
    messages["upstream"] = ask(gateway, keys["upstream"]["key"]).json["error"]["message"]
    assert all(f"({limit})" in message for limit, message in messages.items()), messages
    lines = refusal_lines(gateway, 8)
    assert {line["key_id"]: line["limit"] for line in lines} == {keys[limit]["id"]: limit for limit in keys}
    page = gateway.request("GET", "/metrics", key=None).body.decode()
    for limit in keys:
        count = sum(line["limit"] == limit for line in lines)
        assert f'svc_limits_reached_total{{limit="{limit}"}} {count}\n' in page


def test_limits_default_applies_to_keys_without_own_limit(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[limits]\nrpm = 2\n")
    assert [gateway.chat().status for _ in range(3)] == [200, 200, 429]
    made = create(gateway, "--name", "own", "--rpm", "3")
    assert [ask(gateway, made["key"]).status for _ in range(4)] == [200, 200, 200, 429]


def test_limits_messages_endpoint_returns_anthropic_error(gateway: Gateway) -> None:
    made = create(gateway, "--name", "messages", "--rpm", "1")
    body = {"model": "claude-3-5-sonnet-20241022", "messages": HI, "max_tokens": 5}
    assert gateway.request("POST", "/v1/messages", body, key=made["key"]).status == 200
    got = gateway.request("POST", "/v1/messages", body, key=made["key"])
    assert got.status == 429
    assert got.json["type"] == "error"
    assert got.json["error"]["type"] == "rate_limit_error"


def test_rpm_parallel_requests_never_exceed_limit(gateway: Gateway) -> None:
    made = create(gateway, "--name", "hammered", "--rpm", "50")
    statuses: list[int] = []

    def hammer() -> None:
        with gateway.raw() as raw:
            for _ in range(20):
                got = raw.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=made["key"])
                statuses.append(got.status)

    threads = [threading.Thread(target=hammer) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert statuses.count(200) == 50
    assert statuses.count(429) == 150


def test_tpm_model_without_output_limit_reserves_share_of_key_limit(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    config = f"""
        [[providers]]
        name = "vllm"
        base_url = "{provider_a.address}/v1"
        api_key_env = "VLLM_API_KEY"
        models = [{{ id = "unlimited" }}]
    """
    gateway = start_gateway(config=config, env={"VLLM_API_KEY": provider_a.key})
    made = create(gateway, "--name", "small", "--tpm", "500")
    (row,) = (row for row in gateway.request("GET", "/v1/models").json["data"] if row["id"] == "unlimited")
    assert row["max_output_tokens"] is None
    statuses = [ask(gateway, made["key"], model="unlimited").status for _ in range(5)]
    assert statuses == [200] * 5
    assert "max_tokens" not in provider_a.wait().json
    before = int(ask(gateway, made["key"], model="unlimited").headers["x-ratelimit-remaining-tokens"])
    gate = Gate()
    provider_a.plays(hold(gate) + answer(400, b"{}"))
    thread = threading.Thread(target=ask, args=(gateway, made["key"]), kwargs={"model": "unlimited"})
    thread.start()
    gate.reached()
    during = int(ask(gateway, made["key"], model="unlimited").headers["x-ratelimit-remaining-tokens"])
    assert 50 <= before - during <= 150  # a tenth of the limit is reserved for the response
    gate.open()
    thread.join(10)
