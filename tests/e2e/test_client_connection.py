"""Hostile and unusual clients on a connection. Each test covers a former vulnerability."""

import asyncio
import re

import pytest

from tests.e2e.harness import Gateway

AUTH = "authorization: Bearer {key}\r\n"


async def exchange(gateway: Gateway, raw: bytes, *, seconds: float = 3.0) -> bytes:
    """Send bytes and return everything received until the server closes or `seconds` have passed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    found = b""
    try:
        writer.write(raw)
        async with asyncio.timeout(seconds):
            while data := await reader.read(65536):
                found += data
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return found


@pytest.mark.parametrize("target", [b"example.org:443", b"/v1/chat/completions"])
async def test_connect_method_returns_405_once(gateway: Gateway, target: bytes) -> None:
    """The response lists the allowed methods, as RFC 9110, 15.5.6 requires for 405."""
    found = await exchange(gateway, b"CONNECT " + target + b" HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 405 ")
    assert found.count(b"HTTP/1.1") == 1
    assert found.count(b"\r\nallow: GET, HEAD, POST\r\n") == 1


async def test_trailer_is_not_used_as_header(gateway: Gateway) -> None:
    raw = (
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        b"0\r\nauthorization: Bearer " + gateway.key.encode() + b"\r\n\r\n"
    )
    assert (await exchange(gateway, raw)).startswith(b"HTTP/1.1 401 ")


async def test_large_body_without_key_is_rejected(gateway: Gateway) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    for path, status in ((b"/nope", b"413"), (b"/v1/nope", b"401")):
        found = await exchange(gateway, head % path + bytes(200_000))
        assert found.startswith(b"HTTP/1.1 " + status), (path, found[:100])


async def test_absolute_form_target_returns_200(gateway: Gateway) -> None:
    found = await exchange(gateway, b"GET http://x/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200 ")


async def test_pipelined_requests_are_all_answered(gateway: Gateway) -> None:
    raw = (
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 60
        + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    assert (await exchange(gateway, raw, seconds=20)).count(b"HTTP/1.1 200 ") == 61


async def test_http_1_0_keep_alive_returns_connection_keep_alive(gateway: Gateway) -> None:
    body = b"{}"
    head = f"POST /v1/chat/completions HTTP/1.0\r\nconnection: keep-alive\r\n{AUTH.format(key=gateway.key)}"
    found = await exchange(gateway, head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body, seconds=1)
    assert b"connection: keep-alive" in found.lower()


async def test_chat_wrong_method_returns_allow_post(gateway: Gateway) -> None:
    head = (
        f"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{AUTH.format(key=gateway.key)}\r\n"
    )
    found = await exchange(gateway, head.encode())
    assert re.search(rb"(?i)\r\nallow: POST\r\n", found), found


async def test_chat_without_key_and_wrong_content_type_returns_401(gateway: Gateway) -> None:
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=x\r\n"
    found = await exchange(gateway, raw + b"connection: close\r\ncontent-length: 0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("authorised", [False, True])
async def test_client_pipelining_without_reading_is_paused(gateway: Gateway, authorised: bool) -> None:
    auth = AUTH.format(key=gateway.key) if authorised else ""
    one = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{auth}content-length: 2\r\n\r\n{{}}".encode()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    sent = 0
    try:
        async with asyncio.timeout(3):
            while sent < 64 * 1024 * 1024:
                writer.write(one * 500)
                sent += len(one) * 500
                await writer.drain()
    except (TimeoutError, ConnectionError):
        pass
    writer.transport.abort()
    assert sent < 32 * 1024 * 1024, "the gateway kept reading requests that it could not answer"
