"""Connections that are given up in the very moment when they are made."""

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


async def give_up(upstream: UpstreamPool, origin: UpstreamOrigin) -> None:
    """The connection knows that it is made; who waits for it does not yet."""
    making = asyncio.get_running_loop().create_task(upstream._open_connection(origin))
    while not upstream.open_connections:
        await asyncio.sleep(0)
    assert not making.done()
    making.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await making


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_who_is_cancelled_while_connecting_leaves_nothing_behind(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    faults: list[object] = []

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        upstream = UpstreamPool(connect_timeout=5)
        for _ in range(COUNT):
            await give_up(upstream, UpstreamOrigin("127.0.0.1", server.sockets[0].getsockname()[1], tls=False))
        await asyncio.sleep(0.05)
        server.close()
        assert upstream.open_connections == 0
        return connections()

    gc.collect()
    before = connections()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(main()) <= before + 1  # the last one, in a frame
    finally:
        gc.enable()
    assert faults == []
