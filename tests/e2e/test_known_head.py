"""A head that is like the last one of its connection is compared, not parsed: nobody can tell by the answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping

import pytest

from svc.gateway.server.request import Request, RequestHeadCache
from svc.wire.key import ApiKey
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
)


def a_request(body: bytes = CHAT, length: str = "", **changed: str) -> bytes:
    """The usual head, or with lines of it changed: `l2="…"` is the third."""
    lines = [changed.get(f"l{number}", line) for number, line in enumerate(LINES)]
    return "\r\n".join(lines).format(length or len(body)).encode() + b"\r\n\r\n" + body


USUAL = a_request()
ODD = {
    "the same": USUAL,
    "another body": a_request(CHAT.replace(b"Hi", b"Ho")),
    "a longer body": a_request(LONGER),
    "what is no JSON": a_request(b"x"),
    "no body": a_request(b""),
    "a body that is cut off": USUAL[:-1],
    "two at once": USUAL * 2,
    "one and a half": USUAL + USUAL[:40],
    "one and an empty line": USUAL + b"\r\n",
    "an empty line and one": b"\r\n" + USUAL,
    "a longer body than it says": USUAL + b"x",
    "zeros before the length": a_request(length=f"0{len(CHAT)}"),
    "a sign before the length": a_request(length=f"+{len(CHAT)}"),
    "a comma in the length": a_request(length=f"{len(CHAT)},{len(CHAT)}"),
    "a blank after the length": a_request(length=f"{len(CHAT)} "),
    "a bare line feed": USUAL.replace(b"\r\nX-Req", b"\nX-Req"),
    "two lengths": a_request(l4=f"Content-Length: {len(CHAT)}"),
    "a length and chunks": a_request(l4="Transfer-Encoding: chunked"),
    "a wish to go on": a_request(l4="Expect: 100-continue"),
    "an upgrade": a_request(l4="Upgrade: websocket"),
    "the last one": a_request(l4="Connection: close"),
    "a wrong key": a_request(l2="Authorization: Bearer wrong"),
    "no key": a_request(l2="X-Other: 1"),
    "another path": a_request(l0="POST /v1/nope HTTP/1.1"),
    "another method": a_request(l0="PUT /v1/chat/completions HTTP/1.1"),
    "another HTTP": a_request(l0="POST /v1/chat/completions HTTP/1.0"),
}


@pytest.fixture(scope="module")
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


def answers(raw: RawClient, wanted: int = 0) -> list[tuple[int, object, object]]:
    """Status, content or code, and echoed id of all that comes back, and of at least so many."""
    found: list[Got] = []
    with contextlib.suppress(TimeoutError):
        while not found or found[-1].whole:
            raw.socket.settimeout(5.0 if len(found) < wanted else 0.1 if found else 0.7)
            found.append(raw.read())
    return [(got.status, said(got), got.headers.get("x-client-request-id")) for got in found if got.status]


def said(got: Got) -> object:
    if not got.whole or not got.body:
        return None
    return got.json["error"]["message"] if "error" in got.json else got.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("name", ODD)
def test_it_is_answered_as_on_a_connection_that_is_new(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], name: str
) -> None:
    with RawClient(gateway.port) as raw, RawClient(gateway.port) as new:
        for _ in range(2):
            raw.send(USUAL)
            assert raw.read().status == 200
        raw.send(ODD[name])
        new.send(ODD[name])
        wanted = answers(new)
        assert answers(raw, len(wanted)) == wanted
        assert wanted or name in ("a body that is cut off", "no body", "a wish to go on")


def test_every_cut_and_every_length(gateway: Gateway, provider_a: FakeProvider) -> None:
    with RawClient(gateway.port) as raw:
        for cut in (1, 20, len(USUAL) - len(CHAT) - 1, len(USUAL) - len(CHAT), len(USUAL) - 1):
            raw.send(USUAL[:cut])
            time.sleep(0.02)
            raw.send(USUAL[cut:])
            assert raw.read().status == 200
            raw.send(USUAL)
            assert raw.read().status == 200
        for size in (*range(1, 40), 98, 99, 100, 101, 998, 1001, 9_000, 20_000, 40_000, 70_000):
            body = json.dumps({"model": GPT, "messages": [{"role": "user", "content": "é" + "x" * size}]}).encode()
            raw.send(a_request(body))
            assert raw.read().status == 200
            assert provider_a.requests[-1].json["messages"][0]["content"] == "é" + "x" * size


def test_half_a_request_is_no_beginning(gateway: Gateway) -> None:
    """It came behind a request that was answered at once; what follows is the rest of it, whatever it looks like."""
    with RawClient(gateway.port) as raw:
        raw.send(USUAL)
        assert raw.read().status == 200
        refused = ODD["a wrong key"]
        raw.send(refused[:1])
        time.sleep(0.05)
        raw.send(refused[1:] + b"POST /v1/chat/completions HTTP/1.1\r\nHost: y\r\nX-Rest: ")
        assert raw.read().status == 401
        raw.send(USUAL)
        got = raw.read()
        assert (got.status, got.code) == (400, "invalid_request")  # two hosts
        assert raw.closed()


def test_a_revoked_key_is_refused_on_its_own_connection(gateway: Gateway, provider_a: FakeProvider) -> None:
    made = json.loads(run("keys", "create", "--json", "--name", "k", home=gateway.home).stdout)
    request = a_request(l2=f"Authorization: Bearer {made['key']}")
    with RawClient(gateway.port) as raw:
        for _ in range(3):
            raw.send(request)
            assert raw.read().status == 200
        assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
        time.sleep(1.0)
        raw.send(request)
        assert raw.read().status == 401


def test_the_largest_body_is_the_same(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nmax_body = 0.001\n")
    with RawClient(gateway.port) as raw:
        raw.send(USUAL)
        assert raw.read().status == 200
        raw.send(a_request(LONGER))
        assert raw.read().status == 413


def test_no_other_bytes_are_taken_for_the_known_head() -> None:
    known = learned(USUAL)
    assert known.match_body(USUAL) == CHAT
    for at, byte in itertools.product(range(len(USUAL) - len(CHAT)), (b"", b"0", b"9", b"\r", b"\x00", b" ")):
        changed = USUAL[:at] + byte + USUAL[at + 1 :]
        assert changed == USUAL or not known.match_body(changed), changed
    for size in range(1, 1200):
        body = b"x" * size
        assert known.match_body(a_request(body)) == body
        assert not known.match_body(a_request(body, str(size + 1)))
        assert not known.match_body(a_request(body, str(size - 1)))


@pytest.mark.parametrize("name", ["two at once", "one and an empty line", "a blank after the length"])
def test_what_is_not_kept(name: str) -> None:
    assert learned(ODD[name]).request is None


def learned(data: bytes) -> RequestHeadCache:
    """As the door does, once the request is read."""
    request = Request()
    request.content_length = len(CHAT)
    request.api_key = ApiKey("k", "k")
    cache = RequestHeadCache(is_enabled=True)
    cache.learn(data, request, b"digest")
    return cache
