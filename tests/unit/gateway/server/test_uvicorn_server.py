"""The gateway's server never leaves a listener open behind it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from svc.app.listeners import listen
from svc.gateway.server.uvicorn_server import GatewayServer


async def never_called(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


class Failing:
    """`ready` fails, as it does when nobody reads what it says."""

    def __init__(self) -> None:
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.told_to_end = 0

    def ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()  # it listens by now
        raise BrokenPipeError

    async def before_shutdown(self) -> None:
        self.told_to_end += 1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5)


async def test_server_whose_start_fails_lets_nobody_in_any_more() -> None:
    failing = Failing()
    config = uvicorn.Config(never_called, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = GatewayServer(config, failing.ready, failing.before_shutdown)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(server.serve([failing.listener]), 10)
    assert failing.told_to_end == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", failing.port), timeout=5)


async def test_server_that_is_told_to_stop_before_its_start_says_nothing() -> None:
    failing = Failing()
    config = uvicorn.Config(never_called, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = GatewayServer(config, failing.ready, failing.before_shutdown)
    server.stop(15)
    await asyncio.wait_for(server.serve([failing.listener]), 10)
    assert failing.told_to_end == 1
