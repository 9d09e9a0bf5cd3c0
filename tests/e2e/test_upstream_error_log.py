"""The log names the failing provider and the cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import GPT, HI, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, body, fin, head, raw, reset, sse, stall

CONFIG = "[routing]\nretries = 0\nbreaker = false\n"
FIRST_EVENTS = [openai_wire.role(), openai_wire.chunk({"content": "so far"})]

FAILURES: dict[str, tuple[Script, bool, str]] = {
    "status": (answer(500, b"{}"), False, "failed with status 500"),
    "cut body": (
        head(200, framing="length", length=100) + body(b'{"id"') + fin(),
        False,
        "response was interrupted: connection lost. (",
    ),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9\r\n"), False, "(sent invalid HTTP"),
    "no status": (raw(b"HTTP/1.1 099 Odd\r\n\r\n") + stall(), False, "(sent invalid HTTP: status 99)"),
    "cut stream": (
        sse(FIRST_EVENTS, end=reset()),
        True,
        "response was interrupted: connection lost. (connection closed",
    ),
    "error in a stream": (
        sse([*FIRST_EVENTS, openai_wire.event({"error": {"message": "overloaded", "type": "server_error"}})]),
        True,
        "overloaded",
    ),
    "no stream": (answer(200, openai_wire.chat()), True, "did not respond with a stream"),
    "credentials": (
        answer(401, b"{}"),
        False,
        "rejected the gateway's credentials",
    ),  # last: the gateway stops using the provider after this
}


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire(), key="sk-secret-of-the-provider") as fake:
        yield fake


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeProvider) -> Iterator[Gateway]:
    env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"}
    gateway = Gateway(tmp_path, env=env, config=CONFIG, is_forked=True).start()
    yield gateway
    assert gateway.stop() == 0
    assert fake.key not in gateway.log


def warnings(gateway: Gateway) -> list[str]:
    """Return the messages of the warnings on standard error, whose lines are JSON objects."""
    lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    return [line["message"] for line in lines if line.get("level") == "warning"]


def test_upstream_error_log_names_provider_and_cause(gateway: Gateway, fake: FakeProvider) -> None:
    for number, (script, stream, message) in enumerate(FAILURES.values(), 1):
        fake.always_plays(script)
        got = gateway.chat(stream=stream)
        gateway.logged(f"[request {got.headers['x-request-id']}]")
        assert len(warnings(gateway)) == number
        assert warnings(gateway)[-1].startswith("openai: ")
        assert message in warnings(gateway)[-1]


def test_upstream_error_log_escapes_provider_message(gateway: Gateway, fake: FakeProvider) -> None:
    message = "no\n2026-01-01 00:00:00,000 WARNING svc.gateway: openai: \x1b[2Jall is well\r\u202e\u2028"
    fake.plays(answer(200, openai_wire.error(message, kind="server_error")))
    assert gateway.chat().status == 502
    assert gateway.stop() == 0
    (line,) = warnings(gateway)
    assert "The provider failed: no 2026" in line
    assert line.rpartition(" [request ")[0].isprintable()


def test_upstream_error_log_repeated_error_is_logged_once(gateway: Gateway, fake: FakeProvider) -> None:
    fake.always_plays(answer(500, b"{}"))
    for _ in range(5):
        assert gateway.chat().status == 502
    gateway.logged("failed with status 500")
    assert gateway.stop() == 0
    assert len(warnings(gateway)) == 1


def test_upstream_error_log_client_errors_are_not_logged(gateway: Gateway, fake: FakeProvider) -> None:
    for status in (400, 404):
        fake.plays(answer(status, openai_wire.error("no such thing")))
        assert gateway.chat().status == status
    assert gateway.stop() == 0
    assert not warnings(gateway)


@pytest.mark.parametrize("streaming", [False, True])
def test_upstream_error_log_total_timeout_is_logged_and_shutdown_is_not(
    tmp_path: Path, fake: FakeProvider, streaming: bool
) -> None:
    env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"}
    fake.always_plays(sse(FIRST_EVENTS, end=stall()) if streaming else stall())
    kinds = (("total_timeout = 0.5", "to complete the response"), ("drain_timeout = 0.5", ""))
    for number, (config, message) in enumerate(kinds, 1):
        gateway = Gateway(tmp_path, env=env, config=f"[gateway]\n{config}\n{CONFIG}", is_forked=True).start()
        with gateway.raw() as client:
            body_fields = {"model": GPT, "messages": HI, "stream": True}
            client.send(request_bytes("POST", "/v1/chat/completions", body_fields, key=gateway.key))
            fake.wait(number)
            if not message:
                gateway.send_sigterm()
            assert b"provider_error" in client.read().body
        assert gateway.stop() == 0
        assert [message in line for line in warnings(gateway)] == ([True] if message else [])


def test_upstream_error_log_connection_refused_names_address(tmp_path: Path) -> None:
    port = closed_port()
    env = {"PROVIDER_A_API_KEY": "sk-a", "PROVIDER_A_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    gateway = Gateway(tmp_path, env=env, config=CONFIG, is_forked=True).start()
    assert gateway.chat().status == 502
    assert gateway.stop() == 0
    (line,) = warnings(gateway)
    assert f"openai: The provider cannot be reached. (no connection to 127.0.0.1:{port}: Conn" in line
