"""Connections that are cancelled at the moment when they are established, or that need a descriptor too many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.connection import UpstreamConnection
from svc.gateway.upstream.pool import UpstreamPool

COUNT = 20


class LastCallback(ResponseReceiver):
    """`name` is set to the name of the last callback of a call."""

    def __init__(self) -> None:
        self.name: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_resend(self) -> None:
        pass

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        pass

    def on_body(self, data: bytes) -> None:
        pass

    def on_end(self) -> None:
        self.name.set_result("on_end")

    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        self.name.set_result("on_connection_lost")

    def on_no_socket(self, reason: str) -> None:
        self.name.set_result("on_no_socket")

    def on_internal_error(self) -> None:
        self.name.set_result("on_internal_error")


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Lower the soft limit of this process to the first free descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.open(os.devnull, os.O_RDONLY)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_connect_without_free_descriptor_is_not_a_lost_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> str:
        receiver = LastCallback()
        upstream = UpstreamPool(connect_timeout=5)
        with no_free_descriptor():
            upstream.connect(UpstreamOrigin("127.0.0.1", 9, uses_tls=False), UpstreamCall(receiver, ()))
            return await receiver.name

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == "on_no_socket"
