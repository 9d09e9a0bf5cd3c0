"""How streams end of which most has gone from connection to connection: nothing that the long way does is lost."""

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
from tests.e2e.reading import broken_stream, text_of, whole_chunks
from tests.e2e.test_healing import logged
from tests.e2e.test_relay import chunked
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import Got, RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, Script, body, end, fin, head, hold, pause, raw, reset, sse, stall

A_AND_B = [("A", GPT), ("B", CLAUDE)]
"""Each asked in its own dialect: only then chunks go on as they are."""
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


SAID = "".join(words(30))


def carried(letter: str, texts: Iterable[str], ending: Script | None = None, *, every: float = 0.004) -> Script:
    """A read of its own for each text, nearly always."""
    script = head(content_type="text/event-stream") + body(b"".join(opening(letter)))
    for text in texts:
        script += raw(chunked(word(letter, text))) + pause(every)
    return script + (ending or body(b"".join(closing(letter))) + end())


def asked(gateway: Gateway, letter: str, model: str, key: str | None = None) -> bytes:
    return request_bytes("POST", PATHS[letter], {**STREAM, "model": model}, key=key or gateway.key)


def ask(gateway: Gateway, letter: str, model: str, key: str | None = None) -> Got:
    with gateway.raw(timeout=30) as client:
        client.send(asked(gateway, letter, model, key))
        return client.read()


def read(letter: str, got: Got) -> tuple[str, str | None]:
    """The text, and the kind of error that it ended in; None for a whole answer."""
    assert (got.status, got.whole) == (200, True)
    if letter == "A" and got.body.endswith(openai_wire.DONE):
        return text_of(whole_chunks(got.body)), None
    if letter == "A":
        chunks, error = broken_stream(got.body)
        return text_of(chunks), error["code"]
    events = [json.loads(line[6:]) for line in got.body.decode().splitlines() if line.startswith("data: ")]
    said = "".join(each["delta"].get("text", "") for each in events if each["type"] == "content_block_delta")
    return said, {"message_stop": None, "error": "provider_error"}[events[-1]["type"]]


@contextlib.contextmanager
def running(gateway: Gateway, letter: str, model: str, key: str | None = None) -> Iterator[RawClient]:
    """A client in mid-stream."""
    with gateway.raw(timeout=30) as client:
        client.send(asked(gateway, letter, model, key))
        client.read_until(b" word20")
        yield client


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_idleness_is_counted_from_the_last_chunk(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.4\n")
    fakes[letter].plays(carried(letter, words(30), stall(), every=0.05))
    began = time.monotonic()
    said, error = read(letter, ask(gateway, letter, model))
    assert (said, error) == (SAID, "provider_error")
    assert 30 * 0.05 + 0.3 <= time.monotonic() - began < 4
    fakes[letter].requests[-1].wait_left(1)


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_the_total_time_holds_for_what_is_carried(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\ntotal_timeout = 0.6\n")
    fakes[letter].plays(carried(letter, words(500), stall(), every=0.01))
    began = time.monotonic()
    said, error = read(letter, ask(gateway, letter, model))
    assert error == "provider_error"
    assert said
    assert "".join(words(500)).startswith(said)
    assert 0.4 <= time.monotonic() - began < 3
    fakes[letter].requests[-1].wait_left(1)


def test_pace_counts_what_is_carried(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    """Ten tokens a second are asked for."""
    gateway = start_gateway(config="[routing]\nmin_pace = 10\n")
    provider_a.plays(carried("A", words(280), every=0.02), carried("A", words(60), every=0.2))
    answers: list[Got] = []
    with gateway.raw(timeout=20) as fast, gateway.raw(timeout=20) as slow:
        for client in (fast, slow):
            client.send(asked(gateway, "A", GPT))
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
def test_a_client_that_leaves_takes_the_upstream_along_and_owes_for_what_it_got(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str, how: str
) -> None:
    gate = Gate()
    fakes[letter].plays(carried(letter, words(40), hold(gate) + stall()))
    with running(gateway, letter, model) as client:
        request_id = client.read_until(b" word39").headers["x-request-id"]
        gate.reached()
        left = time.monotonic()
        if how == "reset":
            client.reset()
        else:
            client.socket.close()
        assert fakes[letter].wait().wait_left() - left < 0.3
    entry = entry_of(gateway, request_id)
    assert (entry["status"], entry["estimated"]) == ("client_closed", True)
    assert abs(entry["completion_tokens"] - 40) <= 2


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_who_stops_reading_in_mid_stream_loses_nothing(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    """Chunks as large as are carried, more than the system's buffers hold; that nothing moves is no idleness."""
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.5\n")
    texts = [f"{number:08}" + "x" * 1600 for number in range(14_000)]
    fakes[letter].plays(carried(letter, [*words(25), *texts], every=0))
    with running(gateway, letter, model) as client:
        seen, before = fakes[letter].wait(), -1
        while seen.sent != before:
            before = seen.sent
            time.sleep(1)
        assert not seen.played
        assert read(letter, client.read()) == ("".join([*words(25), *texts]), None)


def test_who_stops_reading_for_good_is_dropped(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nwrite_timeout = 0.5\nidle_timeout = 0.2\n")
    provider_a.plays(carried("A", [*words(25), *["x" * 1600] * 24_000], every=0))  # more than the system's buffers hold
    with running(gateway, "A", GPT):
        provider_a.wait().wait_left(10)
    gateway.logged("client_closed")


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_a_key_that_is_revoked_in_mid_stream(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    """What runs ends as it would, and is the last."""
    made, gate = create(gateway, "--name", f"short-lived-{letter}"), Gate()
    rest = b"".join([word(letter, " end"), *closing(letter)])
    fakes[letter].plays(carried(letter, words(30), hold(gate) + body(rest) + end()))
    with running(gateway, letter, model, made["key"]) as client:
        gate.reached()
        assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
        until(lambda: ask(gateway, letter, model, made["key"]).status == 401, 1.0)
        gate.open()
        got = client.read()
    assert read(letter, got) == (SAID + " end", None)
    assert logged(gateway, got)["key_id"] == made["id"]


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_a_budget_that_is_used_up_in_mid_stream(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    """The provider says more than was asked for, then breaks off: it is owed, and was the last."""
    gateway = start_gateway(env={"SVC_FASTPATH": "1"})  # the splice counts what it forwards
    budget = {"A": 0.0001, "B": 0.002}[letter]
    made = create(gateway, "--name", f"poor-{letter}", "--budget-usd", f"{budget:f}", "--budget-period", "day")
    fakes[letter].plays(carried(letter, words(300), fin()))
    got = ask(gateway, letter, model, made["key"])
    assert read(letter, got) == ("".join(words(300)), "provider_error")
    entry = logged(gateway, got)
    assert (entry["status"], entry["estimated"]) == ("cut", True)
    assert abs(entry["completion_tokens"] - sum(len(each) // 4 for each in words(300))) <= 3
    assert entry["cost_usd"] > budget
    assert ask(gateway, letter, model, made["key"]).status == 429


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_sigterm_lets_it_end(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway()
    fakes[letter].plays(carried(letter, words(100), every=0.01))
    with running(gateway, letter, model) as client:
        gateway.ask_to_stop()
        assert read(letter, client.read()) == ("".join(words(100)), None)
        assert client.closed()
    assert gateway.process.wait(5) == 0


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_the_end_of_the_drain_is_told(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\ndrain_timeout = 0.5\n")
    fakes[letter].plays(carried(letter, words(2000), every=0.01))
    with running(gateway, letter, model) as client:
        gateway.ask_to_stop()
        said, error = read(letter, client.read())
    assert "".join(words(2000)).startswith(said)
    assert error == "provider_error"
    assert gateway.process.wait(5) == 0
    fakes[letter].wait().wait_left(1)


@pytest.mark.parametrize("ending", [None, fin()], ids=["whole", "cut"])
@pytest.mark.parametrize("winner", ["A", "C"])
def test_of_two_that_run_the_winner_is_carried(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider, winner: str, ending: Script | None
) -> None:
    gateway = start_gateway(
        config=f'[routing]\nretries = 0\nhedge_after = 0.2\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n'
    )
    said = carried("A", words(60), ending)
    provider_a.plays(pause(0.5) + said if winner == "A" else stall())
    provider_c.plays(said if winner == "C" else stall())
    got = ask(gateway, "A", GPT)
    assert read("A", got) == ("".join(words(60)), "provider_error" if ending else None)
    assert (got.headers["x-svc-attempts"], got.headers["x-svc-provider"]) == ("2", {"A": "openai", "C": "groq"}[winner])
    (provider_c if winner == "A" else provider_a).wait().wait_left(1)


def test_a_stream_that_breaks_goes_on_elsewhere(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    gateway = start_gateway(
        config=f'[routing]\nretries = 0\nresume = true\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n'
    )
    provider_a.plays(carried("A", words(50), reset()))
    provider_c.plays(carried("A", [" and", " on"]))
    assert read("A", ask(gateway, "A", GPT)) == ("".join(words(50)) + " and on", None)


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_what_is_kept_is_whole(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[cache]\nenabled = true\n")
    fakes[letter].plays(carried(letter, words(60), fin()), carried(letter, words(60)))
    cut, first, second = (ask(gateway, letter, model) for _ in range(3))
    assert [got.headers["x-svc-cache"] for got in (cut, first, second)] == ["miss", "miss", "hit"]
    assert read(letter, first) == ("".join(words(60)), None)
    assert second.body == first.body


NOT_JSON = b"event: content_block_delta\ndata: {nope\n\n"
ENDINGS = {
    "FIN": fin(),
    "RST": reset(),
    "not HTTP": raw(b"\xff\xfe\x00garbage\r\n") + stall(),
    "not JSON": body(NOT_JSON) + stall(),
    "not UTF-8": body(b"data: \xff\xfe\n\n") + stall(),
    "a size that is none": raw(b"-1\r\n") + stall(),
    "half an event": body(NOT_JSON[:20]) + end(),
    "half a chunk": raw(b"7f\r\ndata: {") + fin(),
    "no finish": end(),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_the_truth_of_every_end(
    gateway: Gateway, fakes: Mapping[str, FakeProvider], letter: str, model: str, ending: str
) -> None:
    fakes[letter].plays(carried(letter, words(50), ENDINGS[ending]))
    assert read(letter, ask(gateway, letter, model)) == ("".join(words(50)), "provider_error")
    fakes[letter].until(lambda: not any(one.busy for one in fakes[letter].connections), 1)


def test_blocks_one_after_the_other(gateway: Gateway, provider_b: FakeProvider) -> None:
    """The frame of one is not that of the next."""
    kinds = [
        anthropic_wire.thinking("so it may be " * 4),
        anthropic_wire.text("well " * 9),
        anthropic_wire.text("then"),
    ]
    tool = anthropic_wire.tool_use("toolu_1", "weather", '{"city": "Oslo", "days": 3}')
    events = anthropic_wire.stream([*kinds, tool], stop="tool_use")
    provider_b.plays(sse(events, every=0.004))
    assert ask(gateway, "B", CLAUDE).body == b"".join(events)


def test_what_follows_on_the_same_two_connections(gateway: Gateway, provider_a: FakeProvider) -> None:
    """The second answer has a length instead of chunks, and what looks like a chunk in it."""
    first, second, third, *rest = openai_wire.stream("eins zwei drei")
    parts = [first + second, third, chunked(word("A", " und")), b"".join(rest)]
    plain = head(content_type="text/event-stream", framing="length", length=sum(map(len, parts)))
    for part in parts:
        plain += raw(part) + pause(0.05)
    provider_a.plays(carried("A", words(30)), plain, carried("A", words(30)))
    with gateway.raw() as client:
        seen = []
        for _ in range(3):
            seen.append(client.request("POST", PATHS["A"], STREAM, key=gateway.key))
            provider_a.until(lambda: provider_a.requests[-1].played)
            gateway.request("GET", "/health")  # by its answer the gateway has read what came before it
    assert [read("A", got) for got in seen] == [(text, None) for text in (SAID, "eins zwei und drei", SAID)]
    assert len({one.connection for one in provider_a.requests}) == 1
