"""The gateway's server always closes its listener."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
import uvicorn

from svc.app.listeners import listen
from svc.gateway.server.uvicorn_server import GatewayServer


async def never_called(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


class FailingStart:
    """`ready` fails, as it does when standard output is closed."""

    def __init__(self) -> None:
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.shutdown_count = 0

    def ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()  # the server is listening
        raise BrokenPipeError

    async def wait_for_sessions(self) -> None:
        await asyncio.Event().wait()

    async def before_shutdown(self) -> None:
        self.shutdown_count += 1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5)


async def test_server_failed_start_closes_listener() -> None:
    failing = FailingStart()
    config = uvicorn.Config(never_called, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = GatewayServer(config, failing.ready, failing.before_shutdown, failing.wait_for_sessions)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(server.serve([failing.listener]), 10)
    assert failing.shutdown_count == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", failing.port), timeout=5)


async def test_server_stopped_before_start_is_never_ready() -> None:
    failing = FailingStart()
    config = uvicorn.Config(never_called, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = GatewayServer(config, failing.ready, failing.before_shutdown, failing.wait_for_sessions)
    server.stop(15)
    await asyncio.wait_for(server.serve([failing.listener]), 10)
    assert failing.shutdown_count == 1


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_server_retiring_waits_for_sessions_until_the_drain_timeout_or_a_stop(is_stopped: bool) -> None:
    failing = FailingStart()
    config = uvicorn.Config(never_called, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = GatewayServer(config, lambda: None, failing.before_shutdown, failing.wait_for_sessions)
    server.retire()
    if is_stopped:
        server.stop(15)
    start = time.monotonic()
    await asyncio.wait_for(server.serve([failing.listener]), 10)
    assert failing.shutdown_count == 1
    assert (time.monotonic() - start < 0.9) is is_stopped
