"""`routing.resume`: a stream interrupted within its text continues at the next target."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from svc.dialects.responses.reasoning import encode_thinking
from svc.wire.chat import ThinkingPart
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, finish_of, text_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, end, pause, reset, sse, stall
from tests.openresponses import validate_events, validate_response

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
INTERRUPTION = pause(0.02) + reset()
STREAM = {"model": GPT, "messages": HI, "stream": True}


@pytest.fixture
def resuming(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config=CONFIG)


@pytest.mark.parametrize(("fallback", "letter"), [(GPT, "A"), (LLAMA, "C")])
def test_resume_responses_stream_continues_at_fallback_with_same_items(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider], fallback: str, letter: str
) -> None:
    gateway = start_gateway(config=CONFIG.replace(f'"{CLAUDE}" = ["{GPT}"]', f'"{CLAUDE}" = ["{fallback}"]'))
    fakes["B"].plays(sse(anthropic_wire.stream("eins zwei drei")[:5], end=INTERRUPTION))
    fakes[letter].plays(sse(openai_wire.stream(" vier fünf")))
    thinking = encode_thinking(ThinkingPart("Hm.", "c2ln"), f"anthropic/{CLAUDE}")
    items = [{"role": "user", "content": "Hi"}, {"type": "reasoning", "summary": [], "encrypted_content": thinking}]
    items += [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Count."}]
    request = {"model": CLAUDE, "input": items, "stream": True}
    got = gateway.request("POST", "/v1/responses", request)
    events = validate_events(got.body)
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    response = validate_response(events[-1]["response"])
    assert (response.status, response.output[0].content[0].text) == ("completed", text)
    assert text.startswith("eins")
    assert text.endswith(" vier fünf")
    assert b": resumed" in got.body
    assert b"Hm." in fakes["B"].wait().body
    seen = fakes[letter].wait()
    assert seen.path == "/v1/chat/completions"
    assert b"Hm." not in seen.body
    assert seen.json["messages"][-1]["role"] == "assistant"


def interrupted(*texts: str, ends: Script = INTERRUPTION) -> Script:
    """Return an OpenAI stream that is interrupted after these texts."""
    return sse([openai_wire.role(), *(openai_wire.chunk({"content": text}) for text in texts)], end=ends)


def streamed(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    got = gateway.chat(stream=True, **fields)
    assert got.status == 200
    return complete_chunks(got.body, usage="stream_options" in fields)


@pytest.mark.parametrize(
    "breaks",
    [INTERRUPTION, end(), stall(), sse([openai_wire.event(openai_wire.error("down", "server_error"))])],
    ids=["reset", "clean end", "stall", "error event"],
)
def test_resume_interrupted_stream_continues_at_fallback(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, breaks: Script
) -> None:
    rest = Script(breaks.steps[1:]) if len(breaks.steps) > 2 else breaks
    provider_a.plays(interrupted("eins", " zwei", ends=rest))
    provider_b.plays(sse(anthropic_wire.stream(" drei vier")))
    got = resuming.chat(stream=True)
    chunks = complete_chunks(got.body)
    assert text_of(chunks) == "eins zwei drei vier"
    assert finish_of(chunks) == "stop"
    assert b": resumed" in got.body
    messages = provider_b.wait().json["messages"]
    assert [turn["role"] for turn in messages] == ["user", "assistant"]
    assert "eins zwei" in json.dumps(messages[-1])
    entry = json.loads(next(line for line in resuming.logged('"status"').splitlines() if '"status":' in line))
    assert (entry["status"], entry["attempts"], entry["provider"]) == ("ok", 2, "anthropic")


@pytest.mark.parametrize("continuation", [" drei", "drei"])
def test_resume_whitespace_at_boundary_is_not_repeated(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, continuation: str
) -> None:
    provider_a.plays(interrupted("eins", " zwei "))
    provider_b.plays(sse(anthropic_wire.stream(continuation)))
    assert text_of(streamed(resuming)) == "eins zwei drei"
    assert json.dumps(provider_b.wait().json["messages"][-1]).count("zwei ") == 0


def test_resume_interrupted_before_text_restarts_request(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(sse([openai_wire.role()], end=INTERRUPTION))
    assert text_of(streamed(resuming)) == anthropic_wire.TEXT
    assert [turn["role"] for turn in provider_b.wait().json["messages"]] == ["user"]


def test_resume_second_interruption_resumes_again(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(interrupted("eins"))
    provider_b.plays(sse(anthropic_wire.stream(" zwei")[:-3], end=INTERRUPTION))
    provider_c.plays(sse(openai_wire.stream(" drei")))
    assert text_of(streamed(resuming, stream_options={"include_usage": True})) == "eins zwei drei"
    assert provider_c.wait().json["messages"][-1]["content"] == "eins zwei"


def entry(gateway: Gateway) -> dict[str, Any]:
    """Wait for the access-log line of the single request and return it."""
    logged = gateway.logged('"status":')
    found: dict[str, Any] = json.loads(next(line for line in logged.splitlines() if '"status":' in line))
    return found


def test_resume_bills_tokens_of_all_attempts(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    """Anthropic reports prompt tokens at the start. All tokens of the interrupted OpenAI stream are estimated."""
    provider_a.plays(interrupted("eins", " zwei"))
    provider_b.plays(sse(anthropic_wire.stream(" drei")[:-3], end=INTERRUPTION))
    provider_c.plays(sse(openai_wire.stream(" vier")))
    streamed(resuming)
    line = entry(resuming)
    assert (line["status"], line["provider"], line["attempts"], line["resumed"]) == ("ok", "groq", 3, 2)
    assert line["estimated"] is True
    prompt_tokens = openai_wire.USAGE["prompt_tokens"]
    assert 2 * prompt_tokens + 10 < line["prompt_tokens"] < 2 * prompt_tokens + 40
    assert 7 + 2 + 1 <= line["completion_tokens"] < 7 + 10
    assert line["cost_usd"] > 0


def test_resume_failed_attempts_are_not_billed(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(interrupted("eins", " zwei"))
    provider_b.plays(answer(500, anthropic_wire.error("api_error")))
    provider_c.plays(reset())
    broken_stream(resuming.chat(stream=True).body)
    line = entry(resuming)
    assert (line["status"], line["provider"], line["attempts"], line["resumed"]) == ("cut", "openai", 3, 0)
    assert line["prompt_tokens"] < 30
    assert 2 <= line["completion_tokens"] < 10


def test_resume_all_targets_fail_ends_with_error(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(interrupted("eins"))
    provider_b.plays(answer(500, anthropic_wire.error("api_error")))
    provider_c.plays(reset())
    got = resuming.chat(stream=True)
    assert got.whole
    chunks, error = broken_stream(got.body)
    assert text_of(chunks) == "eins"
    assert error["code"] == "provider_error"


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_resume_target_that_rejects_is_skipped(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider, status: int
) -> None:
    provider_a.plays(interrupted("eins"))
    provider_b.plays(answer(status, anthropic_wire.error("invalid_request_error")))
    provider_c.plays(sse(openai_wire.stream(" zwei")))
    assert text_of(streamed(resuming)) == "eins zwei"


@pytest.mark.parametrize("status", [400, 404, 429])
def test_resume_failed_reports_error_of_interruption(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider, status: int
) -> None:
    provider_a.plays(interrupted("eins", " zwei"))
    provider_b.plays(answer(status, anthropic_wire.error()))
    provider_c.plays(answer(429, openai_wire.error()))
    chunks, error = broken_stream(resuming.chat(stream=True).body)
    assert text_of(chunks) == "eins zwei"
    assert error["code"] == "provider_error"
    assert "limit" not in error["message"]


def test_resume_is_not_used_during_tool_call(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    events = openai_wire.tool_stream([("call_1", "f", '{"a": 1}')])
    provider_a.plays(sse(events[:3], end=INTERRUPTION))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    _, error = broken_stream(resuming.chat(stream=True, tools=tools).body)
    assert error["code"] == "provider_error"
    assert not provider_b.requests


def test_resume_is_not_used_with_logprobs(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(interrupted("eins"))
    broken_stream(resuming.chat(stream=True, logprobs=True).body)
    assert not provider_b.requests


def test_resume_works_for_messages_client(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_b.plays(sse(anthropic_wire.stream("eins zwei")[:-3], end=INTERRUPTION))
    provider_a.plays(sse(openai_wire.stream(" drei")))
    with resuming.anthropic() as client, client.messages.stream(model=CLAUDE, messages=HI, max_tokens=50) as stream:
        message = stream.get_final_message()
    assert [block.text for block in message.content] == ["eins zwei drei"]
    assert message.stop_reason == "end_turn"


def test_resume_client_disconnect_closes_new_upstream(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(interrupted("eins"))
    provider_b.plays(stall())
    with resuming.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=resuming.key))
        provider_b.wait()
    left = time.monotonic()
    assert provider_b.wait().wait_left(2.0) < left + 0.1


def test_resume_abandoned_breaker_probe_frees_its_slot(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    """The target that resumes the stream is half-open, and the client disconnects before its first byte."""
    started = start_gateway(config=CONFIG.replace(f', "{LLAMA}"', ""))
    provider_b.always_plays(answer(500, anthropic_wire.error("api_error")))
    for _ in range(20):
        started.chat(CLAUDE)
    started.logged("closed -> open")
    time.sleep(2.1)
    provider_b.always_plays(None)
    provider_b.plays(stall())
    provider_a.plays(interrupted("eins"))
    with started.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=started.key))
        provider_b.wait(21)
    started.logged("client_closed")
    assert started.chat(CLAUDE).headers["x-svc-provider"] == "anthropic"


def test_resume_total_timeout_applies(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=CONFIG.replace("[gateway]", "[gateway]\ntotal_timeout = 1\nfirst_byte_timeout = 9"))
    provider_a.plays(interrupted("eins", ends=stall()))
    began = time.monotonic()
    broken_stream(started.chat(stream=True).body)
    assert time.monotonic() - began < 2.5


def test_resume_disabled_interruption_is_error(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=CONFIG.replace("resume = true", "resume = false"))
    provider_a.plays(interrupted("eins"))
    broken_stream(started.chat(stream=True).body)
    assert not provider_b.requests


@pytest.mark.slow
def test_min_pace_slow_stream_is_interrupted_with_error(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    """One token every 0.5 s does not trigger the idle timeout but is below the minimum pace."""
    started = start_gateway(config="[routing]\nmin_pace = 10\n")
    slow = [openai_wire.role(), *openai_wire.words(" ".join("abcdefghijklmnopqrstuvwxyz"))]
    provider_a.plays(sse(slow, every=0.5), sse(openai_wire.stream("a b c"), every=0.01))
    began = time.monotonic()
    chunks, error = broken_stream(started.chat(stream=True).body)
    assert 4.5 < time.monotonic() - began < 8
    assert "pace" in error["message"]
    assert text_of(chunks)
    assert text_of(streamed(started)) == "a b c"


def test_resume_response_beyond_size_limit_is_not_resumed(
    resuming: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(interrupted(*["x" * 10_000] * 7))
    chunks, error = broken_stream(resuming.chat(stream=True).body)
    assert (len(text_of(chunks)), error["code"]) == (70_000, "provider_error")
    assert not provider_b.requests
