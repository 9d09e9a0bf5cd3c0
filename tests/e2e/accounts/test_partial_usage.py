"""Ledger entries of responses that did not reach the client completely: what the provider reported or sent counts."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts.test_keys import create, until
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, sse, stall

WORDS = " ".join(f"word{number}" for number in range(100))
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    MESSAGES: {"messages": HI, "max_tokens": 500},
    RESPONSES: {"input": "Hi"},
}
ERROR = {name: value for name, value in responses_wire.error().items() if name != "type"}


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


def leave_stream(gateway: Gateway, path: str, body: dict[str, Any], text: bytes) -> Got:
    """Read a stream up to `text`, then close the connection."""
    sent = json.dumps({**body, "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
    with gateway.raw() as raw:
        raw.send(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        got = raw.read_until(text)
        raw.reset()
    return got


def join_last(events: list[bytes], count: int) -> list[bytes]:
    """Return the events with the last ones in one write: the gateway has read all of them if the client has one."""
    return [*events[:-count], b"".join(events[-count:])]


@pytest.mark.parametrize(
    ("path", "model", "letter", "make_events"),
    [
        (CHAT, GPT, "A", openai_wire.stream),
        (MESSAGES, GPT, "A", openai_wire.stream),
        (RESPONSES, LLAMA, "C", openai_wire.stream),
        (MESSAGES, CLAUDE, "B", anthropic_wire.stream),
        (CHAT, CLAUDE, "B", anthropic_wire.stream),
    ],
)
def test_final_usage_that_arrived_counts_though_the_client_left(
    gateway: Gateway,
    fakes: Mapping[str, FakeProvider],
    path: str,
    model: str,
    letter: str,
    make_events: Callable[[str], list[bytes]],
) -> None:
    """The usage of the fake is far below the tokens of its text."""
    events = make_events(WORDS)[:-1]  # all but the end mark
    fakes[letter].plays(sse(join_last(events, 4), end=stall()))
    got = leave_stream(gateway, path, {**BODIES[path], "model": model}, b"d99")
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["completion_tokens"], entry["estimated"]) == ("client_closed", 7, False)


@contextlib.contextmanager
def locked_database(path: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


def test_usage_of_a_complete_response_counts_though_the_client_left_while_it_was_stored(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config="[responses]\nstore = true\n")
    made = create(gateway, "--name", "leaver")
    provider_a.plays(answer(200, responses_wire.response(WORDS)))
    sent = json.dumps({"model": GPT, "input": "Hi"}).encode()
    head = f"POST {RESPONSES} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {made['key']}\r\n"
    until(lambda: gateway.request("GET", "/v1/models", key=made["key"]).status == 200, 10)
    with locked_database(gateway.home / "svc" / "svc.db"), gateway.raw() as raw:
        raw.send(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        until(lambda: provider_a.wait().played, 10)
        time.sleep(0.5)  # the gateway shows nothing when it has read the response and waits for the database
        raw.reset()
        gateway.logged("client_closed")

    def entries() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = gateway.request("GET", "/v1/usage?limit=10", key=made["key"]).json["data"]
        return found

    until(lambda: bool(entries()), 20)
    (entry,) = entries()
    assert (entry["status"], entry["completion_tokens"], entry["estimated"]) == ("client_closed", 7, False)


@pytest.mark.parametrize("instructions", [0, 20_000], ids=["short", "long"])
@pytest.mark.parametrize("end", ["error", "response.failed", "cut"])
def test_failed_stream_of_the_responses_api_counts_its_text(
    gateway: Gateway, provider_a: FakeProvider, end: str, instructions: int
) -> None:
    """The first two events repeat the request, and the last one has no text."""
    events = responses_wire.stream(WORDS)[:-4]
    frame = responses_wire.frame(instructions="x" * instructions)
    events[:2] = [
        responses_wire.event(0, "response.created", response=frame),
        responses_wire.event(1, "response.in_progress", response=frame),
    ]
    if end == "error":
        events.append(responses_wire.event(len(events), end, **ERROR))
    elif end == "response.failed":
        failed = responses_wire.frame(status="failed", error={"code": "server_error", "message": "It broke."})
        events.append(responses_wire.event(len(events), end, response=failed))
    provider_a.plays(sse(events, every=0.001, end=fin()))
    got = gateway.request("POST", RESPONSES, {"model": GPT, "stream": True, "input": "Hi"})
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["estimated"]) == ("cut", True)
    assert 95 <= entry["completion_tokens"] <= 160


def test_translated_stream_that_ends_with_an_error_event_counts_its_text(
    gateway: Gateway, provider_b: FakeProvider
) -> None:
    events = [*anthropic_wire.stream(WORDS)[:-3], anthropic_wire.error_event()]
    provider_b.plays(sse(events, every=0.001, end=fin()))
    got = gateway.request("POST", RESPONSES, {"model": CLAUDE, "stream": True, "input": "Hi"})
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["estimated"]) == ("cut", True)
    assert 90 <= entry["completion_tokens"] <= 160


def test_usage_before_the_finish_is_not_that_of_the_response(gateway: Gateway, provider_a: FakeProvider) -> None:
    """Some providers report a usage of 0 in the first chunk."""
    events = openai_wire.stream(WORDS)[:-2]  # without the usage and the end mark
    first = json.loads(events[0].removeprefix(b"data: "))
    events[0] = openai_wire.event({**first, "usage": {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}})
    provider_a.plays(sse(join_last(events, 2), end=stall()))
    got = leave_stream(gateway, CHAT, {**BODIES[CHAT], "model": GPT}, b"d99")
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["prompt_tokens"], entry["estimated"]) == ("client_closed", 9, True)
    assert 95 <= entry["completion_tokens"] <= 160


def test_usage_of_the_first_anthropic_event_is_not_that_of_the_response(
    gateway: Gateway, provider_b: FakeProvider
) -> None:
    events = [event for event in anthropic_wire.stream(WORDS)[:-1] if b"message_delta" not in event]
    events.append(anthropic_wire.event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}))
    provider_b.plays(sse(join_last(events, 3), end=stall()))
    got = leave_stream(gateway, MESSAGES, {**BODIES[MESSAGES], "model": CLAUDE}, b"d99")
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["estimated"]) == ("client_closed", True)
    assert 90 <= entry["completion_tokens"] <= 160


def test_usage_of_a_failed_response_counts(gateway: Gateway, provider_a: FakeProvider) -> None:
    events = responses_wire.stream(WORDS)[:-4]
    failed = responses_wire.response(None, status="failed", error={"code": "server_error", "message": "It broke."})
    events.append(responses_wire.event(len(events), "response.failed", response=failed))
    provider_a.plays(sse(events, end=fin()))
    got = gateway.request("POST", RESPONSES, {"model": GPT, "stream": True, "input": "Hi"})
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["completion_tokens"], entry["estimated"]) == ("cut", 7, False)


@pytest.mark.parametrize("last", [[anthropic_wire.ping()] * 3, [b": wait\n\n"] * 2], ids=["ping", "comment"])
def test_long_events_before_events_without_text_count(
    gateway: Gateway, provider_b: FakeProvider, last: list[bytes]
) -> None:
    delta = {"type": "text_delta", "text": "four" * 50}
    middle = [anthropic_wire.event("content_block_delta", index=0, delta=delta)] * 20
    provider_b.plays(sse([*anthropic_wire.stream(WORDS)[:3], *middle, *last], every=0.001, end=fin()))
    got = gateway.request("POST", RESPONSES, {"model": CLAUDE, "stream": True, "input": "Hi"})
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["estimated"]) == ("cut", True)
    assert 900 <= entry["completion_tokens"] <= 1_200
