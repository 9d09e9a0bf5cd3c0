"""Errors as the openai SDK raises them: its exception classes with the gateway's codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, body, end, fin, head, raw, reset, sse, stall

CLASSES = {
    400: (openai.BadRequestError, "invalid_request", "invalid_request_error"),
    401: (openai.AuthenticationError, "authentication_error", "authentication_error"),
    404: (openai.NotFoundError, "model_not_found", "invalid_request_error"),
    429: (openai.RateLimitError, "rate_limit_exceeded", "rate_limit_error"),
    502: (openai.InternalServerError, "provider_error", "api_error"),
}
A_AND_B = [("A", GPT), ("B", CLAUDE)]


@pytest.fixture
def retrying(start_gateway: StartGateway) -> Iterator[Gateway]:
    """A new gateway with an unused retry budget and default retries."""
    return start_gateway()


def raised(client: openai.OpenAI, status: int, model: str = GPT, **fields: object) -> openai.APIStatusError:
    """Return the SDK's exception after checking its class, code, type and headers."""
    kind, code, type_ = CLASSES[status]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": model, "messages": HI, **fields})
    error = caught.value
    assert (error.status_code, error.code, error.type) == (status, code, type_)
    assert isinstance(error.message, str)
    assert error.request_id
    assert "param" in error.body
    return error


def upstream_error(letter: str, status: int, message: str = "The fake says no.", **headers: str) -> Script:
    body = anthropic_wire.error(message=message) if letter == "B" else openai_wire.error(message)
    return answer(status, body, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("key", ["", "wrong", "test-client-key-", "test-client-key-12", "Test-client-key-1"])
def test_error_wrong_key_returns_401(gateway: Gateway, key: str) -> None:
    got = gateway.chat(headers={"authorization": f"Bearer {key}"})
    assert (got.status, got.code) == (401, "authentication_error")
    assert got.headers["www-authenticate"].startswith("Bearer")
    if key:
        assert key not in got.json["error"]["message"]
        with gateway.openai(api_key=key) as client:
            raised(client, 401)


def test_error_unknown_model_returns_404(openai_client: openai.OpenAI, fakes: dict[str, FakeProvider]) -> None:
    error = raised(openai_client, 404, model="gpt-99")
    assert "x-svc-provider" not in error.response.headers
    assert not any(fake.requests for fake in fakes.values())


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("upstream", "status"), [(400, 400), (422, 400), (404, 404), (401, 502), (403, 502)])
def test_error_permanent_upstream_status_is_mapped_without_retry(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool, upstream: int, status: int
) -> None:
    fakes[letter].plays(upstream_error(letter, upstream))
    with gateway.openai() as client:
        error = raised(client, status, model, stream=stream)
    assert len(fakes[letter].requests) == 1
    assert error.response.headers["x-svc-attempts"] == "1"
    assert error.response.headers["x-svc-provider"] in ("openai", "anthropic")
    if status == 400:
        assert "The fake says no." in error.message


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_error_upstream_413_returns_invalid_request_with_message(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(upstream_error(letter, 413, "Too many images."))
    got = gateway.chat(model)
    assert (got.status in (400, 413), got.code) == (True, "invalid_request")
    assert "Too many images." in got.json["error"]["message"]


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
@pytest.mark.parametrize("upstream", [408, 500, 502, 503, 504, 529])
def test_error_transient_upstream_status_is_retried_then_returns_502(
    retrying: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, upstream: int
) -> None:
    fakes[letter].always_plays(upstream_error(letter, upstream))
    with retrying.openai() as client:
        error = raised(client, 502, model)
    assert len(fakes[letter].requests) == 3
    assert error.response.headers["x-svc-attempts"] == "3"
    assert error.response.headers["x-should-retry"] == "false"


def test_error_after_retries_openai_client_does_not_retry(retrying: Gateway, provider_a: FakeProvider) -> None:
    provider_a.always_plays(upstream_error("A", 503))
    with retrying.openai(max_retries=2) as client:
        raised(client, 502)
    assert len(provider_a.requests) == 3


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
@pytest.mark.parametrize("stream", [False, True])
def test_retry_transient_failures_then_success_returns_200(
    retrying: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool
) -> None:
    fakes[letter].plays(reset(), upstream_error(letter, 503))
    got = retrying.chat(model, stream=stream)
    assert got.status == 200
    assert got.headers["x-svc-attempts"] == "3"
    assert "x-should-retry" not in got.headers


def test_retry_upstream_429_is_retried_then_returned(retrying: Gateway, provider_a: FakeProvider) -> None:
    provider_a.always_plays(upstream_error("A", 429))
    with retrying.openai() as client:
        error = raised(client, 429)
    assert len(provider_a.requests) == 3
    assert int(error.response.headers["retry-after"]) >= 1
    assert error.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(("retry_after", "expected"), [("7", 7), ("119", 119), ("3600", 120)])
def test_retry_long_retry_after_returns_429_without_retry(
    gateway: Gateway, provider_a: FakeProvider, retry_after: str, expected: int
) -> None:
    provider_a.plays(upstream_error("A", 429, retry_after=retry_after))
    with gateway.openai() as client:
        error = raised(client, 429)
    assert len(provider_a.requests) == 1
    assert int(error.response.headers["retry-after"]) == expected


def test_retry_short_retry_after_is_awaited(retrying: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(upstream_error("A", 429, retry_after="1"))
    assert retrying.chat().status == 200
    first, second = provider_a.requests
    assert 0.9 <= second.arrived - first.arrived < 3


MALFORMED_RESPONSES = {
    "HTML": answer(200, b"<html><body>Welcome to nginx</body></html>", content_type="text/html"),
    "HTML that says JSON": answer(200, b"<html>oops</html>"),
    "empty": answer(200, b""),
    "empty object": answer(200, b"{}"),
    "list": answer(200, b"[1, 2]"),
    "truncated JSON": answer(200, b'{"id": "x", "choi'),
    "not UTF-8": answer(200, b'{"id": "\xff\xfe"}'),
    "garbage instead of HTTP": raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage\r\n\r\n") + fin(),
    "cut": answer(200, b'{"id": "x"', length=5000) + fin(),
    "chunks without an end": head() + body(b'{"id"') + fin(),
    "wrong chunk size": head() + raw(b"zz\r\n{}\r\n0\r\n\r\n") + fin(),
    "error with 200": answer(200, openai_wire.error("Sorry", "api_error")),
    "redirect": answer(302, b"", headers={"location": "http://127.0.0.1:1/"}),
    "204": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "status below 100": raw(b"HTTP/1.1 099 Odd\r\ncontent-length: 2\r\n\r\n{}") + stall(),
}


@pytest.mark.parametrize("what", MALFORMED_RESPONSES)
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
@pytest.mark.parametrize("stream", [False, True])
def test_error_malformed_upstream_response_returns_502(
    gateway_without_retries: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool, what: str
) -> None:
    fakes[letter].always_plays(MALFORMED_RESPONSES[what])
    with gateway_without_retries.openai() as client:
        error = raised(client, 502, model, stream=stream)
    assert "127.0.0.1" not in error.message
    assert str(fakes[letter].port) not in error.message
    assert error.response.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("script", [reset(), fin(), head() + reset()], ids=["reset", "fin", "head and reset"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_error_upstream_connection_closed_before_response_returns_502(
    gateway_without_retries: Gateway,
    fakes: dict[str, FakeProvider],
    letter: str,
    model: str,
    stream: bool,
    script: Script,
) -> None:
    fakes[letter].always_plays(script)
    with gateway_without_retries.openai() as client:
        raised(client, 502, model, stream=stream)


def test_error_upstream_connection_refused_returns_502(start_gateway: StartGateway) -> None:
    port = closed_port()
    started = start_gateway(env={"PROVIDER_A_BASE_URL": f"http://127.0.0.1:{port}/v1"})
    with started.openai() as client:
        error = raised(client, 502)
    assert error.response.headers["x-svc-attempts"] == "3"
    assert str(port) not in error.response.text


def test_error_upstream_unknown_host_returns_502(start_gateway: StartGateway) -> None:
    started = start_gateway(env={"PROVIDER_A_BASE_URL": "http://nowhere.invalid/v1"}, config="[routing]\nretries = 0")
    with started.openai() as client:
        error = raised(client, 502)
    assert "nowhere.invalid" not in error.response.text


def test_error_upstream_tls_failure_returns_502(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(
        env={"PROVIDER_A_BASE_URL": f"https://127.0.0.1:{provider_a.port}/v1"}, config="[routing]\nretries = 0"
    )
    with started.openai() as client:
        raised(client, 502)
    provider_a.complaints.clear()  # a TLS ClientHello is not HTTP


def test_error_upstream_401_does_not_leak_credentials(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    secret = "sk-wrong-but-secret-0123456789"
    started = start_gateway(env={"PROVIDER_A_API_KEY": secret})
    provider_a.always_plays(upstream_error("A", 401, f"Incorrect API key provided: {secret}"))
    with started.openai() as client:
        error = raised(client, 502)
    assert secret not in error.response.text
    assert secret not in str(error.response.headers)
    assert started.stop() == 0
    assert secret not in started.log
    assert provider_a.complaints == ["wrong key"]
    provider_a.complaints.clear()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("cut", [False, True])
def test_error_event_with_upstream_key_is_redacted(tmp_path: Path, dialect: str, cut: bool) -> None:
    """A key of unknown format in an event, or in an event that is cut off."""
    with FakeProvider(OpenAIWire(), key="QmFzZTY0LWxpa2U") as fake:
        env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"}
        gateway = Gateway(tmp_path, env=env, config="[routing]\nretries = 0\n", is_forked=True).start()
        error = openai_wire.event({"error": {"message": f"no credit for {fake.key}", "type": "rate_limit_error"}})
        first_events = [openai_wire.role(), openai_wire.chunk({"content": "so far"})]
        fake.plays(sse([*first_events, error.rstrip(b"\n") if cut else error]))
        got = gateway.chat(stream=True) if dialect == "openai" else gateway.message(GPT, stream=True)
        assert "no credit for […]" in got.body.decode()
        assert gateway.stop() == 0
        assert fake.key.encode() not in got.body
        assert fake.key not in gateway.log


def test_error_400_with_upstream_key_is_redacted(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(upstream_error("A", 400, f"bad request with {provider_a.key}"))
    got = gateway.chat()
    assert got.status == 400
    assert provider_a.key.encode() not in got.body


def test_error_message_of_mistral_like_vendor_is_kept(gateway: Gateway, provider_c: FakeProvider) -> None:
    provider_c.plays(answer(422, {"object": "error", "message": {"detail": [{"msg": "Extra inputs", "loc": ["n"]}]}}))
    got = gateway.chat(LLAMA)
    assert (got.status, got.code) == (400, "invalid_request")
    assert "Extra inputs" in got.json["error"]["message"]


def test_error_as_first_event_returns_json_error(gateway: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(sse([anthropic_wire.error_event("invalid_request_error", "No such thing")]))
    got = gateway.chat(CLAUDE, stream=True)
    assert got.status >= 400
    assert got.headers["content-type"].startswith("application/json")


def test_error_upstream_body_of_3_mb_is_truncated(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(400, b"x" * 3_000_000, content_type="text/plain"))
    got = gateway.chat()
    assert (got.status, got.code) == (400, "invalid_request")
    assert len(got.body) < 10_000


def test_response_framings_of_http_are_accepted(gateway: Gateway, provider_a: FakeProvider) -> None:
    content = openai_wire.chat("Hi")
    for framing in ("length", "chunked", "close"):
        provider_a.plays(answer(200, content, framing=framing))
        assert gateway.chat().json["choices"][0]["message"]["content"] == "Hi"


def test_response_103_before_final_response_is_skipped(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(raw(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n") + answer(200, openai_wire.chat("Hi")))
    assert gateway.chat().status == 200


def test_upstream_connection_closed_while_idle_is_replaced(gateway: Gateway, provider_a: FakeProvider) -> None:
    """The upstream closes a persistent connection just as the next request is sent."""
    for _ in range(5):
        provider_a.plays(answer(200, openai_wire.chat("Hi")) + fin())
        assert gateway.chat().status == 200


def test_stream_upstream_json_response_is_converted_or_502(gateway: Gateway, provider_a: FakeProvider) -> None:
    """Some upstreams ignore `stream`. The response is complete or an error."""
    provider_a.always_plays(answer(200, openai_wire.chat("Hi")))
    got = gateway.chat(stream=True)
    assert got.status in (200, 502)
    if got.status == 200:
        assert b"[DONE]" in got.body


def test_stream_without_events_returns_502(gateway_without_retries: Gateway, provider_a: FakeProvider) -> None:
    provider_a.always_plays(head(content_type="text/event-stream") + end())
    got = gateway_without_retries.chat(stream=True)
    assert (got.status, got.code) == (502, "provider_error")
