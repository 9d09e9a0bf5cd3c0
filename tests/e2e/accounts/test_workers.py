"""Several workers on one port share limits. Killed workers are replaced, and a restart loses no response."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.accounts.test_metrics import metrics
from tests.e2e.accounts.test_usage import usage
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway, run
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, body, end, hold, sse
from tests.soak.clients import Clients


def workers_of(gateway: Gateway) -> list[int]:
    """Return the process ids of the workers."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


@pytest.fixture
def gateway(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config="[gateway]\nworkers = 3\ndrain_timeout = 5\n")


def test_workers_share_rpm_limit(gateway: Gateway) -> None:
    assert len(workers_of(gateway)) == 3
    made = create(gateway, "--name", "hammered", "--rpm", "60")
    statuses: list[int] = []

    def hammer() -> None:
        for _ in range(10):
            statuses.append(chat(gateway, made["key"]))  # each on its own connection, so on any worker

    threads = [threading.Thread(target=hammer) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (statuses.count(200), statuses.count(429)) == (60, 60)
    time.sleep(1.5)
    assert sum(row["requests"] for row in usage(gateway, "--by", "key") if row["key"] == made["id"]) == 60


def test_workers_revoked_key_returns_401_from_every_worker(gateway: Gateway) -> None:
    made = create(gateway, "--name", "leaver")
    assert {chat(gateway, made["key"]) for _ in range(20)} == {200}
    assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
    time.sleep(1.0)
    assert {chat(gateway, made["key"]) for _ in range(30)} == {401}


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False], ids=["kept connections", "new connections"])
def test_workers_rolling_restart_loses_no_response(gateway: Gateway, provider_a: FakeProvider, keep: bool) -> None:
    """Load and a slow stream continue. A persistent connection is closed only between two responses.

    The metrics of the old workers stay complete.
    """
    before = set(workers_of(gateway))
    provider_a.plays(sse(openai_wire.stream("a b c d e f g h i j k l m n o p q r s t"), every=0.15))
    stream: list[bytes] = []
    reader = threading.Thread(target=lambda: stream.append(gateway.chat(stream=True).body))
    reader.start()
    provider_a.wait()
    with Clients([gateway.port], KEY, 6, streams=0.5, keep=keep) as clients:
        (gateway.home / "given.toml").write_text("[gateway]\nworkers = 3\ndrain_timeout = 5\n[limits]\nrpm = 100000\n")
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: len(workers_of(gateway)) == 3 and not before & set(workers_of(gateway)), 20)
        time.sleep(0.3)
    reader.join(10)
    assert b"[DONE]" in stream[0]
    assert set(clients.statuses()) == {200}
    assert clients.lost == 0
    assert gateway.chat().headers["x-ratelimit-limit-requests"] == "100000"
    labels = 'provider="openai",model="gpt-4o-mini",status="ok",http_status="200"'
    responses = len(clients.answers) + 2
    until(lambda: metrics(gateway)[f"svc_requests_total{{{labels}}}"] == responses, 5)


def test_workers_sigterm_in_mid_stream_completes_stream(gateway: Gateway, provider_a: FakeProvider) -> None:
    gate = Gate()
    events = openai_wire.stream("a b c d e f")
    provider_a.plays(sse(events[:3], end=hold(gate)) + body(b"".join(events[3:])) + end())
    stream: list[bytes] = []
    reader = threading.Thread(target=lambda: stream.append(gateway.chat(stream=True).body))
    reader.start()
    gate.reached()
    gateway.send_sigterm()
    time.sleep(0.5)
    with pytest.raises(ConnectionRefusedError):  # new connections are refused while the stream continues
        gateway.chat()
    assert gateway.process.poll() is None
    gate.open()
    reader.join(10)
    assert b"[DONE]" in stream[0]
    assert gateway.process.wait(5) == 0
    assert len(usage(gateway)) == 1


def test_workers_killed_worker_is_replaced(gateway: Gateway) -> None:
    before = workers_of(gateway)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len(workers_of(gateway)) == 3 and before[0] not in workers_of(gateway), 20)
    assert set(before[1:]) < set(workers_of(gateway))
    assert {gateway.chat().status for _ in range(12)} == {200}


def test_workers_reload_invalid_configuration_keeps_running_workers(gateway: Gateway) -> None:
    before = set(workers_of(gateway))
    (gateway.home / "given.toml").write_text("[gateway]\nwrokers = 3\n")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.logged("keep the previous one", 15)
    assert set(workers_of(gateway)) == before
    assert gateway.chat().status == 200


def test_workers_supervisor_killed_exit(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nworkers = 2\n")
    orphans = workers_of(gateway)
    gateway.process.kill()
    gateway.process.wait(5)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), 20)
    gateway.start()
    assert gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}).status == 200
    files = [path.name for path in (gateway.home / "svc" / "run").iterdir() if path.is_file()]
    assert files == [f"counters-{gateway.process.pid}"]  # the files of the killed supervisor are removed


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_restart_after_sigkill_keeps_rpm_window(start_gateway: StartGateway, workers: int) -> None:
    gateway = start_gateway(config=f"[gateway]\nworkers = {workers}\n")
    made = create(gateway, "--name", "patient", "--rpm", "5", "--tpm", "100000")
    assert [chat(gateway, made["key"]) for _ in range(3)] == [200] * 3
    gateway.process.kill()
    gateway.process.wait(5)
    gateway.start()
    assert [chat(gateway, made["key"]) for _ in range(3)] == [200, 200, 429]


@pytest.mark.slow
def test_workers_orphaned_by_killed_supervisor_keep_rpm_window(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nworkers = 2\n")
    made = create(gateway, "--name", "patient", "--rpm", "5")
    assert [chat(gateway, made["key"]) for _ in range(3)] == [200] * 3
    orphans = workers_of(gateway)

    def resume_orphans() -> None:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    for pid in orphans:
        os.kill(pid, signal.SIGSTOP)
    gateway.process.kill()
    gateway.process.wait(5)
    later = threading.Timer(0.8, resume_orphans)
    later.start()
    gateway.start()
    later.join()
    assert [chat(gateway, made["key"]) for _ in range(3)] == [200, 200, 429]


def test_gateway_second_on_same_state_folder_logs_warning(start_gateway: StartGateway) -> None:
    first = start_gateway()
    second = Gateway(first.home, env={}, is_forked=True)
    second.log_path = first.home / "second.log"
    second.start()
    try:
        assert "Another gateway uses" in second.log
        assert "Another gateway" not in first.log
    finally:
        assert second.stop() == 0
