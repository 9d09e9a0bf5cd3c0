"""Who runs a gateway finds in its log which provider fails, and with what."""

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
BEGUN = [openai_wire.role(), openai_wire.chunk({"content": "so far"})]

TROUBLES: dict[str, tuple[Script, bool, str]] = {
    "status": (answer(500, b"{}"), False, "failed with status 500"),
    "cut body": (
        head(200, framing="length", length=100) + body(b'{"id"') + fin(),
        False,
        "response was interrupted. (",
    ),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9\r\n"), False, "(sent invalid HTTP"),
    "no status": (raw(b"HTTP/1.1 099 Odd\r\n\r\n") + stall(), False, "(sent invalid HTTP: status 99)"),
    "cut stream": (sse(BEGUN, end=reset()), True, "response was interrupted. (connection closed"),
    "error in a stream": (
        sse([*BEGUN, openai_wire.event({"error": {"message": "overloaded", "type": "server_error"}})]),
        True,
        "overloaded",
    ),
    "no stream": (answer(200, openai_wire.chat()), True, "did not respond with a stream"),
    "credentials": (answer(401, b"{}"), False, "rejected the gateway's credentials"),  # after it none is asked
}


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire(), key="sk-secret-of-the-provider") as fake:
        yield fake


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeProvider) -> Iterator[Gateway]:
    env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"}
    gateway = Gateway(tmp_path, env=env, config=CONFIG).start()
    yield gateway
    assert gateway.stop() == 0
    assert fake.key not in gateway.log


def warnings(gateway: Gateway) -> list[str]:
    """Their messages; each line on standard error is a JSON object."""
    lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    return [line["message"] for line in lines if line.get("level") == "warning"]


def test_each_trouble_is_said_with_its_provider_and_its_cause(gateway: Gateway, fake: FakeProvider) -> None:
    for number, (script, stream, said) in enumerate(TROUBLES.values(), 1):
        fake.always_plays(script)
        got = gateway.chat(stream=stream)
        gateway.logged(f"[request {got.headers['x-request-id']}]")
        assert len(warnings(gateway)) == number
        assert warnings(gateway)[-1].startswith("openai: ")
        assert said in warnings(gateway)[-1]


def test_what_a_provider_says_stays_on_its_line(gateway: Gateway, fake: FakeProvider) -> None:
    said = "no\n2026-01-01 00:00:00,000 WARNING svc.gateway: openai: \x1b[2Jall is well\r\u202e\u2028"
    fake.plays(answer(200, openai_wire.error(said, kind="server_error")))
    assert gateway.chat().status == 502
    assert gateway.stop() == 0
    (line,) = warnings(gateway)
    assert "The provider failed: no 2026" in line
    assert line.rpartition(" [request ")[0].isprintable()


def test_the_same_again_is_counted_and_not_repeated(gateway: Gateway, fake: FakeProvider) -> None:
    fake.always_plays(answer(500, b"{}"))
    for _ in range(5):
        assert gateway.chat().status == 502
    gateway.logged("failed with status 500")
    assert gateway.stop() == 0
    assert len(warnings(gateway)) == 1


def test_what_the_client_has_asked_wrongly_is_no_trouble(gateway: Gateway, fake: FakeProvider) -> None:
    for status in (400, 404):
        fake.plays(answer(status, openai_wire.error("no such thing")))
        assert gateway.chat().status == status
    assert gateway.stop() == 0
    assert not warnings(gateway)


@pytest.mark.parametrize("begun", [False, True])
def test_an_answer_that_takes_too_long_is_a_trouble_and_our_own_end_is_none(
    tmp_path: Path, fake: FakeProvider, begun: bool
) -> None:
    env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"}
    fake.always_plays(sse(BEGUN, end=stall()) if begun else stall())
    kinds = (("total_timeout = 0.5", "to complete the response"), ("drain_timeout = 0.5", ""))
    for number, (config, said) in enumerate(kinds, 1):
        gateway = Gateway(tmp_path, env=env, config=f"[gateway]\n{config}\n{CONFIG}").start()
        with gateway.raw() as client:
            asked = {"model": GPT, "messages": HI, "stream": True}
            client.send(request_bytes("POST", "/v1/chat/completions", asked, key=gateway.key))
            fake.wait(number)
            if not said:
                gateway.ask_to_stop()
            assert b"provider_error" in client.read().body
        assert gateway.stop() == 0
        assert [said in line for line in warnings(gateway)] == ([True] if said else [])


def test_who_is_not_there(tmp_path: Path) -> None:
    port = closed_port()
    env = {"PROVIDER_A_API_KEY": "sk-a", "PROVIDER_A_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    gateway = Gateway(tmp_path, env=env, config=CONFIG).start()
    assert gateway.chat().status == 502
    assert gateway.stop() == 0
    (line,) = warnings(gateway)
    assert f"openai: The provider cannot be reached. (no connection to 127.0.0.1:{port}: Conn" in line
