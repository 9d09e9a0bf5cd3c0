"""Two gateways on one Redis share their limits. While Redis is down, each enforces them alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.accounts.test_limits import ask
from tests.e2e.accounts.test_metrics import metrics
from tests.e2e.accounts.test_usage import usage
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway, run
from tests.fakes.redis_groups import RedisSentinels
from tests.fakes.redis_server import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest.fixture
def nodes(start_gateway: StartGateway, server: RedisServer) -> tuple[Gateway, Gateway]:
    """Two gateways that share the key database and the ledger. Each has its own state folder."""
    one = start_gateway(env={"SVC_REDIS_URL": server.url})
    database = f"sqlite:///{one.home / 'svc' / 'svc.db'}"
    two = start_gateway(env={"SVC_REDIS_URL": server.url, "SVC_DATABASE_URL": database})
    return one, two


def degraded(gateway: Gateway) -> list[str]:
    found: list[str] = gateway.request("GET", "/health?verbose=1", key=None).json["degraded"]
    return found


def test_redis_two_gateways_share_rate_limits(nodes: tuple[Gateway, Gateway]) -> None:
    one, two = nodes
    made = create(one, "--name", "both", "--rpm", "10", "--budget-usd", "1")
    got = [ask((one, two)[number % 2], made["key"], max_tokens=10) for number in range(14)]
    assert [each.status for each in got] == [200] * 10 + [429] * 4
    assert [int(each.headers["x-ratelimit-remaining-requests"]) for each in got] == [*range(9, -1, -1), 0, 0, 0, 0]
    assert 50 <= int(got[-1].headers["retry-after"]) <= 61


def test_redis_two_gateways_share_budget(nodes: tuple[Gateway, Gateway]) -> None:
    one, two = nodes
    made = create(one, "--name", "spender", "--budget-usd", "0.0002")
    statuses = [ask((one, two)[number % 2], made["key"], max_tokens=100).status for number in range(40)]
    # A 429 may come early: the commit of a request can reach Redis after the next reservation.
    assert (statuses[0], statuses[-1]) == (200, 429)
    assert {200, 429} == set(statuses)
    time.sleep(1.5)
    (total,) = [row for row in usage(one, "--by", "key") if row["key"] == made["id"]]
    assert 0.0002 - 0.00008 < total["cost_usd"] <= 0.0002


def test_redis_outage_under_load_falls_back_to_local_limits(
    nodes: tuple[Gateway, Gateway], server: RedisServer
) -> None:
    made = create(nodes[0], "--name", "one", "--rpm", "100000", "--budget-usd", "100")
    small = create(nodes[0], "--name", "small", "--rpm", "5")
    statuses: list[int] = []
    stop = threading.Event()

    def hammer(gateway: Gateway) -> None:
        while not stop.is_set():
            statuses.append(chat(gateway, made["key"]))

    threads = [threading.Thread(target=hammer, args=(node,)) for node in nodes for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    server.kill()
    for node in nodes:
        until(lambda node=node: degraded(node) == ["redis"], 20)  # type: ignore[misc]
        assert metrics(node)['svc_degraded{what="redis"}'] == 1
        assert [chat(node, small["key"]) for _ in range(7)] == [200] * 5 + [429] * 2
    server.start()
    for node in nodes:
        until(lambda node=node: degraded(node) == [], 20)  # type: ignore[misc]
    time.sleep(0.3)
    assert [chat(node, small["key"]) for node in nodes] == [429, 429]  # Redis is empty, and this machine remembers
    server.freeze()
    until(lambda: degraded(nodes[0]) == ["redis"], 20)
    server.thaw()
    until(lambda: degraded(nodes[0]) == [], 20)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert set(statuses) == {200}
    assert "responds again" in nodes[0].log
    time.sleep(1.5)
    total = {row["key"]: row["requests"] for row in usage(nodes[0], "--by", "key")}
    assert total == {made["id"]: len(statuses), small["id"]: 10}


def test_redis_sentinel_failover_under_load_refuses_no_request(start_gateway: StartGateway, tmp_path: Path) -> None:
    with RedisSentinels(tmp_path) as sentinels:
        one = start_gateway(env={"SVC_REDIS_URL": sentinels.url})
        database = f"sqlite:///{one.home / 'svc' / 'svc.db'}"
        two = start_gateway(env={"SVC_REDIS_URL": sentinels.url, "SVC_DATABASE_URL": database})
        made = create(one, "--name", "one", "--rpm", "100000", "--budget-usd", "100")
        small = create(one, "--name", "small", "--rpm", "5")
        statuses: list[int] = []
        stop = threading.Event()

        def hammer(gateway: Gateway) -> None:
            while not stop.is_set():
                statuses.append(chat(gateway, made["key"]))

        threads = [threading.Thread(target=hammer, args=(node,)) for node in (one, two)]
        for thread in threads:
            thread.start()
        admitted = [chat(node, small["key"]) for node in (one, two) for _ in range(4)].count(200)
        sentinels.primary.kill()
        for node in (one, two):
            until(lambda node=node: degraded(node) == ["redis"], 20)  # type: ignore[misc]
        admitted += [chat(node, small["key"]) for node in (one, two) for _ in range(4)].count(200)
        for node in (one, two):
            until(lambda node=node: degraded(node) == [], 20)  # type: ignore[misc]
        admitted += [chat(node, small["key"]) for node in (one, two) for _ in range(4)].count(200)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert set(statuses) == {200}
        assert 5 <= admitted <= 10  # at most the limit of each machine
        time.sleep(1.5)
        total = {row["key"]: row["requests"] for row in usage(one, "--by", "key")}
        assert total[made["id"]] == len(statuses)


def test_redis_down_and_refuse_returns_503(start_gateway: StartGateway, server: RedisServer) -> None:
    gateway = start_gateway(config='[limits]\non_redis_down = "refuse"\n', env={"SVC_REDIS_URL": server.url})
    made = create(gateway, "--name", "one", "--rpm", "100")
    free = create(gateway, "--name", "free")
    assert chat(gateway, made["key"]) == 200
    server.kill()
    until(lambda: degraded(gateway) == ["redis"], 20)
    refused = ask(gateway, made["key"])
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.json["error"]["code"] == "internal_error"
    assert "limits of this API key cannot be checked" in refused.json["error"]["message"]
    assert chat(gateway, free["key"]) == 200  # it has no limits
    server.start()
    until(lambda: degraded(gateway) == [], 20)
    assert chat(gateway, made["key"]) == 200


def test_redis_slot_of_killed_gateway_is_freed(nodes: tuple[Gateway, Gateway], server: RedisServer) -> None:
    one, two = nodes
    made = create(one, "--name", "narrow", "--concurrency", "1")
    assert chat(one, made["key"]) == 200
    server.tell(f"HSET svc:key:{made['id']} running 1 c:somebody-who-died 1")
    until(lambda: chat(two, made["key"]) == 200, 20)
    assert chat(one, made["key"]) == 200


def test_redis_invalid_url_exits_2(tmp_path: Path) -> None:
    done = run("gateway", "--port", "0", home=tmp_path, env={"SVC_REDIS_URL": "localhost:6379"})
    assert (done.returncode, done.stderr.count("SVC_REDIS_URL is not valid: use redis://")) == (2, 1)
