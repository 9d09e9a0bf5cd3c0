"""Finished requests and closed connections are freed without the garbage collector."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import CLAUDE, GPT, HI, KEY, LLAMA, Gateway, provider_environment
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, reset, sse

pytestmark = pytest.mark.slow

UNCOLLECTED = "import gc; gc.disable(); import sys; from svc.cli import main; sys.exit(main())"
PROMPT = [{"role": "user", "content": "x" * 100_000}]
"""Large enough that a leak of a hundred prompts is visible."""
MIB = 1024 * 1024


@pytest.fixture
def uncollected(fakes: Mapping[str, FakeProvider], tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with the garbage collector disabled, so that reference cycles leak."""
    one = Gateway(
        tmp_path,
        env=provider_environment(fakes),
        config=f'[routing]\nretries = 0\nbreaker = false\n[routing.fallbacks]\n"{LLAMA}" = ["{GPT}"]\n',
    )
    one.command = [sys.executable, "-c", UNCOLLECTED]
    yield one.start()
    assert one.stop() == 0


def resident(gateway: Gateway) -> int:
    """Return the resident memory in bytes."""
    fields = Path(f"/proc/{gateway.process.pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def test_memory_idle_connection_releases_last_request(uncollected: Gateway) -> None:
    def post(raw: RawClient) -> None:
        assert raw.request("POST", "/v1/nope", bytes(4 * MIB), key=KEY).status == 404

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(uncollected.raw()) for _ in range(15)]
        post(clients[0])
        before = resident(uncollected)
        for client in clients[1:]:
            post(client)
        assert resident(uncollected) < before + 28 * MIB  # the bodies alone take 56 MiB


def test_memory_finished_requests_are_released_without_gc(uncollected: Gateway, provider_c: FakeProvider) -> None:
    broken = sse([openai_wire.role(), openai_wire.chunk({"content": "x" * 50_000})], end=reset())
    garbled = sse([openai_wire.role(), b'data: {"\xff": ' + b"x" * 50_000 + b"\n\n"])

    def send_some(count: int) -> None:
        for number in range(count):
            stream = number % 2 == 0
            provider_c.always_plays([broken if stream else reset(), garbled, answer(200, b"<html>")][number % 3])
            for model in (GPT, CLAUDE, LLAMA):
                uncollected.chat(model, messages=PROMPT, stream=stream)
            uncollected.chat(GPT, messages=HI, temperature=7)

    send_some(15)
    before = resident(uncollected)
    send_some(50)
    assert resident(uncollected) < before + 6 * MIB  # the prompts alone take 15 MB


def test_memory_closed_connections_are_released_without_gc(uncollected: Gateway) -> None:
    """Each connection uses every read path: parser, head cache, unbounded, bounded, and uvicorn."""
    small, large = ({"model": GPT, "messages": [{"role": "user", "content": "x" * size}]} for size in (7_000, 100_000))
    requests = [("POST", "/v1/chat/completions", body) for body in (small, small, small, large, small, small)]

    def send_some(count: int) -> None:
        for _ in range(count):
            with uncollected.raw() as raw:
                for method, path, body in (*requests, ("GET", "/v1/models", None)):
                    assert raw.request(method, path, body, key=KEY).status == 200

    send_some(40)
    before = resident(uncollected)
    send_some(150)
    assert resident(uncollected) < before + 150 * 10 * 1024  # the cached head of one request alone is larger
