"""Connections that are cancelled at the moment when they are established."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import Callable

import pytest
import uvloop
from tests.unit.gateway.upstream.queued_call_cases import Receiver

from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import UpstreamCall
from svc.gateway.upstream.connection import UpstreamConnection
from svc.gateway.upstream.pool import UpstreamPool

COUNT = 20


def connections() -> int:
    return sum(type(one) is UpstreamConnection for one in gc.get_objects())


async def cancel_while_connecting(upstream: UpstreamPool, origin: UpstreamOrigin) -> None:
    """Cancel the waiting task after the connection is established and before the task resumes."""
    task = asyncio.get_running_loop().create_task(upstream._open_connection(origin, origin.port))
    while not upstream.open_connections:
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_pool_cancelled_while_connecting_leaks_no_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    errors: list[object] = []

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        upstream = UpstreamPool(connect_timeout=5)
        for _ in range(COUNT):
            await cancel_while_connecting(
                upstream, UpstreamOrigin("127.0.0.1", server.sockets[0].getsockname()[1], uses_tls=False)
            )
        await asyncio.sleep(0.05)
        server.close()
        assert upstream.open_connections == 0
        return connections()

    gc.collect()
    before = connections()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(main()) <= before + 1  # a stack frame keeps the last one
    finally:
        gc.enable()
    assert errors == []


class ReasonReceiver(Receiver):
    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        self.calls.append((reason, timed_out))
        self.done.set()


def test_pool_silent_name_server_is_the_reason_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    responded = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: responded.wait(20) and [])
    receiver = ReasonReceiver()

    async def main() -> None:
        upstream = UpstreamPool(connect_timeout=0.01)
        upstream.connect(UpstreamOrigin("provider.example", 443, uses_tls=True), UpstreamCall(receiver, ()))
        await receiver.done.wait()
        responded.set()
        await upstream.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(main())
    reason = "no TLS connection to provider.example:443 within 0.01 s, as the name server is silent"
    assert receiver.calls == [(reason, True)]
