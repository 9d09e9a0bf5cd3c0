"""Bodies that are read without the parser: any split, and anything after them."""

import asyncio
import hashlib
import json
import random

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, Gateway
from tests.fakes.provider import FakeProvider

SIZES = [65_536, 66_000, 300_000, 3_000_000]


def request(gateway: Gateway, size: int, *, more: str = "") -> tuple[bytes, bytes]:
    """Return head and body of a chat whose prompt has `size` characters."""
    content = random.Random(size).randbytes(size // 2).hex()
    body = json.dumps({"model": GPT, "messages": [{"role": "user", "content": content}]}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        f"content-length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode(), body


async def exchange(gateway: Gateway, writes: list[bytes], *, pause: float = 0.0, answers: int = 1) -> bytes:
    """Send the writes and return what was received after `answers` responses, or raise after ten seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    found = b""
    try:
        async with asyncio.timeout(10):
            for data in writes:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(pause)
            while found.count(b'"chat.completion"') + found.count(b'"error"') < answers:
                if not (data := await reader.read(65536)):
                    break
                found += data
    finally:
        writer.close()
    return found


def body_digests(provider: FakeProvider) -> list[str]:
    return [hashlib.sha256(each.body).hexdigest() for each in provider.requests]


@pytest.mark.parametrize("size", SIZES)
async def test_long_body_in_several_writes_is_forwarded_unchanged(
    gateway: Gateway, provider_a: FakeProvider, size: int
) -> None:
    head, body = request(gateway, size)
    cuts = sorted(random.Random(size + 1).sample(range(len(body)), 7))
    writes = [head, *(body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True))]
    found = await exchange(gateway, writes, pause=0.01)
    assert found.startswith(b"HTTP/1.1 200 "), found[:300]
    assert body_digests(provider_a) == [hashlib.sha256(body).hexdigest()]


async def test_long_body_with_delayed_last_byte_is_forwarded_unchanged(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    head, body = request(gateway, 200_000)
    found = await exchange(gateway, [head + body[:-1], body[-1:]], pause=0.2)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert body_digests(provider_a) == [hashlib.sha256(body).hexdigest()]


async def test_long_body_pipelined_requests_are_answered(gateway: Gateway, provider_a: FakeProvider) -> None:
    one, two = request(gateway, 300_000), request(gateway, 200_000)
    small = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    found = await exchange(gateway, [b"".join(one) + b"".join(two) + small], answers=2)
    assert found.count(b"HTTP/1.1 200 ") >= 2
    assert body_digests(provider_a) == [hashlib.sha256(body).hexdigest() for _, body in (one, two)]


async def test_long_body_followed_by_garbage_returns_400_after_response(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    head, body = request(gateway, 200_000)
    found = await exchange(gateway, [head + body + b"\x00\x01 rubbish\r\n\r\n"], answers=2)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in found
    assert len(provider_a.requests) == 1


async def test_long_body_with_connection_close_closes_connection(gateway: Gateway) -> None:
    head, body = request(gateway, 200_000, more="connection: close\r\n")
    found = await exchange(gateway, [head + body], answers=2)  # ends since the server closes
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close\r\n" in found


async def test_long_body_client_disconnect_sends_nothing_upstream(gateway: Gateway, provider_a: FakeProvider) -> None:
    head, body = request(gateway, 300_000)
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head + body[:150_000])
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.transport.abort()
    found = await exchange(gateway, [b"".join(request(gateway, 100_000))])
    assert found.startswith(b"HTTP/1.1 200 ")
    assert len(provider_a.requests) == 1


async def test_long_body_incomplete_returns_408(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nbody_timeout = 0.5\n")
    head, body = request(gateway, 300_000)
    found = await exchange(gateway, [head + body[:150_000]])
    assert found.startswith(b"HTTP/1.1 408 ")
    assert provider_a.requests == []
