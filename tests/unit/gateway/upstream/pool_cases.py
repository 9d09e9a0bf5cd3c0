"""The reason of a connection that fails because of the name server. Run by `test_cases.py`."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from tests.unit.gateway.upstream.queued_call_cases import Receiver

from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import UpstreamCall
from svc.gateway.upstream.pool import UpstreamPool


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
