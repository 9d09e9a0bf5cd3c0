"""`routing.resume`: a stream that breaks in its text goes on at the next target, in one piece."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.e2e.reading import broken_stream, finish_of, text_of, whole_chunks
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, end, pause, reset, sse, stall

CONFIG = f"""
[gateway]
idle_timeout = 1
[routing]
resume = true
retries = 0
[routing.fallbacks]
"{GPT}" = ["{CLAUDE}", "{LLAMA}"]
"{CLAUDE}" = ["{GPT}"]
"""
BREAK = pause(0.02) + reset()
STREAM = {"model": GPT, "messages": HI, "stream": True}


@pytest.fixture
def resuming(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config=CONFIG)


def begun(*pieces: str, ends: Script = BREAK) -> Script:
    """OpenAI's, broken off after these pieces of text."""
    return sse([openai_wire.role(), *(openai_wire.chunk({"content": piece}) for piece in pieces)], end=ends)


def streamed(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    got = gateway.chat(stream=True, **fields)
    assert got.status == 200
    return whole_chunks(got.body, usage="stream_options" in fields)


@pytest.mark.parametrize(
    "breaks",
    [BREAK, end(), stall(), sse([openai_wire.event(openai_wire.error("down", "server_error"))])],
    ids=["reset", "clean end", "stall", "error event"],
)
def test_the_text_goes_on_in_one_piece(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, breaks: Script
) -> None:
    rest = Script(breaks.steps[1:]) if len(breaks.steps) > 2 else breaks
    provider_a.plays(begun("eins", " zwei", ends=rest))
    provider_b.plays(sse(anthropic_wire.stream(" drei vier")))
    got = resuming.chat(stream=True)
    chunks = whole_chunks(got.body)
    assert text_of(chunks) == "eins zwei drei vier"
    assert finish_of(chunks) == "stop"
    assert b": resumed" in got.body
    asked = provider_b.wait().json["messages"]
    assert [turn["role"] for turn in asked] == ["user", "assistant"]
    assert "eins zwei" in json.dumps(asked[-1])
    entry = json.loads(next(line for line in resuming.logged('"status"').splitlines() if '"status":' in line))
    assert (entry["status"], entry["attempts"], entry["provider"]) == ("ok", 2, "anthropic")


@pytest.mark.parametrize("goes_on", [" drei", "drei"])
def test_white_space_at_the_joint_is_said_once(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, goes_on: str
) -> None:
    provider_a.plays(begun("eins", " zwei "))
    provider_b.plays(sse(anthropic_wire.stream(goes_on)))
    assert text_of(streamed(resuming)) == "eins zwei drei"
    assert json.dumps(provider_b.wait().json["messages"][-1]).count("zwei ") == 0


def test_a_break_before_any_text_begins_anew(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(sse([openai_wire.role()], end=BREAK))
    assert text_of(streamed(resuming)) == anthropic_wire.TEXT
    assert [turn["role"] for turn in provider_b.wait().json["messages"]] == ["user"]


def test_it_may_break_twice(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(begun("eins"))
    provider_b.plays(sse(anthropic_wire.stream(" zwei")[:-3], end=BREAK))
    provider_c.plays(sse(openai_wire.stream(" drei")))
    assert text_of(streamed(resuming, stream_options={"include_usage": True})) == "eins zwei drei"
    assert provider_c.wait().json["messages"][-1]["content"] == "eins zwei"


def entry(gateway: Gateway) -> dict[str, Any]:
    """The ledger's line for the one request."""
    logged = gateway.logged('"status":')
    found: dict[str, Any] = json.loads(next(line for line in logged.splitlines() if '"status":' in line))
    return found


def test_the_broken_part_is_billed_too(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    """Anthropic tells the prompt's tokens at the start; of what OpenAI said before it broke, all is guessed."""
    provider_a.plays(begun("eins", " zwei"))
    provider_b.plays(sse(anthropic_wire.stream(" drei")[:-3], end=BREAK))
    provider_c.plays(sse(openai_wire.stream(" vier")))
    streamed(resuming)
    line = entry(resuming)
    assert (line["status"], line["provider"], line["attempts"], line["resumed"]) == ("ok", "groq", 3, 2)
    assert line["estimated"] is True
    told = openai_wire.USAGE["prompt_tokens"]
    assert 2 * told + 10 < line["prompt_tokens"] < 2 * told + 40
    assert 7 + 2 + 1 <= line["completion_tokens"] < 7 + 10
    assert line["cost_usd"] > 0


def test_what_nobody_took_up_is_billed_once(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(begun("eins", " zwei"))
    provider_b.plays(answer(500, anthropic_wire.error("api_error")))
    provider_c.plays(reset())
    broken_stream(resuming.chat(stream=True).body)
    line = entry(resuming)
    assert (line["status"], line["provider"], line["attempts"], line["resumed"]) == ("cut", "openai", 3, 0)
    assert line["prompt_tokens"] < 30
    assert 2 <= line["completion_tokens"] < 10


def test_when_nothing_is_left_the_end_is_honest(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(begun("eins"))
    provider_b.plays(answer(500, anthropic_wire.error("api_error")))
    provider_c.plays(reset())
    got = resuming.chat(stream=True)
    assert got.whole
    chunks, error = broken_stream(got.body)
    assert text_of(chunks) == "eins"
    assert error["code"] == "provider_error"


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_a_target_that_refuses_to_go_on_is_passed_over(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider, status: int
) -> None:
    provider_a.plays(begun("eins"))
    provider_b.plays(answer(status, anthropic_wire.error("invalid_request_error")))
    provider_c.plays(sse(openai_wire.stream(" zwei")))
    assert text_of(streamed(resuming)) == "eins zwei"


@pytest.mark.parametrize("status", [400, 404, 429])
def test_the_end_says_what_cut_the_stream_not_who_refused_the_rest(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider, status: int
) -> None:
    provider_a.plays(begun("eins", " zwei"))
    provider_b.plays(answer(status, anthropic_wire.error()))
    provider_c.plays(answer(429, openai_wire.error()))
    chunks, error = broken_stream(resuming.chat(stream=True).body)
    assert text_of(chunks) == "eins zwei"
    assert error["code"] == "provider_error"
    assert "limit" not in error["message"]


def test_a_tool_call_in_progress_is_never_resumed(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    events = openai_wire.tool_stream([("call_1", "f", '{"a": 1}')])
    provider_a.plays(sse(events[:3], end=BREAK))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    _, error = broken_stream(resuming.chat(stream=True, tools=tools).body)
    assert error["code"] == "provider_error"
    assert not provider_b.requests


def test_what_cannot_be_taken_up_is_not(resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider) -> None:
    provider_a.plays(begun("eins"))
    broken_stream(resuming.chat(stream=True, logprobs=True).body)
    assert not provider_b.requests


def test_a_client_of_the_other_dialect(resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider) -> None:
    provider_b.plays(sse(anthropic_wire.stream("eins zwei")[:-3], end=BREAK))
    provider_a.plays(sse(openai_wire.stream(" drei")))
    with resuming.anthropic() as client, client.messages.stream(model=CLAUDE, messages=HI, max_tokens=50) as stream:
        message = stream.get_final_message()
    assert [block.text for block in message.content] == ["eins zwei drei"]
    assert message.stop_reason == "end_turn"


def test_the_client_leaves_while_it_is_taken_up(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(begun("eins"))
    provider_b.plays(stall())
    with resuming.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=resuming.key))
        provider_b.wait()
    left = time.monotonic()
    assert provider_b.wait().wait_left(2.0) < left + 0.1


def test_a_probe_that_nobody_waited_for_leaves_its_place(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    """The target that takes the stream up is half-open, and the client leaves before its first byte."""
    started = start_gateway(config=CONFIG.replace(f', "{LLAMA}"', ""))
    provider_b.always_plays(answer(500, anthropic_wire.error("api_error")))
    for _ in range(20):
        started.chat(CLAUDE)
    started.logged("closed -> open")
    time.sleep(2.1)
    provider_b.always_plays(None)
    provider_b.plays(stall())
    provider_a.plays(begun("eins"))
    with started.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=started.key))
        provider_b.wait(21)
    started.logged("client_closed")
    assert started.chat(CLAUDE).headers["x-svc-provider"] == "anthropic"


def test_the_total_time_out_ends_it(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=CONFIG.replace("[gateway]", "[gateway]\ntotal_timeout = 1\nfirst_byte_timeout = 9"))
    provider_a.plays(begun("eins", ends=stall()))
    began = time.monotonic()
    broken_stream(started.chat(stream=True).body)
    assert time.monotonic() - began < 2.5


def test_without_the_setting_a_break_is_an_error(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=CONFIG.replace("resume = true", "resume = false"))
    provider_a.plays(begun("eins"))
    broken_stream(started.chat(stream=True).body)
    assert not provider_b.requests


def test_a_stream_below_the_floor_of_pace_is_broken_off(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    """One token every half second is alive for the idle time-out, and too slow for the floor."""
    started = start_gateway(config="[routing]\nmin_pace = 10\n")
    slow = [openai_wire.role(), *openai_wire.words(" ".join("abcdefghijklmnopqrstuvwxyz"))]
    provider_a.plays(sse(slow, every=0.5), sse(openai_wire.stream("a b c"), every=0.01))
    began = time.monotonic()
    chunks, error = broken_stream(started.chat(stream=True).body)
    assert 4.5 < time.monotonic() - began < 8
    assert "pace" in error["message"]
    assert text_of(chunks)
    assert text_of(streamed(started)) == "a b c"


def test_an_answer_too_long_to_be_kept_is_not_resumed(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(begun(*["x" * 10_000] * 7))
    chunks, error = broken_stream(resuming.chat(stream=True).body)
    assert (len(text_of(chunks)), error["code"]) == (70_000, "provider_error")
    assert not provider_b.requests
