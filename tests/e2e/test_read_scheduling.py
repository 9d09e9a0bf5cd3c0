"""Connections that always have data to read do not starve the others."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.fakes.flood import FloodProvider
from tests.fakes.http_client import request_bytes

pytestmark = pytest.mark.slow

MAX_HEALTH_SECONDS = 4.0
"""Far above the usual latency, and far below the latency without fair scheduling."""


def slowest_health(gateway: Gateway, seconds: float) -> float:
    """Return the longest latency of `/health` within `seconds`."""
    end, slowest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        began = time.monotonic()
        with gateway.raw(timeout=60) as client:
            assert client.request("GET", "/health").status == 200
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.02)
    return slowest


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_read_scheduling_unread_fast_streams_do_not_block_other_requests(
    start_gateway: StartGateway, path: str
) -> None:
    with FloodProvider() as flood, contextlib.ExitStack() as clients:
        gateway = start_gateway(env={"PROVIDER_A_BASE_URL": f"{flood.address}/v1"})
        ask = {"model": GPT, "messages": HI, "stream": True, "max_tokens": 50}
        for _ in range(100):
            clients.enter_context(gateway.raw()).send(request_bytes("POST", path, ask, key=KEY))
        slowest = slowest_health(gateway, 6)
    assert slowest < MAX_HEALTH_SECONDS


def test_read_scheduling_request_floods_do_not_block_other_requests(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\naccess_log = false\n")
    rejected_requests = request_bytes("POST", "/v1/chat/completions", {}, key="wrong") * 2000
    end = time.monotonic() + 7

    def flood() -> None:
        with gateway.raw(timeout=60) as client, contextlib.suppress(ConnectionError):

            def drain() -> None:
                with contextlib.suppress(OSError):
                    while client.socket.recv(1 << 20):
                        pass

            reader = threading.Thread(target=drain, daemon=True)
            reader.start()
            while time.monotonic() < end:
                client.socket.sendall(rejected_requests)

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(10)]
    for thread in threads:
        thread.start()
    slowest = slowest_health(gateway, 6)
    for thread in threads:
        thread.join(30)
    assert slowest < MAX_HEALTH_SECONDS
