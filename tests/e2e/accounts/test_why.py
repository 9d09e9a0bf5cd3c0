"""Why a request got 429 or was slow, by its x-request-id alone: the command, the API, and after a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway, run
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold, pause


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


def why(gateway: Gateway, id: str) -> dict[str, Any]:
    """Return the explanation of the command, which is also that of the API."""
    done = run("why", id, "--json", home=gateway.home)
    assert done.returncode == 0, done.stderr
    explanation: dict[str, Any] = json.loads(done.stdout)
    return explanation


def refuse(gateway: Gateway, key: str, **fields: Any) -> str:
    """Send a request that gets 429, and return its id."""
    body = {"model": GPT, "messages": HI, **fields}
    got = gateway.request("POST", "/v1/chat/completions", body, key=key)
    assert got.status == 429, got.body
    return got.headers["x-request-id"]


def test_why_429_names_limit_use_refill_and_command(gateway: Gateway) -> None:
    admin, made = Admin(gateway), create(gateway, "--name", "tight", "--rpm", "2")
    assert [chat(gateway, made["key"]) for _ in range(2)] == [200, 200]
    id = refuse(gateway, made["key"])
    until(lambda: [each["requests"] for each in why(gateway, id)["consumers"]] == [2], 20.0)
    told = why(gateway, id)
    limit = told["limit"]
    assert (limit["name"], limit["scope_id"], limit["size"], limit["used"]) == ("rpm", made["id"], 2, 2)
    assert 0 < limit["refill_seconds"] <= 61
    assert f"The limit of key {made['id']} is 2 requests per minute (rpm)" in told["why"]
    assert [(each["model"], each["requests"]) for each in told["consumers"]] == [(GPT, 2)]
    assert told["command"] == f"svc keys change {made['id']} --rpm 4"
    path = f"/v1/requests/{id}/explanation"
    assert admin("GET", path, at="/v1/requests/{id}/explanation").json == told
    assert gateway.request("GET", path, key=made["key"]).json == told
    assert gateway.request("GET", path, key=create(gateway, "--name", "other")["key"]).status == 404
    assert run(*told["command"].split()[1:], home=gateway.home).returncode == 0
    until(lambda: chat(gateway, made["key"]) == 200, 20.0)
    shown = run("why", id, home=gateway.home).stdout
    assert told["why"] in shown
    assert told["command"] in shown


def test_why_429_of_tokens_and_of_a_budget(gateway: Gateway) -> None:
    made = create(gateway, "--name", "small", "--tpm", "1000")
    id = next(refused for _ in range(20) if (refused := _send_until_refused(gateway, made["key"])))
    told = why(gateway, id)
    assert (told["limit"]["name"], told["limit"]["size"], told["limit"]["unit"]) == ("tpm", 1000, "tokens")
    assert told["limit"]["used"] + told["limit"]["requested"] > 1000
    poor = create(gateway, "--name", "poor", "--budget-usd", "0.0001", "--budget-period", "month")
    id = next(refused for _ in range(20) if (refused := _send_until_refused(gateway, poor["key"], 1)))
    told = why(gateway, id)
    assert (told["limit"]["name"], told["limit"]["period"], told["limit"]["unit"]) == ("budget", "month", "USD")
    assert told["limit"]["refill_seconds"] > 0
    assert told["command"].startswith(f"svc keys change {poor['id']} --budget-usd ")


def _send_until_refused(gateway: Gateway, key: str, max_tokens: int = 900) -> str:
    body = {"model": GPT, "messages": HI, "max_tokens": max_tokens}
    got = gateway.request("POST", "/v1/chat/completions", body, key=key)
    return got.headers["x-request-id"] if got.status == 429 else ""


def test_why_429_of_concurrency_names_the_running_request(gateway: Gateway, fakes: Mapping[str, FakeProvider]) -> None:
    made, gate = create(gateway, "--name", "single", "--concurrency", "1"), Gate()
    fakes["A"].plays(hold(gate) + answer(200, openai_wire.chat("Hi")))
    statuses: list[int] = []
    running = threading.Thread(target=lambda: statuses.append(chat(gateway, made["key"])))
    running.start()
    gate.reached(20)
    id = refuse(gateway, made["key"])
    gate.open()
    running.join()
    assert statuses == [200]
    until(lambda: len(why(gateway, id)["consumers"]) == 1, 20.0)
    told = why(gateway, id)
    assert (told["limit"]["name"], told["limit"]["running"], told["consumers"][0]["running"]) == ("concurrency", 1, 1)
    assert told["limit"]["refill_seconds"] is None


def test_why_works_after_a_restart_and_for_configured_keys(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[limits]\nrpm = 1\n")
    assert gateway.chat().status == 200
    id = refuse(gateway, gateway.key)
    gateway.stop()
    told = why(gateway, id)
    assert "from [limits] in svc.toml," in told["why"]
    assert told["command"] is None
    assert "raise rpm in [limits] of svc.toml" in told["action"]
    missing = run("why", "req_0123456789abcdef", home=gateway.home)
    assert (missing.returncode, "There is no request" in missing.stderr) == (1, True)
    gateway.start()


def test_why_slow_compares_with_the_median_and_shows_each_attempt(
    gateway: Gateway, fakes: Mapping[str, FakeProvider]
) -> None:
    made = create(gateway, "--name", "slow")
    for _ in range(8):
        assert chat(gateway, made["key"]) == 200
    fakes["A"].plays(answer(500, b"{}"), pause(1.0) + answer(200, openai_wire.chat("Hi")))
    got = gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=made["key"])
    assert got.status == 200
    id = got.headers["x-request-id"]
    until(lambda: (why(gateway, id)["timing"]["provider_p50"] or {}).get("requests", 0) >= 8, 20.0)
    told = why(gateway, id)
    timing = told["timing"]
    assert [each["outcome"] for each in timing["attempts"]] == ["error", "ok"]
    assert timing["is_slow"]
    assert timing["provider_p50"]["requests"] >= 8
    assert timing["provider_p50"]["latency_ms"] < timing["latency_ms"]
    phases = {phase["name"]: phase["ms"] for phase in timing["phases"]}
    assert sum(phases.values()) == pytest.approx(timing["latency_ms"], abs=1)
    assert phases["first_byte"] >= 1000
    assert "until the first byte of openai. That is late for this provider." in told["why"]
    shown = run("why", id, home=gateway.home).stdout
    assert "PROVIDER P50" in shown
    assert "provider_error" in shown
