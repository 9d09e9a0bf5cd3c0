"""Several providers with the same model: which one a request tries first, and what a failing one means for clients."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import pytest

from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import HI, KEY, Gateway
from tests.e2e.reading import complete_chunks, text_of
from tests.e2e.test_reload import reload, write
from tests.fakes import openai_wire
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, body, end, hold, pause, sse, stall

MODEL = "shared-model"
OK = answer(200, openai_wire.chat())
DOWN = answer(500, openai_wire.error("down"))


@pytest.fixture
def east(provider_a: FakeProvider) -> FakeProvider:
    return provider_a


@pytest.fixture
def west(provider_c: FakeProvider) -> FakeProvider:
    return provider_c


def two_providers(east: FakeProvider, west: FakeProvider, *, east_price: float = 1, west_price: float = 1) -> str:
    return "".join(
        f"""
[[providers]]
name = "{name}"
base_url = "{fake.address}/v1"
api_key_env = "{name.upper()}_KEY"
models = [{{ id = "{MODEL}", input_price = {price}, output_price = {price} }}]
"""
        for name, fake, price in (("east", east, east_price), ("west", west, west_price))
    )


@pytest.fixture
def start(start_gateway: StartGateway, east: FakeProvider, west: FakeProvider) -> StartGateway:
    def start(routing: str, **prices: float) -> Gateway:
        env = {"EAST_KEY": east.key, "WEST_KEY": west.key}
        return start_gateway(config=routing + two_providers(east, west, **prices), env=env)

    return start


def chosen(got: Got) -> str:
    return got.headers["x-svc-provider"]


@pytest.mark.parametrize("strategy", ["order", "weighted", "least_busy", "cheapest"])
def test_strategy_one_of_two_providers_fails_half_of_its_requests_no_client_sees_an_error(
    start: StartGateway, east: FakeProvider, strategy: str
) -> None:
    gateway = start(f'[routing]\nretries = 0\nstrategy = "{strategy}"\n')
    east.plays(*islice(cycle([DOWN, OK]), 60))
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda number: gateway.chat(MODEL, stream=number % 2 > 0), range(60)))
    assert {got.status for got in responses} == {200}
    assert all(text_of(complete_chunks(got.body)) for got in responses[1::2])
    assert {chosen(got) for got in responses} >= {"west"}


def test_least_busy_request_goes_to_the_provider_without_requests_in_flight(
    start: StartGateway, east: FakeProvider, west: FakeProvider
) -> None:
    gateway = start('[routing]\nstrategy = "least_busy"\n')
    gate = Gate()
    first, *rest = openai_wire.stream()
    east.plays(sse([first], end=hold(gate) + body(b"".join(rest)) + end()))
    reader = threading.Thread(target=lambda: gateway.chat(MODEL, stream=True))
    reader.start()
    gate.reached()
    assert [chosen(gateway.chat(MODEL)) for _ in range(3)] == ["west"] * 3
    gate.open()
    reader.join(10)
    west.plays(pause(0.2) + OK)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(gateway.chat, MODEL)
        until(lambda: len(west.requests) + len(east.requests) == 5, 20)
        other = gateway.chat(MODEL)
    assert chosen(other) != chosen(slow.result())


def test_least_busy_request_of_a_disconnected_client_is_no_longer_in_flight(
    start: StartGateway, east: FakeProvider, west: FakeProvider
) -> None:
    gateway = start('[routing]\nstrategy = "least_busy"\n')
    for number in range(1, 4):
        east.plays(stall())
        with gateway.raw() as raw:
            raw.send(request_bytes("POST", "/v1/chat/completions", {"model": MODEL, "messages": HI}, key=KEY))
            until(lambda number=number: len(east.requests) == number, 20)
        east.requests[-1].wait_left()
    assert west.requests == []


def test_least_busy_twice_as_slow_provider_gets_the_smaller_share(
    start: StartGateway, east: FakeProvider, west: FakeProvider
) -> None:
    gateway = start('[routing]\nstrategy = "least_busy"\n')
    east.always_plays(pause(0.1) + OK)
    west.always_plays(pause(0.05) + OK)
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda _: gateway.chat(MODEL), range(40)))
    assert Counter(map(chosen, responses))["west"] >= 22, "more than half, so that the median is that of the faster one"


def test_cheapest_price_decides_and_the_next_one_follows_on_failure(
    start: StartGateway, east: FakeProvider, west: FakeProvider
) -> None:
    gateway = start(f'[routing.strategies]\n"{MODEL}" = "cheapest"\n', east_price=2)
    assert chosen(gateway.chat(MODEL)) == "west"
    west.always_plays(answer(401, openai_wire.error("no")))
    got = gateway.chat(MODEL)
    assert (chosen(got), got.headers["x-svc-attempts"]) == ("east", "2")

    def providers() -> list[str]:
        return [entry["provider"] for entry in gateway.request("GET", "/v1/usage").json["data"]]

    until(lambda: len(providers()) == 2, 20)
    assert providers() == ["east", "west"]


def test_weighted_open_breaker_gets_no_request(start: StartGateway, east: FakeProvider) -> None:
    weights = f'[routing.weights."{MODEL}"]\neast = 1000\n'
    gateway = start(f'[routing]\nstrategy = "weighted"\nretries = 0\n{weights}')
    east.always_plays(DOWN)
    for _ in range(25):
        assert gateway.chat(MODEL).status == 200
    assert "breaker of east/shared-model: closed -> open" in gateway.logged("closed -> open")
    count = len(east.requests)
    responses = Counter((chosen(got), got.headers["x-svc-attempts"]) for got in (gateway.chat(MODEL) for _ in range(5)))
    assert responses == {("west", "1"): 5}
    assert len(east.requests) == count


def test_strategy_changes_at_a_reload(start: StartGateway, east: FakeProvider, west: FakeProvider) -> None:
    gateway = start("")
    assert chosen(gateway.chat(MODEL)) == "east"
    routing = f'[routing]\nstrategy = "weighted"\n[routing.weights."{MODEL}"]\neast = 0\n'
    write(gateway, routing + two_providers(east, west))
    reload(gateway)
    assert [chosen(gateway.chat(MODEL)) for _ in range(3)] == ["west"] * 3
