"""Several workers on one port: limits hold across them, the dead are replaced, a restart drops nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.accounts.test_usage import usage
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway, run
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse


def workers_of(gateway: Gateway) -> list[int]:
    """The process ids of the workers."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


@pytest.fixture
def gateway(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config="[gateway]\nworkers = 3\ndrain_timeout = 5\n")


def test_a_limit_holds_over_all_workers(gateway: Gateway) -> None:
    assert len(workers_of(gateway)) == 3
    made = create(gateway, "--name", "hammered", "--rpm", "60")
    statuses: list[int] = []

    def hammer() -> None:
        for _ in range(10):
            statuses.append(chat(gateway, made["key"]))  # each on a connection of its own: any worker

    threads = [threading.Thread(target=hammer) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (statuses.count(200), statuses.count(429)) == (60, 60)
    time.sleep(1.5)
    assert sum(row["requests"] for row in usage(gateway, "--by", "key") if row["key"] == made["id"]) == 60


def test_a_revoked_key_is_refused_by_every_worker(gateway: Gateway) -> None:
    made = create(gateway, "--name", "leaver")
    assert {chat(gateway, made["key"]) for _ in range(20)} == {200}
    assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
    time.sleep(1.0)
    assert {chat(gateway, made["key"]) for _ in range(30)} == {401}


def test_killed_workers_are_replaced_and_nothing_complete_is_lost(gateway: Gateway) -> None:
    seen: set[str] = set()
    stop = threading.Event()

    def hammer(stream: bool) -> None:
        while not stop.is_set():
            try:
                got = gateway.chat(stream=stream)
            except OSError:
                continue
            if got.whole and got.status == 200 and (not stream or b"[DONE]" in got.body):
                seen.add(got.headers["x-request-id"])

    threads = [threading.Thread(target=hammer, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        time.sleep(0.4)
        os.kill(random.choice(workers_of(gateway)), signal.SIGKILL)
    until(lambda: len(workers_of(gateway)) == 3, 10)
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join(10)
    time.sleep(2)
    rows = [row["request_id"] for row in usage(gateway)]
    assert len(seen) > 50
    assert len(rows) == len(set(rows))
    assert not seen - set(rows)


def test_a_rolling_restart_drops_nothing(gateway: Gateway, provider_a: FakeProvider) -> None:
    before = set(workers_of(gateway))
    provider_a.plays(sse(openai_wire.stream("a b c d e f g h i j k l m n o p q r s t"), every=0.15))
    stream: list[bytes] = []
    failed: list[int] = []
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            if (status := gateway.chat().status) != 200:
                failed.append(status)

    reader = threading.Thread(target=lambda: stream.append(gateway.chat(stream=True).body))
    reader.start()
    provider_a.wait()
    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    (gateway.home / "given.toml").write_text("[gateway]\nworkers = 3\ndrain_timeout = 5\n[limits]\nrpm = 1\n")
    made = create(gateway, "--name", "one", "--rpm", "1000")
    gateway.process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join(10)
    until(lambda: len(workers_of(gateway)) == 3 and not before & set(workers_of(gateway)), 15)
    reader.join(10)
    assert b"[DONE]" in stream[0]
    assert failed == []
    assert chat(gateway, made["key"]) == 200
    assert sorted(gateway.chat().status for _ in range(3)) == [200, 429, 429]


def test_a_broken_configuration_leaves_the_old_workers(gateway: Gateway) -> None:
    before = set(workers_of(gateway))
    (gateway.home / "given.toml").write_text("[gateway]\nwrokers = 3\n")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.logged("go on as they are", 15)
    assert set(workers_of(gateway)) == before
    assert gateway.chat().status == 200


def test_workers_end_with_their_supervisor(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nworkers = 2\n")
    orphans = workers_of(gateway)
    gateway.process.kill()
    gateway.process.wait(5)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), 5)
    gateway.start()
    assert gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}).status == 200
