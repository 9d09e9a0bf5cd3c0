"""Ambiguous HTTP, split at any place, and pipelined requests, on a real socket.

`test_http.py` has the basic cases. Here the same bytes arrive in one or several writes. Requests before and after
them on the connection must not be affected.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.conftest import serve
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, Script, body, end, hold, sse

CHAT = {"model": GPT, "messages": HI}
BODY = json.dumps(CHAT).encode()
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
CHAT_REQUEST = request_bytes("POST", "/v1/chat/completions", CHAT, key=KEY)
CHUNKED = "transfer-encoding: chunked\r\n"
SIZE = b"%x" % len(BODY)
UPGRADE = "connection: upgrade\r\nupgrade: "
UPGRADE_REQUEST = f"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n{UPGRADE}websocket\r\n\r\n".encode()


def post(headers: str, body: bytes, version: str = "1.1") -> bytes:
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}{headers}\r\n".encode("latin-1") + body


def get(head: str) -> bytes:
    return f"GET /health HTTP/1.1\r\n{head}\r\n".encode("latin-1")


def last_chunk(data: bytes) -> bytes:
    return SIZE + b"\r\n" + BODY + data


WHOLE = last_chunk(b"\r\n0\r\n\r\n")
INVALID = {
    # WebSocket handshakes that the websockets library rejects
    "a WebSocket with a long line": UPGRADE_REQUEST.replace(b"realtime", b"a" * 8200),
    "a WebSocket with a long header": UPGRADE_REQUEST.replace(b"\r\n\r\n", b"\r\nx: " + b"a" * 8200 + b"\r\n\r\n"),
    "a WebSocket with a body": UPGRADE_REQUEST.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\nhello"),
    "a WebSocket with chunks": UPGRADE_REQUEST.replace(b"\r\n\r\n", f"\r\n{CHUNKED}\r\n0\r\n\r\n".encode()),
    # Host
    "no host": get(""),
    "two hosts": get("host: x\r\nhost: y\r\n"),
    "two hosts, chat endpoint": post(f"host: y\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "host with a space before the colon": get("host : x\r\n"),
    # body length
    "both lengths, reversed": post(f"{CHUNKED}content-length: 3\r\n", WHOLE),
    "both lengths, other endpoint": get(f"host: x\r\n{CHUNKED}content-length: 3\r\n"),
    "the same length twice": post(f"content-length: {len(BODY)}\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "no digits": post("content-length: \r\n", BODY),
    "thirty digits": post(f"content-length: {'9' * 30}\r\n", BODY),
    "underscore in the length": post("content-length: 1_0\r\n", BODY),
    "two numbers": post("content-length: 5 5\r\n", BODY),
    "chunked twice": post(CHUNKED * 2, WHOLE),
    "chunked, chunked": post("transfer-encoding: chunked, chunked\r\n", WHOLE),
    "gzip, chunked": post("transfer-encoding: gzip, chunked\r\n", WHOLE),
    "identity": post("transfer-encoding: identity\r\n", BODY),
    "quoted coding": post('transfer-encoding: "chunked"\r\n', WHOLE),
    "vertical tab behind the coding": post("transfer-encoding: chunked\x0b\r\n", WHOLE),
    "chunked in HTTP/1.0": post(CHUNKED, WHOLE, "1.0"),
    "a length in the trailer": post(CHUNKED, last_chunk(b"\r\n0\r\ncontent-length: 5\r\n\r\n")),
    "a coding in the trailer": post(CHUNKED, last_chunk(b"\r\n0\r\ntransfer-encoding: chunked\r\n\r\n")),
    # chunks
    "LF behind the size": post(CHUNKED, SIZE + b"\n" + BODY + b"\r\n0\r\n\r\n"),
    "LF behind an extension": post(CHUNKED, SIZE + b";a\n" + BODY + b"\r\n0\r\n\r\n"),
    "LF behind the data": post(CHUNKED, last_chunk(b"\n0\r\n\r\n")),
    "LF at the end": post(CHUNKED, last_chunk(b"\r\n0\n\n")),
    "0x before the size": post(CHUNKED, b"0x" + WHOLE),
    "plus before the size": post(CHUNKED, b"+" + WHOLE),
    "space before the size": post(CHUNKED, b" " + WHOLE),
    "space behind the size": post(CHUNKED, SIZE + b" \r\n" + BODY + b"\r\n0\r\n\r\n"),
    "no size": post(CHUNKED, b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size of 2**64 + 1": post(CHUNKED, b"10000000000000001\r\n{"),
    # lines
    "LF before the end of the head": b"GET /health HTTP/1.1\r\nhost: x\r\n\n",
    "LF behind the request line": b"GET /health HTTP/1.1\nhost: x\r\n\r\n",
    "CR alone": HEALTH.replace(b"\r\n", b"\r"),
    "CR CR LF": b"GET /health HTTP/1.1\r\nhost: x\r\r\n\r\n",
    "folded header, chat endpoint": post(f"x-a: b\r\n\tc\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "first header folded": get(" host: x\r\n"),
    "header without a name": get("host: x\r\n: y\r\n"),
    "DEL in a value": get("host: x\r\nx-a: \x7f\r\n"),
    "control byte in a value": get("host: x\r\nx-a: \x01\r\n"),
    # the request line
    "lowercase method": HEALTH.replace(b"GET", b"get"),
    "lowercase protocol": HEALTH.replace(b"HTTP", b"http"),
    "RTSP": HEALTH.replace(b"HTTP/1.1", b"RTSP/1.0"),
    "RTSP with an HTTP method": b"OPTIONS /health RTSP/1.0\r\nhost: x\r\n\r\n",
    "ICE": b"SOURCE /health ICE/1.0\r\nhost: x\r\n\r\n",
    "two spaces behind the method": HEALTH.replace(b"GET ", b"GET  "),
    "two spaces behind the path": HEALTH.replace(b" HTTP", b"  HTTP"),
    "two spaces, chat endpoint": CHAT_REQUEST.replace(b"POST ", b"POST  "),
    # keys
    "two keys, other endpoint": get(f"host: x\r\nauthorization: Bearer {KEY}\r\nauthorization: Bearer {KEY}\r\n"),
    "two keys, chat endpoint": CHAT_REQUEST.replace(b"\r\n", f"\r\nauthorization: Bearer {KEY}\r\n".encode(), 1),
    "two keys in x-api-key": get(f"host: x\r\nx-api-key: {KEY}\r\nx-api-key: other\r\n"),
    "two keys for an upgrade": get(f"host: x\r\n{UPGRADE}websocket\r\n" + f"authorization: Bearer {KEY}\r\n" * 2),
    "tabs in the request line": HEALTH.replace(b" ", b"\t"),
    "HTTP/1.10": HEALTH.replace(b"1.1", b"1.10"),
    "HTTP/0.9": HEALTH.replace(b"1.1", b"0.9"),
    "control byte in the path": HEALTH.replace(b"/health", b"/hea\x01lth"),
    "NUL in the path": HEALTH.replace(b"/health", b"/health\x00"),
    "bytes beyond ASCII in the path": HEALTH.replace(b"/health", "/hé".encode()),
    "no path": HEALTH.replace(b"/health", b""),
    "path without a slash": HEALTH.replace(b"/health", b"health"),
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n",
    # sizes
    "200 headers": get("host: x\r\n" + "a: b\r\n" * 200),
    "a large trailer": post(CHUNKED, last_chunk(b"\r\n0\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n")),
}

UNUSUAL = {
    "empty lines before the request": b"\r\n\r\n" + HEALTH,
    "header without a value": get("host: x\r\nx-a:\r\n"),
    "Latin-1 in a value": get("host: x\r\nx-a: \xe9\r\n"),
    "chunks with extensions": post(CHUNKED, SIZE + b';a="b";c\r\n' + BODY + b"\r\n0\r\n\r\n"),
    "one byte in each chunk": post(CHUNKED, b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    "zeros before the size": post(CHUNKED, b"0" * 20 + WHOLE),
    "uppercase coding": post(CHUNKED.upper(), WHOLE),
    "a trailer": post(CHUNKED, last_chunk(b"\r\n0\r\nx-sum: 1\r\n\r\n")),
    "tab before the length": post(f"content-length:\t{len(BODY)}\r\n", BODY),
    "underscores in a name": post(f"transfer_encoding: chunked\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "absolute-form target": get("host: x\r\n").replace(b"/health", b"http://other/health"),
    "absolute-form target, chat endpoint": CHAT_REQUEST.replace(b"/v1", b"HTTP://other/v1"),
    "HTTP/2 offered": post(f"{UPGRADE}h2c\r\nhttp2-settings: AAMAAABk\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "HTTP/2 offered, chunked": post(f"{UPGRADE}h2c\r\n{CHUNKED}", WHOLE),
    "HTTP/2 offered, other endpoint": get(f"host: x\r\n{UPGRADE}h2c\r\n"),
    "a WebSocket asked for with POST": post(f"{UPGRADE}websocket\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "unknown expectation": post(f"expect: wonders\r\ncontent-length: {len(BODY)}\r\n", BODY),
    "GET with a body": get("host: x\r\ncontent-length: 5\r\n") + b"hello",
}


@pytest.fixture(scope="module")
def short_timeout_gateway(
    all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with short timeouts, which reveal requests that it considers incomplete."""
    config = "[gateway]\nheader_timeout = 0.5\nbody_timeout = 0.5\n"
    yield from serve(all_fakes, tmp_path_factory.mktemp("gateway"), config)


def send_in_writes(client: RawClient, data: bytes, writes: int) -> None:
    """Send the data in several writes, which are normally read separately."""
    size = max(1, -(-len(data) // writes))
    for start in range(0, len(data), size):
        try:
            client.send(data[start : start + size])
        except ConnectionError:  # the request was rejected before its end
            return
        if writes > 1:
            time.sleep(0.001)


@pytest.mark.parametrize("writes", [1, 3, 17])
@pytest.mark.parametrize("what", INVALID)
def test_hostile_http_invalid_request_returns_4xx_and_is_not_forwarded(
    short_timeout_gateway: Gateway, fakes: Mapping[str, FakeProvider], what: str, writes: int
) -> None:
    with short_timeout_gateway.raw() as client:
        send_in_writes(client, INVALID[what], writes)
        got = client.read()
        assert 400 <= got.status < 500
        assert got.status != 408, "the gateway waited for more bytes"
        assert got.json["error"]["code"] in ("invalid_request", "method_not_allowed")
        assert client.closed()
    assert not any(fake.requests for fake in fakes.values())


@pytest.mark.parametrize("writes", [1, 3, 17])
@pytest.mark.parametrize("what", UNUSUAL)
def test_hostile_http_unusual_but_valid_request_returns_200(
    short_timeout_gateway: Gateway, fakes: Mapping[str, FakeProvider], what: str, writes: int
) -> None:
    with short_timeout_gateway.raw() as client:
        send_in_writes(client, UNUSUAL[what] + HEALTH, writes)
        assert client.read().status == 200
        assert client.read().json["status"] == "ok"
    assert sum(len(fake.requests) for fake in fakes.values()) == UNUSUAL[what].startswith(b"POST")


UNREADABLE = ("websocket", "websocket, two Connection headers", "garbage", "two hosts", "CONNECT", "chunked twice")


@pytest.mark.parametrize("before", [HEALTH, CHAT_REQUEST, CHAT_REQUEST * 3], ids=["health", "chat", "three chats"])
@pytest.mark.parametrize("after", UNREADABLE)
def test_hostile_http_requests_before_invalid_one_are_answered(
    short_timeout_gateway: Gateway, fakes: object, before: bytes, after: str
) -> None:
    undecided = UPGRADE_REQUEST.replace(b"upgrade\r\n", b"upgrade\r\nconnection: keep-alive\r\n", 1)
    others = {
        "websocket": UPGRADE_REQUEST,
        "websocket, two Connection headers": undecided,
        "garbage": b"\x00garbage\r\n\r\n",
    }
    unreadable = (INVALID | others)[after]
    with short_timeout_gateway.raw() as client:
        client.send(before + unreadable)
        for _ in range(before.count(b" HTTP/1.1\r\n")):
            assert client.read().status == 200
        assert 400 <= client.read().status < 500
        assert client.closed()


@pytest.mark.parametrize("path", [b"realtime", b"nothing"])
def test_hostile_http_invalid_websocket_frames_close_connection(
    short_timeout_gateway: Gateway, fakes: object, path: bytes
) -> None:
    key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    with short_timeout_gateway.raw() as client:
        client.send(
            UPGRADE_REQUEST.replace(b"realtime", path).replace(b"\r\n\r\n", b"\r\n" + key) + b"\xff" * 100 + HEALTH
        )
        with contextlib.suppress(ConnectionError):
            while client.socket.recv(4096):  # until the connection closes, or TimeoutError
                pass  # `serve` checks that the log has no traceback


def test_hostile_http_garbage_during_stream_does_not_interrupt_it(gateway: Gateway, provider_a: FakeProvider) -> None:
    gate = Gate()
    events = openai_wire.stream("Hi there")
    rest = Script(tuple(step for event in events[2:] for step in body(event).steps))
    provider_a.plays(sse(events[:2], end=hold(gate) + rest + end()))
    with gateway.raw() as client:
        client.send(request_bytes("POST", "/v1/chat/completions", {**CHAT, "stream": True}, key=KEY))
        gate.reached()
        client.send(b"\x16\x03\x01garbage" * 1000)
        gate.open()
        assert client.read().body.endswith(b"data: [DONE]\n\n")
        assert client.read().status == 400
        assert client.closed()


@pytest.mark.parametrize("first", [HEALTH, CHAT_REQUEST], ids=["health", "chat"])
@pytest.mark.parametrize("upgrade", ["", f"{UPGRADE}h2c\r\n"], ids=["plain", "upgrade"])
def test_expect_continue_pipelined_is_sent_after_previous_response(
    gateway: Gateway, first: bytes, upgrade: str
) -> None:
    """The client sends its body only after `100 Continue`, which follows the previous response."""
    with gateway.raw(timeout=5) as client:
        client.send(first + post(f"expect: 100-continue\r\n{upgrade}content-length: {len(BODY)}\r\n", b""))
        assert client.read().status == 200
        assert client.read_continue()
        client.send(BODY)
        assert client.read().status == 200


def test_expect_continue_pipelined_without_key_returns_401(gateway: Gateway) -> None:
    request = post(f"expect: 100-continue\r\ncontent-length: {len(BODY)}\r\n", b"").replace(KEY.encode(), b"wrong")
    with gateway.raw() as client:
        client.send(CHAT_REQUEST + request)
        assert [client.read().status, client.read().status] == [200, 401]
        assert client.closed()


def test_expect_continue_in_http_1_0_is_ignored(gateway: Gateway) -> None:
    with gateway.raw() as client:
        client.send(post(f"expect: 100-continue\r\ncontent-length: {len(BODY)}\r\n", b"", "1.0"))
        client.send(BODY)
        assert client.socket.recv(12) == b"HTTP/1.1 200"


def test_connection_close_ignores_later_request(gateway: Gateway, provider_a: FakeProvider) -> None:
    with gateway.raw() as client:
        client.send(post(f"connection: close\r\ncontent-length: {len(BODY)}\r\n", BODY) + CHAT_REQUEST)
        assert client.read().status == 200
        assert client.closed()
    assert len(provider_a.requests) == 1


def test_connection_close_after_error_ignores_later_request(gateway: Gateway) -> None:
    before = gateway.log.count('"invalid_request"')
    with gateway.raw() as client:
        client.send(post("connection: close\r\ncontent-length: 1\r\n", b"x") + CHAT_REQUEST)
        assert client.read().status == 400
        assert client.closed()
    time.sleep(0.6)  # until everything is logged
    assert gateway.log.count('"invalid_request"') == before + 1


def test_client_sending_all_before_reading_gets_every_response(gateway: Gateway) -> None:
    """Reading pauses within a request and continues there."""
    rejected_request = post(f"x-request-id: {'i' * 128}\r\ncontent-length: 900\r\n", b"x" * 900).replace(
        KEY.encode(), b"wrong"
    )
    count = 15_000  # their responses exceed the socket buffers
    with gateway.raw() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        sender = threading.Thread(target=client.send, args=(rejected_request * count,))
        sender.start()
        time.sleep(1)  # until nothing more can be written
        assert sender.is_alive()
        assert {client.read().status for _ in range(count)} == {401}
        sender.join(10)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/v1/admin/keys")],
)
def test_authorization_sent_twice_returns_400(
    gateway: Gateway, provider_a: FakeProvider, method: str, path: str
) -> None:
    body = b'{"model": "gpt-4o", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}'
    for second in (KEY, "another"):
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
        head += f"authorization: Bearer {second}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        with gateway.raw() as client:
            client.send(head.encode() + body)
            refused = client.read()
        assert refused.status == 400, refused.body
        assert b"invalid_request" in refused.body
    assert provider_a.requests == []
