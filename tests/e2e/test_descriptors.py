"""A gateway that has no descriptor left: what clients see, and that it recovers with its ledger."""

from __future__ import annotations

import resource
import time

import pytest

from tests.e2e.conftest import StartGateway
from tests.fakes.http_client import RawClient


@pytest.mark.usefixtures("provider_a")
def test_exhausted_descriptors_are_an_error_and_the_ledger_recovers(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (80, 80))
    clients: list[RawClient] = []
    for _ in range(100):
        clients.append(gateway.raw(timeout=5))
    assert clients[0].request("GET", "/health").status == 200  # a connection that is open already
    time.sleep(1.5)  # the ledger's thread looks meanwhile, and can open nothing
    for client in clients:
        client.socket.close()
    time.sleep(1)
    ids = {gateway.chat().headers["x-request-id"] for _ in range(3)}
    deadline = time.monotonic() + 20
    while True:
        entries = [entry["request_id"] for entry in gateway.request("GET", "/v1/usage").json["data"]]
        if ids <= set(entries) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert ids <= set(entries)
    assert len(entries) == len(set(entries))
    assert gateway.process.poll() is None
