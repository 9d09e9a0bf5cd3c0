"""A gateway without free file descriptors recovers and loses no ledger entry."""

from __future__ import annotations

import resource
import time

import pytest

from tests.e2e.conftest import StartGateway
from tests.fakes.http_client import RawClient


@pytest.mark.usefixtures("provider_a")
def test_gateway_without_free_descriptor_recovers_with_complete_ledger(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (80, 80))
    clients: list[RawClient] = []
    for _ in range(100):
        clients.append(gateway.raw(timeout=5))
    assert clients[0].request("GET", "/health").status == 200  # on an open connection
    time.sleep(1.5)  # meanwhile the ledger's thread cannot open a file
    gateway.logged("no file descriptor is free, so new connections are closed without a response.")
    for client in clients:
        client.socket.close()
    gateway.logged("file descriptors are free again")
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
