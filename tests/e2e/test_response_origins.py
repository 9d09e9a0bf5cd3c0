"""`previous_response_id` of a native response goes to the account that made it, stored by the gateway or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Nodes, StartGateway
from tests.e2e.harness import KEY, Gateway
from tests.fakes import responses_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.redis_server import RedisServer
from tests.fakes.script import answer, sse, stall

OTHER_KEY = "test-client-key-2"
OWN = """
[[providers]]
name = "vendor"
base_url = "{a}/v1"
api_key_env = "PROVIDER_A_API_KEY"
responses = true
models = [{{ id = "shared" }}]
"""
ACCOUNT_C = '{{ base_url = "{c}/v1", api_key_env = "PROVIDER_C_API_KEY" }}'
OTHER_ACCOUNT_A = '{{ base_url = "{a}/v1", api_key_env = "PROVIDER_A_API_KEY", weight = 0.1 }}'


def configure(fakes: dict[str, FakeProvider], *accounts: str) -> str:
    template = f"{OWN}accounts = [{', '.join(accounts)}]\n"
    return template.format(**{letter.lower(): fake.address for letter, fake in fakes.items()})


def play_ids(fakes: dict[str, FakeProvider], *, stream: bool = False) -> None:
    for letter, fake in fakes.items():
        events = responses_wire.stream("eins")
        named = [event.replace(responses_wire.ID.encode(), f"resp_{letter}".encode()) for event in events]
        fake.always_plays(sse(named) if stream else answer(200, responses_wire.response(id=f"resp_{letter}")))


def create(gateway: Gateway, **fields: Any) -> None:
    got = gateway.request("POST", "/v1/responses", {"model": "shared", "input": "Hi", **fields})
    assert got.status == 200, got.body


def create_until(gateway: Gateway, fake: FakeProvider, **fields: Any) -> None:
    """Create responses until this account made one. Accounts are chosen by chance."""
    for _ in range(60):
        create(gateway, **fields)
        if fake.requests:
            return
    raise AssertionError("the account got no request")


def continued_at(gateway: Gateway, fakes: dict[str, FakeProvider], response_id: str, **fields: Any) -> set[str]:
    """Return the accounts that get requests that continue a response."""
    for _ in range(6):
        create(gateway, previous_response_id=response_id, **fields)
    return {
        letter
        for letter, fake in fakes.items()
        if any(request.json.get("previous_response_id") == response_id for request in fake.requests)
    }


@pytest.mark.parametrize("stream", [False, True])
def test_response_without_store_is_continued_at_its_account(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider], stream: bool
) -> None:
    play_ids(fakes, stream=stream)
    gateway = start_gateway(config=configure(fakes, ACCOUNT_C))
    create_until(gateway, fakes["C"], stream=stream)
    assert continued_at(gateway, fakes, "resp_C", stream=stream) == {"C"}
    assert continued_at(gateway, fakes, "resp_unknown", stream=stream) == {"A"}


def test_response_whose_client_left_belongs_to_its_key(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(env={"SVC_API_KEYS": f"{KEY},{OTHER_KEY}"}, config=OWN.format(a=provider_a.address))
    provider_a.plays(sse(responses_wire.stream("eins zwei")[:5], end=stall()))
    body = json.dumps({"model": "shared", "input": "Hi", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    with gateway.raw() as raw:
        raw.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        raw.read_until(b"eins")
        raw.reset()
    gateway.logged("client_closed")
    provider_a.always_plays(answer(200, responses_wire.response()))
    continuing = {"model": "shared", "input": "Hi", "previous_response_id": responses_wire.ID}
    statuses = [gateway.request("POST", "/v1/responses", continuing, key=key).status for key in (OTHER_KEY, KEY)]
    assert statuses == [404, 200]


def test_stored_response_is_continued_at_its_account_after_accounts_are_reordered(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider]
) -> None:
    play_ids(fakes)
    gateway = start_gateway(config="[responses]\nstore = true\n" + configure(fakes, ACCOUNT_C, OTHER_ACCOUNT_A))
    create_until(gateway, fakes["C"])
    gateway.stop()
    reordered = configure(fakes, OTHER_ACCOUNT_A, ACCOUNT_C)
    (gateway.home / "given.toml").write_text("[responses]\nstore = true\n" + reordered, encoding="utf-8")
    gateway.start()
    assert continued_at(gateway, fakes, "resp_C") == {"C"}


def test_response_without_store_is_continued_at_its_account_by_another_node(
    nodes: Nodes, fakes: dict[str, FakeProvider], redis: RedisServer
) -> None:
    play_ids(fakes)
    first, second = nodes(configure(fakes, ACCOUNT_C)), nodes(configure(fakes, ACCOUNT_C))
    create_until(first, fakes["C"])
    # A slow reply of Redis is not waited for, but remembered: the first request may go to another account.
    assert "C" in continued_at(second, fakes, "resp_C")
    assert fakes["C"].requests[-1].json.get("previous_response_id") == "resp_C"
