"""Ends of streams whose chunks were forwarded unchanged: everything that the general path does still happens."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.e2e.accounts.test_keys import create, until
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway, run
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.e2e.test_partial_outages import logged
from tests.e2e.test_splice import chunked
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import Got, RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, Script, body, end, fin, head, hold, pause, raw, reset, sse, stall

A_AND_B = [("A", GPT), ("B", CLAUDE)]
"""Each provider is used in its own dialect: only then are chunks forwarded unchanged."""
PATHS = {"A": "/v1/chat/completions", "B": "/v1/messages"}


STREAM = {"model": GPT, "messages": HI, "stream": True, "max_tokens": 50}


def opening(letter: str) -> list[bytes]:
    return anthropic_wire.stream("")[:3] if letter == "B" else [openai_wire.role()]


def word(letter: str, text: str) -> bytes:
    if letter == "B":
        return anthropic_wire.event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    return openai_wire.chunk({"content": text})


def closing(letter: str) -> list[bytes]:
    if letter == "B":
        return [anthropic_wire.event("content_block_stop", index=0), *anthropic_wire.closing()]
    return openai_wire.stream("")[2:]


def words(count: int) -> list[str]:
    return [f" word{number}" for number in range(count)]


TEXT = "".join(words(30))


def word_stream(letter: str, texts: Iterable[str], ending: Script | None = None, *, every: float = 0.004) -> Script:
    """Send each text so that the gateway normally reads it separately."""
    script = head(content_type="text/event-stream") + body(b"".join(opening(letter)))
    for text in texts:
        script += raw(chunked(word(letter, text))) + pause(every)
    return script + (ending or body(b"".join(closing(letter))) + end())


def stream_request(gateway: Gateway, letter: str, model: str, key: str | None = None) -> bytes:
    return request_bytes("POST", PATHS[letter], {**STREAM, "model": model}, key=key or gateway.key)


def ask(gateway: Gateway, letter: str, model: str, key: str | None = None) -> Got:
    with gateway.raw(timeout=30) as client:
        client.send(stream_request(gateway, letter, model, key))
        return client.read()


def read(letter: str, got: Got) -> tuple[str, str | None]:
    """Return the text and the error code of a stream. The code is None for a complete stream."""
    assert (got.status, got.whole) == (200, True)
    if letter == "A" and got.body.endswith(openai_wire.DONE):
        return text_of(complete_chunks(got.body)), None
    if letter == "A":
        chunks, error = broken_stream(got.body)
        return text_of(chunks), error["code"]
    events = [json.loads(line[6:]) for line in got.body.decode().splitlines() if line.startswith("data: ")]
    text = "".join(each["delta"].get("text", "") for each in events if each["type"] == "content_block_delta")
    return text, {"message_stop": None, "error": "provider_error"}[events[-1]["type"]]


@contextlib.contextmanager
def client_in_mid_stream(gateway: Gateway, letter: str, model: str, key: str | None = None) -> Iterator[RawClient]:
    """Start a stream and yield its client in mid-stream."""
    with gateway.raw(timeout=30) as client:
        client.send(stream_request(gateway, letter, model, key))
        client.read_until(b" word20")
        yield client


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_idle_timeout_starts_at_last_chunk(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.4\n")
    fakes[letter].plays(word_stream(letter, words(30), stall(), every=0.05))
    began = time.monotonic()
    text, error = read(letter, ask(gateway, letter, model))
    assert (text, error) == (TEXT, "provider_error")
    assert 30 * 0.05 + 0.3 <= time.monotonic() - began < 4
    fakes[letter].requests[-1].wait_left(1)


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_total_timeout_interrupts_stream(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\ntotal_timeout = 0.6\n")
    fakes[letter].plays(word_stream(letter, words(500), stall(), every=0.01))
    began = time.monotonic()
    text, error = read(letter, ask(gateway, letter, model))
    assert error == "provider_error"
    assert text
    assert "".join(words(500)).startswith(text)
    assert 0.4 <= time.monotonic() - began < 3
    fakes[letter].requests[-1].wait_left(1)


@pytest.mark.slow
def test_splice_min_pace_counts_forwarded_tokens(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    """The minimum pace is ten tokens per second."""
    gateway = start_gateway(config="[routing]\nmin_pace = 10\n")
    provider_a.plays(word_stream("A", words(280), every=0.02), word_stream("A", words(60), every=0.2))
    answers: list[Got] = []
    with gateway.raw(timeout=20) as fast, gateway.raw(timeout=20) as slow:
        for client in (fast, slow):
            client.send(stream_request(gateway, "A", GPT))
            client.read_until(b" word1")
        threads = [threading.Thread(target=lambda one=one: answers.append(one.read())) for one in (slow, fast)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (cut, error), (whole, none) = sorted((read("A", got) for got in answers), key=lambda seen: len(seen[0]))
    assert (whole, none) == ("".join(words(280)), None)
    assert error == "provider_error"
    assert "".join(words(60)).startswith(cut)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_client_disconnect_closes_upstream_and_bills_forwarded_tokens(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str, how: str
) -> None:
    gate = Gate()
    fakes[letter].plays(word_stream(letter, words(40), hold(gate) + stall()))
    with client_in_mid_stream(gateway, letter, model) as client:
        request_id = client.read_until(b" word39").headers["x-request-id"]
        gate.reached()
        left = time.monotonic()
        if how == "reset":
            client.reset()
        else:
            client.socket.close()
        assert fakes[letter].wait().wait_left() - left < 5
    entry = entry_of(gateway, request_id)
    assert (entry["status"], entry["estimated"]) == ("client_closed", True)
    assert abs(entry["completion_tokens"] - 40) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_client_pausing_in_mid_stream_loses_nothing(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    """Chunks of the largest size for a splice, more than the socket buffers hold. A paused client is not idleness."""
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.5\n")
    texts = [f"{number:08}" + "x" * 1600 for number in range(14_000)]
    fakes[letter].plays(word_stream(letter, [*words(25), *texts], every=0))
    with client_in_mid_stream(gateway, letter, model) as client:
        seen, before = fakes[letter].wait(), -1
        while seen.sent != before:
            before = seen.sent
            time.sleep(1)
        assert not seen.played
        assert read(letter, client.read()) == ("".join([*words(25), *texts]), None)


@pytest.mark.slow
def test_splice_client_never_reading_again_is_closed(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nwrite_timeout = 0.5\nidle_timeout = 0.2\n")
    provider_a.plays(
        word_stream("A", [*words(25), *["x" * 1600] * 24_000], every=0)
    )  # more than the socket buffers hold
    with client_in_mid_stream(gateway, "A", GPT):
        provider_a.wait().wait_left(10)
    gateway.logged("client_closed")


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_key_revoked_in_mid_stream_completes_stream(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    """The stream in progress completes, and the next request is rejected."""
    made, gate = create(gateway, "--name", f"short-lived-{letter}"), Gate()
    rest = b"".join([word(letter, " end"), *closing(letter)])
    fakes[letter].plays(word_stream(letter, words(30), hold(gate) + body(rest) + end()))
    with client_in_mid_stream(gateway, letter, model, made["key"]) as client:
        gate.reached()
        assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
        until(lambda: ask(gateway, letter, model, made["key"]).status == 401, 20)
        gate.open()
        got = client.read()
    assert read(letter, got) == (TEXT + " end", None)
    assert logged(gateway, got)["key_id"] == made["id"]


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_budget_exceeded_in_mid_stream_rejects_next_request(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    """The provider sends more than requested and disconnects. The tokens are billed. The next request is rejected."""
    gateway = start_gateway(env={"SVC_FASTPATH": "1"})  # the splice counts what it forwards
    budget = {"A": 0.0001, "B": 0.002}[letter]
    made = create(gateway, "--name", f"poor-{letter}", "--budget-usd", f"{budget:f}", "--budget-period", "day")
    fakes[letter].plays(word_stream(letter, words(300), fin()))
    got = ask(gateway, letter, model, made["key"])
    assert read(letter, got) == ("".join(words(300)), "provider_error")
    entry = logged(gateway, got)
    assert (entry["status"], entry["estimated"]) == ("cut", True)
    assert abs(entry["completion_tokens"] - sum(len(each) // 4 for each in words(300))) <= 3
    assert entry["cost_usd"] > budget
    assert ask(gateway, letter, model, made["key"]).status == 429


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_sigterm_completes_stream(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway()
    fakes[letter].plays(word_stream(letter, words(100), every=0.01))
    with client_in_mid_stream(gateway, letter, model) as client:
        gateway.send_sigterm()
        assert read(letter, client.read()) == ("".join(words(100)), None)
        assert client.closed()
    assert gateway.process.wait(5) == 0


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_drain_timeout_ends_stream_with_error(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\ndrain_timeout = 0.5\n")
    fakes[letter].plays(word_stream(letter, words(2000), every=0.01))
    with client_in_mid_stream(gateway, letter, model) as client:
        gateway.send_sigterm()
        text, error = read(letter, client.read())
    assert "".join(words(2000)).startswith(text)
    assert error == "provider_error"
    assert gateway.process.wait(5) == 0
    fakes[letter].wait().wait_left(1)


@pytest.mark.parametrize("ending", [None, fin()], ids=["whole", "cut"])
@pytest.mark.parametrize("winner", ["A", "C"])
def test_splice_hedge_winner_is_forwarded(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider, winner: str, ending: Script | None
) -> None:
    gateway = start_gateway(
        config=f'[routing]\nretries = 0\nhedge_after = 0.2\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n'
    )
    script = word_stream("A", words(60), ending)
    provider_a.plays(pause(0.5) + script if winner == "A" else stall())
    provider_c.plays(script if winner == "C" else stall())
    got = ask(gateway, "A", GPT)
    assert read("A", got) == ("".join(words(60)), "provider_error" if ending else None)
    assert (got.headers["x-svc-attempts"], got.headers["x-svc-provider"]) == ("2", {"A": "openai", "C": "groq"}[winner])
    (provider_c if winner == "A" else provider_a).wait().wait_left(1)


def test_splice_interrupted_stream_is_resumed(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    gateway = start_gateway(
        config=f'[routing]\nretries = 0\nresume = true\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n'
    )
    provider_a.plays(word_stream("A", words(50), pause(0.3) + reset()))
    provider_c.plays(word_stream("A", [" and", " on"]))
    assert read("A", ask(gateway, "A", GPT)) == ("".join(words(50)) + " and on", None)


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_cached_response_is_complete(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[cache]\nenabled = true\n")
    fakes[letter].plays(word_stream(letter, words(60), fin()), word_stream(letter, words(60)))
    cut, first, second = (ask(gateway, letter, model) for _ in range(3))
    assert [got.headers["x-svc-cache"] for got in (cut, first, second)] == ["miss", "miss", "hit"]
    assert read(letter, first) == ("".join(words(60)), None)
    assert second.body == first.body


NOT_JSON = b"event: content_block_delta\ndata: {nope\n\n"
ENDINGS = {
    "FIN": fin(),
    "RST": pause(0.3) + reset(),  # it discards what the gateway has not read
    "not HTTP": raw(b"\xff\xfe\x00garbage\r\n") + stall(),
    "not JSON": body(NOT_JSON) + stall(),
    "not UTF-8": body(b"data: \xff\xfe\n\n") + stall(),
    "invalid chunk size": raw(b"-1\r\n") + stall(),
    "half an event": body(NOT_JSON[:20]) + end(),
    "half a chunk": raw(b"7f\r\ndata: {") + fin(),
    "no finish": end(),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_splice_every_abnormal_end_is_provider_error(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str, ending: str
) -> None:
    fakes[letter].plays(word_stream(letter, words(50), ENDINGS[ending]))
    assert read(letter, ask(gateway, letter, model)) == ("".join(words(50)), "provider_error")
    fakes[letter].until(lambda: not any(one.busy for one in fakes[letter].connections), 20)


def test_splice_anthropic_blocks_are_forwarded_unchanged(gateway: Gateway, provider_b: FakeProvider) -> None:
    """Consecutive content blocks have different framing."""
    kinds = [
        anthropic_wire.thinking("so it may be " * 4),
        anthropic_wire.text("well " * 9),
        anthropic_wire.text("then"),
    ]
    tool = anthropic_wire.tool_use("toolu_1", "weather", '{"city": "Oslo", "days": 3}')
    events = anthropic_wire.stream([*kinds, tool], stop="tool_use")
    provider_b.plays(sse(events, every=0.004))
    assert ask(gateway, "B", CLAUDE).body == b"".join(events)


def test_splice_connection_serves_next_response_with_other_framing(gateway: Gateway, provider_a: FakeProvider) -> None:
    """The second response has a Content-Length, and its body holds bytes that resemble a chunk."""
    first, second, third, *rest = openai_wire.stream("eins zwei drei")
    parts = [first + second, third, chunked(word("A", " und")), b"".join(rest)]
    plain = head(content_type="text/event-stream", framing="length", length=sum(map(len, parts)))
    for part in parts:
        plain += raw(part) + pause(0.05)
    provider_a.plays(word_stream("A", words(30)), plain, word_stream("A", words(30)))
    with gateway.raw() as client:
        seen = []
        for _ in range(3):
            seen.append(client.request("POST", PATHS["A"], STREAM, key=gateway.key))
            provider_a.until(lambda: provider_a.requests[-1].played)
            gateway.request("GET", "/health")  # after this response, the gateway has read all earlier data
    assert [read("A", got) for got in seen] == [(text, None) for text in (TEXT, "eins zwei und drei", TEXT)]
    assert len({one.connection for one in provider_a.requests}) == 1
