"""A request in parts, on real sockets: how it ends if it is cancelled, or if a part fails. Run by `test_cases.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from svc.dialects.base import EncodedRequest
from svc.dialects.openai.embedding_parts import MAX_PART_INPUTS, divide_request
from svc.errors import ProviderFailed
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.fair_queue import FairQueue
from svc.gateway.routing.providers import build_provider
from svc.gateway.upstream.call import ResponseReceiver
from svc.gateway.upstream.pool import UpstreamPool
from svc.gateway.upstream.queued_call import QueuedCall
from svc.settings import ModelSettings, ProviderSettings

TEXTS = ["a"] * (2 * MAX_PART_INPUTS + 1)
"""Texts for three parts."""
WAIT_SECONDS = 20
HOLD = b""
"""The server does not respond."""
DROP = b"drop"
"""The server closes the connection."""

Respond = Callable[[list[str]], bytes]


class Receiver(ResponseReceiver):
    """Records the callbacks."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.done = asyncio.Event()

    def on_resend(self) -> None:
        self.calls.append("resend")

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.calls.append(status)

    def on_body(self, data: bytes) -> None:
        self.calls.append(data)

    def on_end(self) -> None:
        self.calls.append("end")
        self.done.set()

    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        self.calls.append("lost")
        self.done.set()

    def on_load_failed(self, error: ProviderFailed) -> None:
        raise error

    def on_internal_error(self) -> None:
        raise AssertionError("internal error")


class FailingReceiver(Receiver):
    """The end of the response fails."""

    def on_end(self) -> None:
        raise LookupError("internal")

    def on_internal_error(self) -> None:
        self.calls.append("internal error")
        self.done.set()


class Setup:
    """A server of a model, its queue, and the pool of connections to it."""

    def __init__(self, respond: Respond) -> None:
        self.received: list[list[str]] = []
        """The inputs of each request that the server got."""
        self.changed = asyncio.Condition()
        self.left = 0
        """The connections that the gateway has closed."""
        self.queue = FairQueue("The model m")
        self.queue.configure(slots=1, size=10)
        self._respond = respond
        self._upstream = UpstreamPool(connect_timeout=WAIT_SECONDS)
        self.backend: Backend

    def send(
        self, texts: list[str], key_id: str = "k", *, receiver: Receiver | None = None, in_parts: bool = True
    ) -> tuple[QueuedCall, Receiver]:
        body = json.dumps({"model": "m", "input": texts}).encode()
        receiver = receiver or Receiver()
        call = QueuedCall(
            self._upstream,
            self.backend,
            b"/embeddings",
            EncodedRequest(body, parts=divide_request(body, 512) if in_parts else None),
            receiver,
            key_id,
            stream=False,
            forwarded=None,
            trace_context=b"",
        )
        call.enqueue(self.queue)
        return call, receiver

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self.changed:
            await self.changed.wait_for(condition)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                texts = json.loads(await reader.readexactly(size))["input"]
                await self._change(received=texts)
                response = self._respond(texts)
                if response == DROP:
                    return
                writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            await self._change(left=1)
        finally:
            writer.close()

    async def _change(self, received: list[str] | None = None, left: int = 0) -> None:
        async with self.changed:
            if received is not None:
                self.received.append(received)
            self.left += left
            self.changed.notify_all()


@asynccontextmanager
async def running(respond: Respond) -> AsyncIterator[Setup]:
    setup = Setup(respond)
    server = await asyncio.start_server(setup.serve, "127.0.0.1", 0)
    entry = ProviderSettings(name="local", models=(ModelSettings(id="m", kind="embedding", context_window=512),))
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    (setup.backend,) = build_backends(build_provider(entry, address, ""))
    try:
        yield setup
    finally:
        server.close()


def http(status: int, payload: object) -> bytes:
    body = json.dumps(payload).encode()
    return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def rows(texts: list[str]) -> bytes:
    data = [{"index": index, "embedding": [0.5]} for index in range(len(texts))]
    return http(200, {"data": data, "usage": {"prompt_tokens": len(texts), "total_tokens": len(texts)}})


async def test_queued_call_joins_the_responses_of_its_parts() -> None:
    async with running(rows) as setup:
        _, receiver = setup.send(TEXTS)
        await asyncio.wait_for(receiver.done.wait(), WAIT_SECONDS)
        assert [len(texts) for texts in setup.received] == [MAX_PART_INPUTS, MAX_PART_INPUTS, 1]
        status, body, end = receiver.calls
        assert (status, end, len(json.loads(body)["data"])) == (200, "end", len(TEXTS))
        assert setup.queue.length == 0


async def test_queued_call_cancelled_in_a_part_sends_no_other_and_frees_its_slot() -> None:
    async with running(lambda texts: rows(texts) if texts == ["b"] else HOLD) as setup:
        call, cancelled = setup.send(TEXTS)
        await setup.until(lambda: len(setup.received) == 1)
        _, waiting = setup.send(["b"])
        call.cancel()
        await asyncio.wait_for(waiting.done.wait(), WAIT_SECONDS)
        await setup.until(lambda: setup.left == 1)
        assert setup.received == [TEXTS[:MAX_PART_INPUTS], ["b"]]
        assert (cancelled.calls, setup.queue.length) == ([], 0)


async def test_queued_call_cancelled_while_waiting_sends_nothing() -> None:
    async with running(lambda texts: HOLD if texts == ["a"] else rows(texts)) as setup:
        first, _ = setup.send(["a"])
        waiting, cancelled = setup.send(["b"])
        _, last = setup.send(["c"])
        await setup.until(lambda: len(setup.received) == 1)
        assert (first.is_waiting, waiting.is_waiting) == (False, True)
        waiting.cancel()
        first.cancel()
        await asyncio.wait_for(last.done.wait(), WAIT_SECONDS)
        assert setup.received == [["a"], ["c"]]
        assert cancelled.calls == []


@pytest.mark.parametrize(
    ("failing", "response", "calls"),
    [
        (2, http(400, {"error": {"message": "x"}}), [400, b'{"error":{"message":"x","param":"input"}}', "end"]),
        (2, http(200, {"data": []}), [200, b"", "end"]),
        (1, DROP, ["lost"]),
    ],
    ids=["error", "invalid response", "lost connection"],
)
async def test_queued_call_whose_part_fails_sends_no_other(failing: int, response: bytes, calls: list[object]) -> None:
    answered: list[int] = []

    def respond(texts: list[str]) -> bytes:
        answered.append(len(texts))
        return response if len(answered) == failing else rows(texts)

    async with running(respond) as setup:
        _, receiver = setup.send(TEXTS)
        await asyncio.wait_for(receiver.done.wait(), WAIT_SECONDS)
        _, other = setup.send(["b"])
        await asyncio.wait_for(other.done.wait(), WAIT_SECONDS)
        assert receiver.calls == calls
        assert setup.received == [*[TEXTS[:MAX_PART_INPUTS]] * failing, ["b"]]
        assert setup.queue.length == 0


@pytest.mark.parametrize("in_parts", [False, True])
async def test_queued_call_whose_end_fails_reports_an_internal_error(in_parts: bool) -> None:
    async with running(rows) as setup:
        _, receiver = setup.send(["a"], receiver=FailingReceiver(), in_parts=in_parts)
        await asyncio.wait_for(receiver.done.wait(), WAIT_SECONDS)
        assert (receiver.calls[0], receiver.calls[-1], setup.queue.length) == (200, "internal error", 0)
