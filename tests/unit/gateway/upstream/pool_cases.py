"""Connections that fail because of the name server, or that need a descriptor too many. Run by `test_cases.py`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop
from tests.unit.gateway.upstream.queued_call_cases import Receiver

from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.pool import UpstreamPool


class ReasonReceiver(Receiver):
    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        self.calls.append((reason, timed_out))
        self.done.set()


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
