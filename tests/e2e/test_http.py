"""HTTP on a raw socket: paths, methods, bodies, limits, request ids, and malformed requests."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

CHAT = {"model": GPT, "messages": HI}
BODY = json.dumps(CHAT).encode()
MIB = 1024 * 1024


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def post(headers: str, body: bytes = b"", path: str = "/v1/chat/completions") -> bytes:
    """A POST with exactly these headers (and host and key)."""
    top = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{headers}\r\n"
    return top.encode("latin-1") + body


# paths and methods


@pytest.mark.parametrize("path", ["/v1/nope", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "/v1/models/a/b/c"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_path_unknown_under_v1_returns_404_or_405(gateway: Gateway, method: str, path: str) -> None:
    got = gateway.request(method, path)
    assert got.status in (404, 405)
    assert got.code in ("not_found", "model_not_found", "method_not_allowed")
    assert got.json["error"]["type"] == "invalid_request_error"
    unknown = gateway.request(method, path, key=None)
    assert (unknown.status, unknown.code) == (401, "authentication_error")
    assert unknown.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/nope", "/health/", "/favicon.ico", "/v2/models"])
def test_path_unknown_outside_v1_returns_404_without_key(gateway: Gateway, path: str) -> None:
    got = gateway.request("GET", path, key=None)
    assert (got.status, got.code) == (404, "not_found")


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/m/chat/completions", "/v1/chat/completions"),
        ("/audio/transcriptions", "/v1/audio/transcriptions"),
    ],
)
def test_path_without_v1_returns_404_that_names_the_path(gateway: Gateway, path: str, known: str, size: int) -> None:
    got = gateway.request("POST", path, {"model": "m", "messages": [{"role": "user", "content": "x" * size}]})
    assert (got.status, got.code) == (404, "not_found")
    assert got.json["error"]["message"].endswith(f"Did you mean '{known}'?")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/messages", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("PROPFIND", "/v1/messages", "POST"),
        ("GET", "/v1/messages#x", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PROPFIND", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/gpt-4o", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/v1/audio/transcriptions/stream", "GET, HEAD, POST"),
    ],
)
def test_method_wrong_returns_405_with_allow(gateway: Gateway, method: str, path: str, allow: str) -> None:
    got = gateway.request(method, path)
    assert got.status == 405
    assert path.startswith("/v1/messages") or got.code == "method_not_allowed"  # Anthropic's error format has no code
    assert got.json["error"]["type"] == "invalid_request_error"
    assert got.headers["allow"] == allow
    assert got.json["error"]["message"] == f"This path supports {allow}."


@pytest.mark.parametrize("path", ["/v1/chat/completions#x", "/v1/messages#", "/v1/messages#a?b"])
def test_path_with_fragment_returns_400(gateway: Gateway, path: str) -> None:
    got = gateway.request("POST", path, {**CHAT, "max_tokens": 5})
    assert (got.status, got.json["error"]["type"]) == (400, "invalid_request_error")
    assert path.partition("#")[0] in got.json["error"]["message"]
    assert gateway.request("POST", path, CHAT, key="wrong").status == 401


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/chat/completions", "/nope"])
def test_method_head_response_has_no_body(gateway: Gateway, path: str) -> None:
    with gateway.raw() as client:
        got = client.request("HEAD", path, key=KEY)
        assert got.status == {"/health": 200, "/v1/models": 200, "/nope": 404}.get(path, 405)
        assert client.request("GET", "/health").status == 200


def test_cors_disabled_by_default_returns_405_to_options(gateway: Gateway) -> None:
    got = gateway.request("OPTIONS", "/v1/chat/completions", headers={"origin": "https://app.example"})
    assert got.status == 405
    assert "access-control-allow-origin" not in got.headers
    assert "access-control-allow-origin" not in gateway.chat(headers={"origin": "https://app.example"}).headers


def test_cors_configured_origin_gets_cors_headers(start_gateway: StartGateway) -> None:
    started = start_gateway(config='[gateway]\ncors_origins = ["https://app.example"]\n')
    preflight = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    for path in ("/v1/chat/completions", "/v1/models"):
        got = started.request("OPTIONS", path, key=None, headers=preflight)
        assert got.status in (200, 204)
        assert got.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in got.headers["access-control-allow-headers"].lower()
    for stream in (False, True):
        got = started.chat(stream=stream, headers={"origin": "https://app.example"})
        assert got.headers["access-control-allow-origin"] == "https://app.example"
    refused = started.chat(headers={"origin": "https://app.example", "authorization": "Bearer no"})
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://app.example")
    hot = started.chat(headers={"origin": "https://app.example"}).headers["access-control-expose-headers"]
    cold = started.request("GET", "/v1/models", headers={"origin": "https://app.example"})
    assert cold.headers["access-control-expose-headers"] == hot
    assert "x-svc-cache" in hot.split(", ")
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(hot.split(", "))
    other = started.chat(headers={"origin": "https://evil.example"})
    assert other.headers.get("access-control-allow-origin") is None


@pytest.mark.parametrize(
    "path",
    [
        *("/v1//chat/completions", "/v1/./models", "//v1/models", "/v1/chat/completions%20", "/v1/chat/completions%00"),
        *("/v1/chat/%2563ompletions", "/v1/chat/%6completions", "/v1/chat/completions%3Fx=1", "/v1%2Fchat"),
    ],
)
def test_path_not_normalized_returns_404(gateway: Gateway, path: str) -> None:
    got = gateway.request("POST", path, CHAT)
    assert (got.status, got.code) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/chat/%63ompletions", "/v1/chat%2Fcompletions", "/%76%31/chat/completions?a=%62"])
def test_path_percent_encoded_is_decoded(gateway: Gateway, path: str) -> None:
    with gateway.raw() as raw:
        for _ in range(2):  # the second request uses the cached head
            assert raw.request("POST", path, CHAT, key=gateway.key).json["object"] == "chat.completion"
        assert raw.request("POST", path, CHAT, key="wrong").status == 401
    got = gateway.request("GET", path)
    assert (got.status, got.headers["allow"]) == (405, "POST")
    assert gateway.request("POST", "/v1%2F%6dessages", {**CHAT, "max_tokens": 5}).json["type"] == "message"
    assert gateway.request("GET", "/v1%2F%6dodels").status == 200


def test_path_with_query_is_served(gateway: Gateway) -> None:
    assert gateway.request("POST", "/v1/chat/completions?api-version=1", CHAT).status == 200


# keys


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic dGVzdDp0ZXN0", KEY, "Bearer  ", "Bearer \xff\xfe", "Bearer " + "x" * 9000]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_authorization_malformed_returns_401(gateway: Gateway, path: str, value: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    got = gateway.request(method, path, BODY if method == "POST" else None, headers={"authorization": value})
    assert (got.status, got.code) == (401, "authentication_error")
    assert got.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/chat/completions")])
def test_authorization_in_another_header_returns_401_that_names_it(gateway: Gateway, method: str, path: str) -> None:
    got = gateway.request(method, path, BODY if method == "POST" else None, key=None, headers={"api-key": KEY})
    assert (got.status, got.code) == (401, "authentication_error")
    assert got.json["error"]["message"].endswith("The header 'api-key' is not read.")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_authorization_scheme_is_case_insensitive(gateway: Gateway, scheme: str) -> None:
    assert gateway.request("GET", "/v1/models", headers={"authorization": f"{scheme} {KEY}"}).status == 200


def test_authorization_without_configured_keys_returns_401(start_gateway: StartGateway) -> None:
    started = start_gateway(env={"SVC_API_KEYS": ""})
    assert started.chat().status == 401
    assert started.chat(headers={"authorization": ""}).status == 401
    assert started.request("GET", "/health", key=None).status == 200


def test_authorization_each_configured_key_is_valid(start_gateway: StartGateway) -> None:
    started = start_gateway(env={"SVC_API_KEYS": "first-key, second-key,,"})
    for key, status in [("first-key", 200), ("second-key", 200), ("third-key", 401), ("first-key, second-key", 401)]:
        assert started.request("POST", "/v1/chat/completions", CHAT, key=key).status == status


def test_authorization_wrong_key_returns_401_before_body_is_parsed(gateway: Gateway) -> None:
    assert gateway.request("POST", "/v1/chat/completions", b"{nope", key="wrong").status == 401


# bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{nope}",
        b'{"model": "gpt-4o"',
        b"null",
        b"[]",
        b'"text"',
        b"42",
        b'{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "\xff"}]}',
        b'\xff\xfe{\x00"\x00',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "gpt-4o-mini", "messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"model": "gpt-4o-mini", "messages": NaN}',
        b"model=gpt-4o&messages=hi",
        BODY + b"x",
        BODY + BODY,
        b"\x00" + BODY,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_body_malformed_returns_400(gateway: Gateway, fakes: dict[str, FakeProvider], body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        got = gateway.request("POST", path, body)
        assert got.status == 400
        error = got.json["error"]
        assert error["type"] == "invalid_request_error"
        if path != "/v1/messages":
            assert error["code"] == "invalid_request"
        assert 5 < len(error["message"]) < 500
    assert not any(fake.requests for fake in fakes.values())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "role"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "role"),
        ({"messages": [{"role": 1, "content": "Hi"}]}, "role"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"top_p": []}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"model": "gpt-4o-mini" * 10_000}, "model"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_body_invalid_field_returns_400_and_names_it(
    gateway: Gateway, fakes: dict[str, FakeProvider], fields: dict[str, object], named: str
) -> None:
    given = {key: value for key, value in {**CHAT, **fields}.items() if value is not None}
    got = gateway.request("POST", "/v1/chat/completions", given)
    expected = (404, "model_not_found") if len(str(given.get("model"))) > 1000 else (400, "invalid_request")
    assert (got.status, got.code) in (expected, (400, "invalid_request"))
    error = got.json["error"]
    assert named in error["message"] or named in (error["param"] or "")
    assert len(error["message"]) < 500
    assert not any(fake.requests for fake in fakes.values())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"temperature": 2.0},
        {"top_p": 0},
        {"top_p": 1},
        {"max_tokens": 1},
        {"temperature": None, "top_p": None, "max_tokens": None, "stream": None, "stop": None},
        {"messages": [{"role": "developer", "content": "Be brief."}, *HI]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "function", "name": "f", "content": "1"}, *HI]},
    ],
    ids=str,
)
def test_body_boundary_values_return_200(gateway: Gateway, fields: dict[str, object]) -> None:
    assert gateway.request("POST", "/v1/chat/completions", {**CHAT, **fields}).status == 200


@pytest.mark.parametrize(
    "kind",
    ["", "application/json", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"],
)
def test_body_json_with_any_content_type_returns_200(gateway: Gateway, kind: str) -> None:
    assert gateway.chat(headers={"content-type": kind}).status == 200


def test_body_multipart_returns_400(gateway: Gateway) -> None:
    got = gateway.chat(headers={"content-type": "multipart/form-data; boundary=x"})
    assert (got.status, got.code) == (400, "invalid_request")


def test_body_beyond_limit_returns_413(start_gateway: StartGateway) -> None:
    started = start_gateway(config="[gateway]\nmax_body = 1\n")
    padded = BODY + b" " * (MIB - len(BODY))
    assert started.request("POST", "/v1/chat/completions", padded).status == 200
    got = started.request("POST", "/v1/chat/completions", padded + b" ")
    assert (got.status, got.code) == (413, "invalid_request")
    assert got.json["error"]["type"] == "invalid_request_error"
    assert got.json["error"]["message"] == "The body is larger than 1 MiB ([gateway] max_body)."
    got = started.request("POST", "/v1/messages", padded + b" ")
    assert (got.status, got.json["type"]) == (413, "error")
    with started.raw() as client:  # announced length, rejected before the body arrives
        client.send(post(f"content-length: {2 * MIB}\r\n"))
        assert client.read().status == 413
    with started.raw() as client:
        client.send(post("transfer-encoding: chunked\r\n", b"%x\r\n" % (2 * MIB) + b" " * (MIB + 1)))
        assert client.read().status == 413


def test_body_beyond_default_limit_of_32_mib_returns_413(gateway: Gateway) -> None:
    with gateway.raw() as client:
        client.send(post(f"content-length: {32 * MIB + 1}\r\n"))
        assert client.read().status == 413
    padded = BODY + b" " * (20 * MIB)
    assert gateway.request("POST", "/v1/chat/completions", padded).status == 200


def test_body_huge_content_length_returns_400_or_413(gateway: Gateway) -> None:
    for length in ("99999999999999999999999999", "18446744073709551616", "9223372036854775807"):
        with gateway.raw() as client:
            client.send(post(f"content-length: {length}\r\n"))
            assert client.read().status in (400, 413)


def test_body_chunked_is_accepted(gateway: Gateway, provider_a: FakeProvider) -> None:
    parts = [BODY[at : at + 5] for at in range(0, len(BODY), 5)]
    with gateway.raw() as client:
        client.send(post("transfer-encoding: chunked\r\ncontent-type: application/json\r\n", chunked(*parts)))
        assert client.read().status == 200
    seen = provider_a.wait()
    assert seen.json["messages"] == HI


def test_body_sent_byte_by_byte_is_accepted(gateway: Gateway) -> None:
    whole = request_bytes("POST", "/v1/chat/completions", CHAT, key=KEY)
    with gateway.raw() as client:
        for at in range(len(whole)):
            client.send(whole[at : at + 1])
        assert client.read().status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/nope"])
def test_expect_continue_is_answered(gateway: Gateway, path: str) -> None:
    with gateway.raw() as client:
        client.send(post(f"expect: 100-continue\r\ncontent-length: {len(BODY)}\r\n", path=path))
        assert client.socket.recv(1000).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(BODY)
        assert client.read().status == (200 if path != "/v1/nope" else 404)


def test_expect_continue_with_wrong_key_returns_401(gateway: Gateway) -> None:
    with gateway.raw() as client:
        headers = {"expect": "100-continue", "content-length": "500"}
        client.send(request_bytes("POST", "/v1/chat/completions", None, key="wrong", headers=headers))
        assert client.read().status == 401


# request ids


def test_request_id_is_unique_on_every_response(gateway: Gateway) -> None:
    found = [
        gateway.request("GET", "/health", key=None),
        gateway.request("GET", "/v1/models"),
        gateway.request("GET", "/v1/models", key=None),
        gateway.request("GET", "/nope"),
        gateway.request("DELETE", "/v1/models"),
        gateway.chat(),
        gateway.chat(stream=True),
        gateway.chat("nope"),
        gateway.chat(headers={"authorization": "Bearer no"}),
        gateway.message(),
        gateway.request("POST", "/v1/chat/completions", b"{"),
        gateway.request("POST", "/v1/chat/completions", BODY, headers={"content-length": str(99 * MIB)}),
    ]
    with gateway.raw() as client:
        client.send(b"garbage\r\n\r\n")
        found.append(client.read())
    ids = [got.headers["x-request-id"] for got in found]
    assert len(set(ids)) == len(ids)
    assert all(8 <= len(one) <= 64 for one in ids)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_request_id_of_client_is_echoed_as_client_request_id(gateway: Gateway, path: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    got = gateway.request(method, path, CHAT if method == "POST" else None, headers={"x-request-id": "mine-42"})
    assert got.status == 200
    assert got.headers["x-client-request-id"] == "mine-42"
    assert got.headers["x-request-id"] != "mine-42"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
@pytest.mark.parametrize("value", ["x" * 5000, "a\tb", "ünï"])
def test_request_id_invalid_is_bounded(gateway: Gateway, path: str, value: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    got = gateway.request(method, path, CHAT if method == "POST" else None, headers={"x-request-id": value})
    assert got.status == 200
    assert len(got.headers.get("x-client-request-id", "")) <= 200


def test_headers_without_attempt_name_no_provider(gateway: Gateway) -> None:
    malformed = gateway.request("POST", "/v1/chat/completions", b"{")
    for got in (gateway.chat("nope"), malformed, gateway.request("GET", "/v1/models")):
        assert "x-svc-provider" not in got.headers
        assert "x-svc-attempts" not in got.headers


def test_error_body_has_same_fields_everywhere(gateway: Gateway) -> None:
    for got in (
        gateway.request("GET", "/nope"),
        gateway.request("GET", "/v1/models", key=None),
        gateway.request("PUT", "/health"),
        gateway.chat("nope"),
        gateway.chat(temperature=9),
    ):
        assert set(got.json["error"]) == {"message", "type", "code", "param"}
        assert got.headers["content-type"].startswith("application/json")


# connections


def test_connection_serves_all_endpoints_in_turn(gateway: Gateway) -> None:
    with gateway.raw() as client:
        for _ in range(3):
            assert client.request("GET", "/v1/models", key=KEY).status == 200
            assert client.request("POST", "/v1/chat/completions", CHAT, key=KEY).status == 200
            assert client.request("GET", "/nope", key=KEY).status == 404
            assert client.request("POST", "/v1/chat/completions", {**CHAT, "stream": True}, key=KEY).whole
            assert client.request("POST", "/v1/chat/completions", CHAT, key="wrong").status == 401
            assert client.request("POST", "/v1/chat/completions", b"{", key=KEY).status == 400
            assert client.request("GET", "/health").status == 200


def test_connection_pipelined_requests_are_answered_in_order(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(
        *[answer(200, openai_wire.chat(text)) for text in ("one", "two")], sse(openai_wire.stream("three"))
    )
    hot = request_bytes("POST", "/v1/chat/completions", CHAT, key=KEY)
    stream = request_bytes("POST", "/v1/chat/completions", {**CHAT, "stream": True}, key=KEY)
    cold = request_bytes("GET", "/health")
    with gateway.raw() as client:
        client.send(hot + cold + hot + stream + cold)
        assert client.read().json["choices"][0]["message"]["content"] == "one"
        assert client.read().json["status"] == "ok"
        assert client.read().json["choices"][0]["message"]["content"] == "two"
        assert client.read().body.endswith(b"data: [DONE]\n\n")
        assert client.read().json["status"] == "ok"


@pytest.mark.parametrize("path", ["/health", "/v1/chat/completions"])
def test_connection_close_header_closes_connection(gateway: Gateway, path: str) -> None:
    method, body = ("GET", None) if path == "/health" else ("POST", CHAT)
    with gateway.raw() as client:
        got = client.request(method, path, body, key=KEY, headers={"connection": "close"})
        assert (got.status, got.headers["connection"]) == (200, "close")
        assert client.closed()


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_response_is_not_chunked_and_closes(gateway: Gateway, stream: bool) -> None:
    body = json.dumps({**CHAT, "stream": stream}).encode()
    with gateway.raw() as client:
        top = (
            f"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        client.send(top.encode() + body)
        got = client.read()
        assert got.status == 200
        assert "transfer-encoding" not in got.headers
        assert client.closed()
        assert got.body.endswith(b"data: [DONE]\n\n" if stream else b"}")


def test_http_1_0_keep_alive_returns_200(gateway: Gateway) -> None:
    with gateway.raw() as client:
        client.send(b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert client.read().status == 200


SMUGGLED = {
    "both lengths": post(f"content-length: {len(BODY)}\r\ntransfer-encoding: chunked\r\n", chunked(BODY)),
    "two lengths": post(f"content-length: {len(BODY)}\r\ncontent-length: 5\r\n", BODY),
    "list of lengths": post(f"content-length: {len(BODY)}, {len(BODY)}\r\n", BODY),
    "negative length": post("content-length: -1\r\n", BODY),
    "signed length": post(f"content-length: +{len(BODY)}\r\n", BODY),
    "hex length": post("content-length: 0x10\r\n", BODY),
    "unknown coding": post("transfer-encoding: gzip\r\n", chunked(BODY)),
    "chunked not last": post("transfer-encoding: chunked, gzip\r\n", chunked(BODY)),
    "hidden coding": post("transfer-encoding: xchunked\r\n", chunked(BODY)),
    "space before the colon": post("transfer-encoding : chunked\r\n", chunked(BODY)),
    "bad chunk size": post("transfer-encoding: chunked\r\n", b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "negative chunk size": post("transfer-encoding: chunked\r\n", b"-5\r\nhello\r\n0\r\n\r\n"),
    "chunk size too large": post("transfer-encoding: chunked\r\n", b"f" * 20 + b"\r\nhello"),
    "chunk without its end": post("transfer-encoding: chunked\r\n", b"5\r\nhelloXX0\r\n\r\n"),
    "bare LF": b"GET /health HTTP/1.1\nhost: x\n\n",
    "bare LF in the head": b"GET /health HTTP/1.1\r\nhost: x\nx-a: b\r\n\r\n",
    "bare CR": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: b\rx-c: d\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: b\x00c\r\n\r\n",
    "folded header": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: b\r\n c\r\n\r\n",
    "space in the name": b"GET /health HTTP/1.1\r\nhost: x\r\nx a: b\r\n\r\n",
    "no colon": b"GET /health HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "unknown version": b"GET /health HTTP/9.9\r\nhost: x\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xf1\x01\x00\x00\xed\x03\x03" + b"\x00" * 100,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("what", SMUGGLED)
def test_request_smuggling_attempt_returns_4xx_and_closes(
    gateway: Gateway, fakes: dict[str, FakeProvider], what: str
) -> None:
    with gateway.raw() as client:
        client.send(SMUGGLED[what])
        got = client.read()
        assert 400 <= got.status < 500
        assert got.json["error"]["code"] in ("invalid_request", "method_not_allowed")
        assert client.closed()
    assert not any(fake.requests for fake in fakes.values())
    assert gateway.request("GET", "/health").status == 200


def test_host_header_missing_returns_200_or_400(gateway: Gateway) -> None:
    with gateway.raw() as client:
        client.send(b"GET /health HTTP/1.1\r\n\r\n")
        assert client.read().status in (200, 400)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-many: a\r\n" * 20_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a" * 200_000 + b": b\r\n\r\n",
        post("x-big: " + "a" * 200_000 + f"\r\ncontent-length: {len(BODY)}\r\n", BODY),
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-never-ending: " + b"a" * 200_000,
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: "
        + b"a" * 65_520
        + b"\r\n\r\n",  # too large together with its request line
        post("x-big: " + "a" * 65_520 + f"\r\ncontent-length: {len(BODY)}\r\n", BODY),
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-many: a\r\n" * 100 + b"\r\n",
    ],
    ids=[
        "path",
        "value",
        "many",
        "name",
        "chat endpoint",
        "no end",
        "slightly",
        "slightly, chat endpoint",
        "101 headers",
    ],
)
def test_head_too_large_returns_431(gateway: Gateway, head: bytes) -> None:
    with gateway.raw() as client:
        client.send(head)
        got = client.read()
        assert (got.status, got.code) == (431, "invalid_request")
        assert client.closed()


def test_head_of_ordinary_size_returns_200(gateway: Gateway) -> None:
    assert gateway.chat(headers={"x-big": "a" * 16_000}).status == 200
    assert gateway.chat(headers={f"x-header-{number}": "a" for number in range(80)}).status == 200


def test_timeout_slow_head_or_body_returns_408(start_gateway: StartGateway) -> None:
    started = start_gateway(config="[gateway]\nheader_timeout = 0.4\nbody_timeout = 0.4\n")
    for sent in (b"G", b"GET /health HTTP/1.1\r\nhost: ", post("content-length: 100\r\n", b'{"model"')):
        with started.raw() as client:
            began = time.monotonic()
            client.send(sent)
            got = client.read()
            assert (got.status, got.code) == (408, "invalid_request")
            assert 0.3 <= time.monotonic() - began < 2
            assert client.closed()


def test_timeout_slowly_trickled_head_closes_connection(start_gateway: StartGateway) -> None:
    """Single bytes do not extend the timeout, which applies to the whole head."""
    started = start_gateway(config="[gateway]\nheader_timeout = 0.5\n")
    with started.raw() as client:
        began = time.monotonic()
        client.send(b"GET /health HTTP/1.1\r\nx-a: ")
        client.socket.settimeout(0.1)
        while time.monotonic() - began < 5:
            try:
                client.send(b"a")
                if client.socket.recv(100):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert 0.4 <= time.monotonic() - began < 2


def test_timeout_idle_connection_is_closed(start_gateway: StartGateway) -> None:
    started = start_gateway(config="[gateway]\nkeep_alive = 1\nheader_timeout = 0.3\n")
    with started.raw() as unused, started.raw() as used:
        assert used.request("GET", "/health").status == 200
        began = time.monotonic()
        assert used.closed()
        assert unused.closed()
        assert time.monotonic() - began < 4


def test_client_disconnect_in_request_does_not_affect_others(gateway: Gateway) -> None:
    for part in (b"", b"POST /v1", post("content-length: 100\r\n", b"{")):
        with gateway.raw() as client:
            client.send(part)
    with gateway.raw() as client:
        client.send(post("content-length: 100\r\n", b"{"))
        client.reset()
    assert gateway.request("GET", "/health").status == 200


def test_parallel_requests_return_200(gateway: Gateway) -> None:
    """Streams do not delay other requests."""
    with ThreadPoolExecutor(32) as pool:
        statuses = list(pool.map(lambda number: gateway.chat(stream=bool(number % 2)).status, range(200)))
    assert statuses == [200] * 200


def test_headers_of_client_are_not_sent_upstream(gateway: Gateway, provider_a: FakeProvider) -> None:
    gateway.chat(headers={"cookie": "session=secret", "x-forwarded-for": "10.0.0.9", "openai-organization": "org-1"})
    sent = provider_a.wait().headers
    assert "cookie" not in sent
    assert "10.0.0.9" not in str(sent)
    assert sent["host"] == f"127.0.0.1:{provider_a.port}"
