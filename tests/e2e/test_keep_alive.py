"""Keep-alives of streams: the client gets one while the upstream is silent, and never within an event."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, body, end, head, pause, reset, sse, stall

COMMENT, PING = b": keep-alive\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'
Case = tuple[str, bytes, str, str]
WORDS = "eins zwei drei vier fuenf sechs"
QUICK = "[gateway]\nstream_keep_alive = 0.4\nfirst_byte_timeout = 5\nidle_timeout = 5\n"


def ask(gateway: Gateway, path: str, model: str) -> Got:
    fields = {"model": model, "messages": HI, "max_tokens": 50, "stream": True}
    return gateway.request("POST", path, fields)


def events_of(letter: str) -> list[bytes]:
    return openai_wire.stream(WORDS) if letter == "A" else anthropic_wire.stream(WORDS)


def broken_at(cut: int, stream: bytes, seconds: float) -> Script:
    """Return a stream that is silent for some seconds after `cut` bytes."""
    opened = head(content_type="text/event-stream") + body(stream[:cut])
    return opened + pause(seconds) + body(stream[cut:]) + end()


PATHS: list[Case] = [
    (path, keep_alive, letter, model)
    for path, keep_alive in (("/v1/chat/completions", COMMENT), ("/v1/messages", PING))
    for letter, model in (("A", GPT), ("B", CLAUDE))
]


def ask_whole(gateway: Gateway, fakes: Mapping[str, FakeProvider], cases: list[Case]) -> list[Got]:
    """Return the responses without silence."""
    for letter in "AB":
        fakes[letter].always_plays(sse(events_of(letter)))
    return [ask(gateway, path, model) for path, _, _, model in cases]


def comparable(got: Got, keep_alive: bytes) -> bytes:
    """Return the body without keep-alives and times."""
    return re.sub(rb'"created":\d+', b"", got.body.replace(keep_alive, b""))


def test_keep_alive_of_silent_upstream_is_sent_between_whole_events(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider]
) -> None:
    gateway = start_gateway(config=QUICK)
    whole = ask_whole(gateway, fakes, PATHS)
    for shift in (0, 20):  # after an event, and within one
        for letter in "AB":
            events = events_of(letter)
            cut = sum(map(len, events[:5])) + shift
            fakes[letter].always_plays(broken_at(cut, b"".join(events), 1.4))
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda case: ask(gateway, case[0], case[3]), PATHS))
        for (_, keep_alive, _, _), expected, got in zip(PATHS, whole, answers, strict=True):
            assert comparable(got, keep_alive) == comparable(expected, keep_alive)
            assert 1 <= got.body.count(keep_alive) - expected.body.count(keep_alive) <= 3
            assert len(re.findall(rb"(?<=\n\n)" + re.escape(keep_alive), got.body)) == got.body.count(keep_alive)
            assert got.headers["cache-control"] == "no-cache"
            assert got.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(("letter", "model"), [("A", GPT), ("B", CLAUDE)])
def test_keep_alive_does_not_extend_idle_timeout(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\nstream_keep_alive = 0.4\nidle_timeout = 1.5\n")
    fakes[letter].plays(sse(events_of(letter)[:5], end=stall()))
    began = time.monotonic()
    got = gateway.chat(model, stream=True)
    assert 1.4 <= time.monotonic() - began < 3
    assert 1 <= got.body.count(COMMENT) <= 3
    assert broken_stream(got.body)[1]["code"] == "provider_error"


def test_keep_alive_waits_for_first_event_and_is_not_in_json(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config=QUICK)
    provider_a.plays(
        pause(1.2) + sse(events_of("A")),
        head(content_type="text/event-stream") + pause(1.2) + body(b"".join(events_of("A"))) + end(),
        pause(1.2) + answer(200, openai_wire.chat()),
    )
    for stream in (True, True, False):
        got = gateway.chat(stream=stream)
        assert got.status == 200
        assert b"keep-alive" not in got.body


def test_keep_alive_is_sent_while_upstream_sends_only_its_own(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider]
) -> None:
    gateway = start_gateway(config="[gateway]\nstream_keep_alive = 0.4\nidle_timeout = 1\n")
    own = {"A": b": PROCESSING\n\n", "B": PING}
    cases = [case for case in PATHS if case[1] != own[case[2]]]
    whole = ask_whole(gateway, fakes, cases)
    for letter in "AB":
        events = events_of(letter)
        opened = head(content_type="text/event-stream") + body(b"".join(events[:5]))
        for _ in range(8):
            opened += pause(0.2) + body(own[letter])
        fakes[letter].always_plays(opened + body(b"".join(events[5:])) + end())
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda case: ask(gateway, case[0], case[3]), cases))
    assert len(answers) == 3
    for (_, keep_alive, _, _), expected, got in zip(cases, whole, answers, strict=True):
        assert comparable(got, keep_alive) == comparable(expected, keep_alive)
        assert got.body.count(keep_alive) - expected.body.count(keep_alive) >= 1


def test_keep_alive_is_not_queued_for_client_that_does_not_read(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config=QUICK)
    words = openai_wire.chunk({"content": " word"}) * 200
    provider_a.plays(sse([openai_wire.role(), *[words] * 400, *openai_wire.stream("")[-2:]]))
    request = request_bytes(
        "POST", "/v1/chat/completions", {"model": GPT, "messages": HI, "stream": True}, key=gateway.key
    )
    with gateway.raw(timeout=20) as raw:
        raw.send(request)
        time.sleep(2)
        assert not provider_a.requests[0].played, "the client's buffers must be full"
        got = raw.read()
    assert COMMENT not in got.body
    assert got.body.count(b" word") == 400 * 200


def test_keep_alive_is_not_part_of_cached_response(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config=f"{QUICK}[cache]\nenabled = true\n")
    events = openai_wire.stream(WORDS)
    provider_a.plays(broken_at(sum(map(len, events[:5])), b"".join(events), 0.9))
    first, second = gateway.chat(stream=True), gateway.chat(stream=True)
    assert [got.headers["x-svc-cache"] for got in (first, second)] == ["miss", "hit"]
    assert COMMENT in first.body
    assert first.body.replace(COMMENT, b"") == second.body


def test_keep_alive_is_sent_while_a_stream_is_resumed(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    config = f'{QUICK}[routing]\nresume = true\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
    gateway = start_gateway(config=config)
    provider_a.plays(sse(openai_wire.stream("eins zwei drei vier")[:4], end=reset()))
    provider_b.plays(pause(1.2) + sse(anthropic_wire.stream(" fuenf")))
    got = gateway.chat(stream=True)
    assert 1 <= got.body.count(COMMENT) <= 3
    assert text_of(complete_chunks(got.body)).endswith(" fuenf")


def test_keep_alive_is_ignored_by_client_libraries(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    gateway = start_gateway(config=QUICK)
    for provider, letter in ((provider_a, "A"), (provider_b, "B")):
        events = events_of(letter)
        provider.plays(broken_at(sum(map(len, events[:5])), b"".join(events), 0.9))
    with gateway.openai() as client:
        chunks = client.chat.completions.create(model=GPT, messages=HI, stream=True)  # type: ignore[call-overload]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == WORDS
    with (
        gateway.anthropic() as anthropic_client,
        anthropic_client.messages.stream(model=CLAUDE, max_tokens=50, messages=HI) as stream,  # type: ignore[arg-type]
    ):
        assert "".join(stream.text_stream) == WORDS
