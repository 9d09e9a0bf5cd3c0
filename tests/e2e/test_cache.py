"""`[cache]`: a repeated request is served without an upstream request, and never across keys."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Nodes, StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway, run
from tests.e2e.reading import complete_chunks, text_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.redis_server import RedisServer
from tests.fakes.script import Script, answer, reset, sse

CONFIG = "[cache]\nenabled = true\n"


@pytest.fixture
def caching(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config=CONFIG)


def entry(gateway: Gateway, got: Got) -> dict[str, Any]:
    """Wait for the access-log line of a response and return it."""
    request_id = got.headers["x-request-id"]
    lines = [json.loads(line) for line in gateway.logged(request_id).splitlines() if line.startswith('{"time"')]
    return next(line for line in lines if line["request_id"] == request_id)


def cached(got: Got) -> str | None:
    return got.headers.get("x-svc-cache")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [GPT, CLAUDE])
def test_cache_same_request_returns_same_response(
    caching: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, model: str, stream: bool
) -> None:
    first, second = (caching.chat(model, stream=stream) for _ in range(2))
    assert (cached(first), cached(second)) == ("miss", "hit")
    assert second.body == first.body
    assert len(provider_a.requests) + len(provider_b.requests) == 1
    assert second.headers["x-svc-attempts"] == "0"
    for name in ("content-type", "x-svc-provider", "cache-control", "x-accel-buffering"):
        assert second.headers.get(name) == first.headers.get(name)
    assert second.headers.get("x-accel-buffering") == ("no" if stream else None)
    first_entry, second_entry = entry(caching, first), entry(caching, second)
    assert (first_entry["from_cache"], second_entry["from_cache"]) == (False, True)
    assert (second_entry["status"], second_entry["provider"], second_entry["model"]) == (
        "ok",
        first_entry["provider"],
        first_entry["model"],
    )
    assert first_entry["cost_usd"] > 0
    assert (second_entry["cost_usd"], second_entry["prompt_tokens"], second_entry["completion_tokens"]) == (0, 0, 0)


def test_cache_miss_and_hit_are_both_in_ledger(caching: Gateway, provider_a: FakeProvider) -> None:
    ids = {caching.chat().headers["x-request-id"] for _ in range(2)}
    deadline = time.monotonic() + 5
    while True:
        listed = caching.request("GET", "/v1/usage").json["data"]
        if len(listed) == 2 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert {one["request_id"] for one in listed} == ids


OTHER_FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.5},
    {"seed": 7},
    {"n": 2},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    {"messages": [{"role": "user", "content": "Hi!"}]},
    {"stream": True},
    {"max_tokens": 5},
]


def test_cache_different_fields_miss(caching: Gateway, provider_a: FakeProvider) -> None:
    answers = [caching.chat(**fields) for fields in [{}, *OTHER_FIELDS] * 2]
    assert [cached(got) for got in answers] == ["miss"] * 8 + ["hit"] * 8
    assert len(provider_a.requests) == 8


def test_cache_is_not_shared_between_endpoints(caching: Gateway, provider_a: FakeProvider) -> None:
    assert [cached(caching.chat(max_tokens=50)), cached(caching.message(GPT))] == ["miss", "miss"]
    assert [cached(caching.chat(max_tokens=50)), cached(caching.message(GPT))] == ["hit", "hit"]


BROKEN = [openai_wire.role(), openai_wire.chunk({"content": "half"})]


@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        (answer(500, openai_wire.error("down")), False),
        (answer(400, openai_wire.error("no")), False),
        (answer(429, openai_wire.error("slow"), headers={"retry-after": "9"}), False),
        (answer(200, b"<html>"), False),
        (sse(BROKEN, end=reset()), True),
        (sse(BROKEN), True),
        (sse([*BROKEN, openai_wire.event(openai_wire.error("down", "server_error"))]), True),
    ],
    ids=["500", "400", "429", "garbage", "reset", "no finish", "error event"],
)
def test_cache_failed_response_is_not_stored(
    start_gateway: StartGateway, provider_a: FakeProvider, fault: Script, stream: bool
) -> None:
    started = start_gateway(config=CONFIG + "[routing]\nretries = 0\n")
    provider_a.plays(fault)
    assert cached(started.chat(stream=stream)) == "miss"
    second = started.chat(stream=stream)
    assert (second.status, cached(second)) == (200, "miss")


def test_cache_response_of_disconnected_client_is_not_stored(caching: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse(openai_wire.stream("a b c d e f"), every=0.1))
    body = {"model": GPT, "messages": HI, "stream": True}
    with caching.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", body, key=caching.key))
        raw.read_until(b"a")
    caching.logged("client_closed")
    second = caching.request("POST", "/v1/chat/completions", body)
    assert cached(second) == "miss"
    assert text_of(complete_chunks(second.body)) == openai_wire.TEXT


def test_cache_entry_expires_after_ttl(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=CONFIG + "ttl = 0.4\n")
    assert [cached(started.chat()), cached(started.chat())] == ["miss", "hit"]
    time.sleep(0.5)
    assert cached(started.chat()) == "miss"


def test_cache_size_is_bounded(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=CONFIG + "max_size = 0.1\nmax_answer = 0.02\n")
    provider_a.always_plays(answer(200, openai_wire.chat("x" * 10_000)))
    for number in range(30):
        assert cached(started.chat(seed=number)) == "miss"
    assert [cached(started.chat(seed=number)) for number in (29, 0)] == ["hit", "miss"]
    page = started.request("GET", "/metrics").body.decode()
    taken = float(page.partition("\nsvc_cache_bytes ")[2].partition("\n")[0])
    assert 10_000 < taken < 0.1 * 2**20
    provider_a.always_plays(answer(200, openai_wire.chat("x" * 30_000)))
    assert [cached(started.chat(seed=99)) for _ in range(2)] == ["miss", "miss"]


def test_cache_hit_for_unread_client_uses_bounded_memory(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=CONFIG + "max_answer = 32\nmax_size = 256\n")
    words = [openai_wire.chunk({"content": "x" * 40_000}) for _ in range(500)]
    provider_a.plays(sse([openai_wire.role(), *words, openai_wire.chunk({}, "stop"), openai_wire.DONE]))
    first, _ = started.chat(stream=True), started.chat(stream=True)
    body = {"model": GPT, "messages": HI, "stream": True}
    before = resident(started)
    with started.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", body, key=started.key))
        time.sleep(0.5)
        grown = resident(started) - before
        second = raw.read()
    assert grown < 2**20
    assert (cached(second), second.whole) == ("hit", True)
    assert second.body == first.body


def resident(gateway: Gateway) -> int:
    fields = Path(f"/proc/{gateway.process.pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def test_cache_is_disabled_by_default(gateway: Gateway, provider_a: FakeProvider) -> None:
    assert [cached(gateway.chat()) for _ in range(2)] == [None, None]
    assert len(provider_a.requests) == 2


# isolation between keys


def create_key(gateway: Gateway, name: str, *options: str) -> str:
    """Create a key and return its secret."""
    done = run("keys", "create", "--name", name, "--json", *options, home=gateway.home)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["key"])


def send_chat(gateway: Gateway, key: str) -> Got:
    return gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=key)


def test_cache_is_not_shared_between_keys(caching: Gateway, provider_a: FakeProvider) -> None:
    keys = [create_key(caching, "one", "--tag", "team=red"), create_key(caching, "two", "--tag", "team=red")]
    assert [cached(send_chat(caching, key)) for key in keys * 2] == ["miss", "miss", "hit", "hit"]


def test_cache_shared_by_tag_is_shared_between_its_keys(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=CONFIG + 'shared_by = "team"\n')
    red, also_red, blue, none, neither = (
        create_key(started, name, *options)
        for name, options in (
            ("red", ["--tag", "team=red"]),
            ("also red", ["--tag", "team=red", "--tag", "other=x"]),
            ("blue", ["--tag", "team=blue"]),
            ("none", []),
            ("neither", []),
        )
    )
    assert [cached(send_chat(started, key)) for key in (red, also_red)] == ["miss", "hit"]
    assert [cached(send_chat(started, key)) for key in (blue, none, neither)] == ["miss"] * 3
    for parent in (none, red):  # its own tag selects nothing, it shares what its parent has
        made = started.request("POST", "/v1/ephemeral_keys", {"tags": {"team": "blue"}}, key=parent).json["key"]
        assert cached(send_chat(started, made)) == "hit"
    untouched = create_key(started, "untouched")
    made = started.request("POST", "/v1/ephemeral_keys", {"tags": {"team": "red"}}, key=untouched).json["key"]
    assert cached(send_chat(started, made)) == "miss"


def test_cache_shared_response_of_forbidden_model_is_not_served(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    """A key with the same tag received it from the fallback model."""
    started = start_gateway(
        config=f'{CONFIG}shared_by = "team"\n[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
    )
    free = create_key(started, "free", "--tag", "team=red")
    restricted = create_key(started, "bound", "--tag", "team=red", "--models", GPT)
    provider_a.plays(answer(500, openai_wire.error("down")))
    assert send_chat(started, free).headers["x-svc-provider"] == "anthropic"
    got = send_chat(started, restricted)
    assert (cached(got), got.headers["x-svc-provider"]) == ("miss", "openai")


def test_cache_hit_counts_for_rpm_and_not_for_tpm(caching: Gateway, provider_a: FakeProvider) -> None:
    key = create_key(caching, "tight", "--rpm", "3", "--tpm", "17000")
    got = [send_chat(caching, key) for _ in range(4)]
    assert [each.status for each in got] == [200, 200, 200, 429]
    assert [cached(each) for each in got[:3]] == ["miss", "hit", "hit"]
    assert got[3].headers.get("x-svc-provider") is None
    assert "(rpm)" in got[3].json["error"]["message"]


# shared through Redis


def cached_redis_key(redis: RedisServer) -> str:
    """Wait for the single cached response in Redis and return its key."""
    while (found := redis.tell("KEYS svc:cache:*")) == b"*0\r\n":
        time.sleep(0.01)
    return found.split(b"\r\n")[2].decode()


@pytest.mark.parametrize("stream", [False, True])
def test_cache_in_redis_is_shared_between_gateways(
    nodes: Nodes, provider_a: FakeProvider, redis: RedisServer, stream: bool
) -> None:
    one, other = nodes(CONFIG), nodes(CONFIG)
    first = one.chat(stream=stream)
    cached_redis_key(redis)
    second = other.chat(stream=stream)
    assert (cached(first), cached(second)) == ("miss", "hit")
    assert second.body == first.body
    assert cached(other.chat(stream=stream)) == "hit"
    assert len(provider_a.requests) == 1


def test_cache_redis_outage_is_bypassed_and_recovers(
    nodes: Nodes, provider_a: FakeProvider, redis: RedisServer
) -> None:
    one, other = nodes(CONFIG), nodes(CONFIG)
    one.chat()
    redis.freeze()
    began = time.monotonic()
    assert (other.chat().status, cached(one.chat())) == (200, "hit")
    assert time.monotonic() - began < 4, "the gateway waits half a second for Redis"
    redis.thaw()
    redis.kill()
    assert other.chat(seed=1).status == 200
    redis.start()
    deadline = time.monotonic() + 5
    for seed in itertools.count(2):
        one.chat(seed=seed)
        if cached(other.chat(seed=seed)) == "hit":
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_cache_corrupt_redis_entry_is_a_miss(nodes: Nodes, provider_a: FakeProvider, redis: RedisServer) -> None:
    one, other = nodes(CONFIG), nodes(CONFIG)
    one.chat()
    redis.tell(f"SET {cached_redis_key(redis)} rubbish")
    got = other.chat()
    assert (got.status, cached(got)) == (200, "miss")
    other.chat(CLAUDE)
    assert anthropic_wire.TEXT in other.chat(CLAUDE).body.decode()
