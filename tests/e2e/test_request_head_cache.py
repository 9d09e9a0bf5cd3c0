"""A request head that differs from the previous one in known values only is not parsed. The responses are the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping

import pytest

from svc.gateway.server.request import Request
from svc.gateway.server.request_head_cache import RequestHeadCache
from svc.security import Keyring
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway, run
from tests.fakes.http_client import Got, RawClient
from tests.fakes.provider import FakeProvider

CHAT = json.dumps({"model": GPT, "messages": HI}).encode()
LONGER = json.dumps({"model": GPT, "messages": [{"role": "user", "content": "x" * 2000}]}).encode()
LINES = (
    "POST /v1/chat/completions HTTP/1.1",
    "Host: x",
    f"Authorization: Bearer {KEY}",
    "Content-Length: {}",
    "X-Request-Id: mine",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)
KEYRING = Keyring([KEY])


def make_request(body: bytes = CHAT, length: str = "", **changed: str) -> bytes:
    """Return a request. `l2="…"` replaces the third line of the head, for example."""
    lines = [changed.get(f"l{number}", line) for number, line in enumerate(LINES)]
    return "\r\n".join(lines).format(length or len(body)).encode() + b"\r\n\r\n" + body


REQUEST = make_request()
VARIANTS = {
    "same": REQUEST,
    "another request id": make_request(l4="X-Request-Id: other"),
    "an empty request id": make_request(l4="X-Request-Id: "),
    "another trace": make_request(l5="traceparent: 00-1"),
    "a trace with a control character": make_request(l5="traceparent: 00-\x01"),
    "a trace with a bare carriage return": make_request(l5="traceparent: 00\rX-Request-Id: x"),
    "a trace in Latin-1": make_request(l5="traceparent: \u00e9"),
    "a header in place of the trace": make_request(l5="tracestate: a=1"),
    "another body": make_request(CHAT.replace(b"Hi", b"Ho")),
    "a longer body": make_request(LONGER),
    "invalid JSON": make_request(b"x"),
    "no body": make_request(b""),
    "a truncated body": REQUEST[:-1],
    "two at once": REQUEST * 2,
    "one and a half": REQUEST + REQUEST[:40],
    "one and an empty line": REQUEST + b"\r\n",
    "an empty line and one": b"\r\n" + REQUEST,
    "a body longer than its length": REQUEST + b"x",
    "zeros before the length": make_request(length=f"0{len(CHAT)}"),
    "a sign before the length": make_request(length=f"+{len(CHAT)}"),
    "a comma in the length": make_request(length=f"{len(CHAT)},{len(CHAT)}"),
    "a space after the length": make_request(length=f"{len(CHAT)} "),
    "a bare line feed": REQUEST.replace(b"\r\nX-Req", b"\nX-Req"),
    "two lengths": make_request(l4=f"Content-Length: {len(CHAT)}"),
    "a length and chunks": make_request(l4="Transfer-Encoding: chunked"),
    "expect continue": make_request(l4="Expect: 100-continue"),
    "an upgrade": make_request(l4="Upgrade: websocket"),
    "connection close": make_request(l4="Connection: close"),
    "a wrong key": make_request(l2="Authorization: Bearer wrong"),
    "no key": make_request(l2="X-Other: 1"),
    "another path": make_request(l0="POST /v1/nope HTTP/1.1"),
    "another method": make_request(l0="PUT /v1/chat/completions HTTP/1.1"),
    "another HTTP": make_request(l0="POST /v1/chat/completions HTTP/1.0"),
}


@pytest.fixture(scope="module")
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


def read_responses(raw: RawClient, wanted: int = 0) -> list[tuple[int, object, object]]:
    """Read at least `wanted` responses and return status, content or message, and echoed id of each."""
    found: list[Got] = []
    with contextlib.suppress(TimeoutError):
        while not found or found[-1].whole:
            raw.socket.settimeout(5.0 if len(found) < wanted else 0.1 if found else 0.7)
            found.append(raw.read())
    return [(got.status, content_of(got), got.headers.get("x-client-request-id")) for got in found if got.status]


def content_of(got: Got) -> object:
    if not got.whole or not got.body:
        return None
    return got.json["error"]["message"] if "error" in got.json else got.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("name", VARIANTS)
def test_request_head_cache_returns_same_responses_as_new_connection(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], name: str
) -> None:
    with RawClient(gateway.port) as raw, RawClient(gateway.port) as new:
        for _ in range(2):
            raw.send(REQUEST)
            assert raw.read().status == 200
        raw.send(VARIANTS[name])
        new.send(VARIANTS[name])
        wanted = read_responses(new)
        assert read_responses(raw, len(wanted)) == wanted
        assert wanted or name in ("a truncated body", "no body", "expect continue")


def test_request_head_cache_handles_every_split_and_length(gateway: Gateway, provider_a: FakeProvider) -> None:
    with RawClient(gateway.port) as raw:
        for cut in (1, 20, len(REQUEST) - len(CHAT) - 1, len(REQUEST) - len(CHAT), len(REQUEST) - 1):
            raw.send(REQUEST[:cut])
            time.sleep(0.02)
            raw.send(REQUEST[cut:])
            assert raw.read().status == 200
            raw.send(REQUEST)
            assert raw.read().status == 200
        for size in (*range(1, 40), 98, 99, 100, 101, 998, 1001, 9_000, 20_000, 40_000, 70_000):
            body = json.dumps({"model": GPT, "messages": [{"role": "user", "content": "é" + "x" * size}]}).encode()
            raw.send(make_request(body))
            assert raw.read().status == 200
            assert provider_a.requests[-1].json["messages"][0]["content"] == "é" + "x" * size


def test_request_head_cache_partial_head_is_not_skipped(gateway: Gateway) -> None:
    """Bytes after a partial head belong to it, even if they look like a cached head."""
    with RawClient(gateway.port) as raw:
        raw.send(REQUEST)
        assert raw.read().status == 200
        wrong_key_request = VARIANTS["a wrong key"]
        raw.send(wrong_key_request[:1])
        time.sleep(0.05)
        raw.send(wrong_key_request[1:] + b"POST /v1/chat/completions HTTP/1.1\r\nHost: y\r\nX-Rest: ")
        assert raw.read().status == 401
        raw.send(REQUEST)
        got = raw.read()
        assert (got.status, got.code) == (400, "invalid_request")  # two hosts
        assert raw.closed()


def test_request_head_cache_revoked_key_returns_401(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = json.loads(run("keys", "create", "--json", "--name", "k", home=gateway.home).stdout)
    request = make_request(l2=f"Authorization: Bearer {made['key']}")
    with RawClient(gateway.port) as raw:
        for _ in range(3):
            raw.send(request)
            assert raw.read().status == 200
        assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
        time.sleep(1.0)
        raw.send(request)
        assert raw.read().status == 401


def test_request_head_cache_body_too_large_returns_413(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nmax_body = 0.001\n")
    with RawClient(gateway.port) as raw:
        raw.send(REQUEST)
        assert raw.read().status == 200
        raw.send(make_request(LONGER))
        assert raw.read().status == 413


def test_request_head_cache_other_head_never_matches() -> None:
    cache = learn(REQUEST)
    assert match(cache, REQUEST) == CHAT
    fixed = REQUEST[: REQUEST.index(b"mine")]
    for at, byte in itertools.product(range(len(fixed)), (b"", b"0", b"9", b"\r", b"\x00", b" ")):
        changed = REQUEST[:at] + byte + REQUEST[at + 1 :]
        assert changed == REQUEST or not match(cache, changed), changed
    for size in range(1, 1200):
        body = b"x" * size
        assert match(cache, make_request(body)) == body
        assert not match(cache, make_request(body, str(size + 1)))
        assert not match(cache, make_request(body, str(size - 1)))


@pytest.mark.parametrize("value", ["", "other", "x" * 1000, "a b\t"])
def test_request_head_cache_other_variable_value_matches_unless_unprintable(value: str) -> None:
    cache = learn(REQUEST)
    found = match(cache, make_request(l5=f"traceparent: {value}"))
    assert found == (CHAT if value.isprintable() else b"")
    assert match(cache, make_request(l4=f"X-Request-Id: {value}")) == found
    if found:
        assert cache.request is not None
        assert cache.request.client_request_id == (value if 0 < len(value) <= 128 else None)


@pytest.mark.parametrize("name", ["two at once", "one and an empty line"])
def test_request_head_cache_ambiguous_request_is_not_learned(name: str) -> None:
    assert learn(VARIANTS[name]).request is None


def match(cache: RequestHeadCache, data: bytes) -> bytes:
    """Return the body if the head of `data` is cached, or else empty bytes."""
    request = cache.match(data, 10_000, KEYRING)
    return request.take_body() if request is not None else b""


def learn(data: bytes) -> RequestHeadCache:
    """Learn a head as the connection handler does after it has read the request."""
    request = Request()
    request.content_length = len(CHAT)
    request.api_key = KEYRING.lookup_cached(KEY)
    request.headers = [(b"authorization", f"Bearer {KEY}".encode())]
    cache = RequestHeadCache(is_enabled=True)
    cache.learn(data, request)
    return cache
