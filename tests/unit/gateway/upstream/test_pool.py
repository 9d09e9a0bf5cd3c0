"""Connections that are cancelled at the moment when they are established."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable

import pytest
import uvloop

from svc.gateway.routing.providers import UpstreamOrigin
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
