"""Arbitrary bytes in arbitrary writes on a real socket: a 4xx or a close in time, no 5xx, and no leaks.

`make test` runs few, deterministic examples. `FUZZ=2000 pytest tests/e2e/test_http_fuzz.py` searches for new ones.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import serve
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider

ROUNDS = int(os.environ.get("FUZZ", "10"))
CONNECTIONS_PER_ROUND = 40
"""Connections in one round, each with different bytes."""
MAX_SECONDS = 4.0
"""More than the sum of the timeouts below."""
SETTINGS = "[gateway]\nheader_timeout = 0.3\nbody_timeout = 0.3\nkeep_alive = 0.3\n"
CHAT = {"model": GPT, "messages": HI}
CHUNKED = b"transfer-encoding: chunked\r\n\r\n5;a=b\r\n{    \r\n1\r\n}\r\n0\r\nx: y\r\n\r\n"
GOOD = [
    b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + KEY.encode() + b"\r\n\r\n",
    b"HEAD /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    request_bytes("POST", "/v1/chat/completions", CHAT, key=KEY),
    request_bytes("POST", "/v1/chat/completions", {**CHAT, "stream": True}, key=KEY),
    request_bytes("POST", "/v1/messages", {**CHAT, "max_tokens": 9}, key=KEY, headers={"expect": "100-continue"}),
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + KEY.encode() + b"\r\n" + CHUNKED,
    b"GET /v1/nope HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}",
]
MARKS = [b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\x00", b":", b",", b";", b"0\r\n\r\n", b"f" * 16 + b"\r\n"]
HEADERS = """host: y|content-length: 5|content-length: 0|content-length: 99999999999|transfer-encoding: chunked
Transfer-Encoding: x|expect: 100-continue|connection: close|connection: keep-alive, upgrade|upgrade: websocket
upgrade: h2c"""
PARTS = """POST |GET |CONNECT |OPTIONS * |HTTP/1.0|HTTP/2.0|PRI * HTTP/2.0|/v1/chat/completions |http://|/%00?#|{|{"model":
1ff|-1|x-a: """
WORDS = [
    *MARKS,
    *(line.encode() + b"\r\n" for line in HEADERS.replace("\n", "|").split("|")),
    *(part.encode() for part in PARTS.replace("\n", "|").split("|")),
    *(b"\xff\xfe", b"a" * 70_000, b"a: b\r\n" * 150),
]


@st.composite
def connection_bytes(draw: st.DrawFn) -> bytes:
    """Requests with removed, inserted or repeated bytes, or random bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=400))
    data = b"".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        put = draw(st.sampled_from(WORDS) | st.binary(max_size=4) | st.just(data[start:end] * 2))
        data = data[:start] + put + data[end:]
    return data


@st.composite
def connection_writes(draw: st.DrawFn) -> list[bytes]:
    data = draw(connection_bytes())
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in itertools.pairwise([0, *cuts, len(data)])]


@pytest.fixture(scope="module")
def short_timeout_gateway(
    all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    yield from serve(all_fakes, tmp_path_factory.mktemp("gateway"), SETTINGS)
    for fake in all_fakes.values():
        fake.forget()


@given(connections=st.lists(connection_writes(), min_size=CONNECTIONS_PER_ROUND, max_size=CONNECTIONS_PER_ROUND))
@settings(
    max_examples=ROUNDS,
    deadline=None,
    derandomize="FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
def test_http_fuzz_any_bytes_return_4xx_or_close_in_time(
    short_timeout_gateway: Gateway, connections: list[list[bytes]]
) -> None:
    for writes, answer in zip(
        connections, asyncio.run(exchange_all(short_timeout_gateway.port, connections)), strict=True
    ):
        assert answer is not None, f"no end after {MAX_SECONDS} s: {writes}"
        statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
        assert not [status for status in statuses if status[:1] not in b"124"], (writes, answer)
    assert short_timeout_gateway.request("GET", "/health").status == 200
    assert short_timeout_gateway.chat().status == 200
    wait_until_idle(short_timeout_gateway)


async def exchange_all(port: int, connections: list[list[bytes]]) -> list[bytes | None]:
    return await asyncio.gather(*(exchange(port, writes) for writes in connections))


async def exchange(port: int, writes: list[bytes]) -> bytes | None:
    """Return everything received until the gateway closes, or None on timeout. The client never half-closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = bytearray()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            for data_written in writes:
                writer.write(data_written)
                await asyncio.sleep(0.003)
            while data := await reader.read(65536):
                answer += data
    except ConnectionError:
        pass
    except TimeoutError:
        return None
    finally:
        writer.transport.abort()
    return bytes(answer)


def wait_until_idle(gateway: Gateway) -> None:
    """Wait until no request is open, and no connection except that of the metrics request."""
    deadline = time.monotonic() + MAX_SECONDS
    wanted = ("svc_open_requests 0", "svc_open_connections 1")
    while not all(line in (page := gateway.request("GET", "/metrics").body.decode()) for line in wanted):
        assert time.monotonic() < deadline, page
        time.sleep(0.05)
