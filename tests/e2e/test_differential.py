"""The same dialect on both sides: a client gets the same bytes through the gateway as from the provider itself.

Random valid conversations, as JSON and as streams. The provider derives its response from the seed in the request. It
gets each request twice, directly and through the gateway. The exceptions are those of docs/reference/providers.md.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.harness import KEY, Gateway, provider_environment
from tests.fakes.anthropic_wire import event
from tests.fakes.http_client import Got, RawClient
from tests.fakes.provider import FakeProvider, Recorded
from tests.fakes.script import Script, answer, sse

SEEDS = range(24)
PROVIDER_KEY = "sk-differential-secret"
CLAUDE, GPT = "claude-3-5-sonnet-20241022", "gpt-4o"
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27,files-api-2025-04-14"}
WORDS = [
    "Grüße",
    "日本語",
    "🦙 lama",
    'a "quoted" text',
    "tab\tand\nlines",
    "back\\slash",
    "\u2028",
    "</script>",
    "data: x",
    "0",
]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


class Chooser(random.Random):
    """Random choices of a conversation. Equal seeds give equal conversations."""

    def text(self) -> str:
        return " ".join(self.choices(WORDS, k=self.randint(1, 8)))

    def maybe(self, fields: dict[str, Any]) -> dict[str, Any]:
        return fields if self.random() < 0.5 else {}

    def encode(self, value: Any) -> bytes:
        """Encode JSON with one of several kinds of whitespace, with or without escapes."""
        separators = self.choice([(",", ":"), (", ", ": "), (" ,", " : ")])
        return json.dumps(value, separators=separators, ensure_ascii=self.random() < 0.5).encode()


# Anthropic


def anthropic_request(seed: int, *, stream: bool) -> bytes:
    choose = Chooser(seed)
    cache = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    messages: list[dict[str, Any]] = []
    for turn in range(choose.randint(1, 4)):
        messages.append({"role": "user", "content": [{"type": "text", "text": choose.text(), **choose.maybe(cache)}]})
        if choose.random() < 0.3:
            messages[-1]["content"] = choose.text()
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "read", "input": {"path": choose.text(), "n": 1e-7}}
        thought = {"type": "thinking", "thinking": choose.text(), "signature": "c2ln" * choose.randint(1, 300)}
        hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}
        parts = [*choose.sample([thought, hidden], choose.randint(0, 2)), {"type": "text", "text": choose.text()}, call]
        messages.append({"role": "assistant", "content": parts})
        result = choose.choice([choose.text(), [{"type": "text", "text": choose.text()}, IMAGE], []])
        failed = choose.maybe({"is_error": True})
        results = [{"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": result, **failed}]
        messages.append({"role": "user", "content": results})
    body = {
        "metadata": {"user_id": f"seed-{seed}"},
        "model": CLAUDE,
        "max_tokens": choose.randint(1, 64000),
        "messages": messages,
        **choose.maybe({"system": [{"type": "text", "text": choose.text(), **cache}, {"type": "text", "text": "2"}]}),
        **choose.maybe({"tools": [{"name": "read", "input_schema": {"type": "object", "x": 1.0}}, SERVER_TOOL]}),
        **choose.maybe({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        **choose.maybe({"context_management": {"edits": [{"type": "clear_tool_uses_20250919", "keep": None}]}}),
        **choose.maybe({"output_config": {"effort": "high"}}),
        **choose.maybe({"temperature": 1.0, "top_k": 5, "stop_sequences": ["\n\n", "ü"]}),
        **choose.maybe({"yet_unknown": {"model": "x", "stream": "y", "deep": [1.50, 1e400 if False else 10**30]}}),
    }
    if stream:
        body["stream"] = True
    items = list(body.items())
    choose.shuffle(items)
    return choose.encode(dict(items))


SERVER_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


def anthropic_blocks(choose: Chooser) -> list[dict[str, Any]]:
    found = {"type": "web_search_result", "url": "https://example.com", "title": choose.text(), "page_age": None}
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "text", "text": choose.text(), "citations": [{"cited_text": choose.text()}]},
        lambda: {"type": "thinking", "thinking": choose.text(), "signature": "c2ln" * choose.randint(0, 200)},
        lambda: {"type": "redacted_thinking", "data": "aGlkZGVu"},
        lambda: {"type": "tool_use", "id": "toolu_9", "name": "read", "input": {"path": choose.text()}, "caller": None},
        lambda: {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        lambda: {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
        lambda: {"type": "yet_unknown", "words": [choose.text()], "text": 7},
    ]
    return [choose.choice(kinds)() for _ in range(choose.randint(1, 5))]


def anthropic_usage(choose: Chooser) -> dict[str, Any]:
    return {
        "input_tokens": choose.randint(0, 9999),
        "cache_creation_input_tokens": choose.randint(0, 99),
        "cache_read_input_tokens": choose.choice([0, 17]),
        "output_tokens": choose.randint(1, 999),
        **choose.maybe({"server_tool_use": {"web_search_requests": 2}, "service_tier": "standard"}),
        **choose.maybe({"cache_creation": {"ephemeral_1h_input_tokens": 1}, "iterations": None}),
    }


def anthropic_message(choose: Chooser, content: list[dict[str, Any]]) -> dict[str, Any]:
    reasons = ["end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal", "yet_unknown"]
    head = {"id": f"msg_{choose.getrandbits(40):x}", "type": "message", "role": "assistant", "model": CLAUDE}
    tail = {"stop_reason": choose.choice(reasons), "stop_sequence": None, "usage": anthropic_usage(choose)}
    more = choose.maybe({"container": {"id": "c", "expires_at": "2030-01-01T00:00:00Z"}, "context_management": None})
    return {**head, "content": content, **tail, **more}


def anthropic_events(choose: Chooser) -> list[bytes]:
    whole = anthropic_message(choose, anthropic_blocks(choose))
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    events = [event("message_start", message=start)]
    for index, block in enumerate(whole["content"]):
        opening, deltas = dict(block), []
        if block["type"] in ("text", "thinking") and isinstance(
            block["text" if block["type"] == "text" else "thinking"], str
        ):
            name = block["type"]
            words, opening[name] = block[name], ""
            deltas = [{"type": f"{name}_delta", name: part} for part in split(choose, words)]
            if name == "thinking":
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] in ("tool_use", "server_tool_use"):
            opening["input"] = {}
            arguments = json.dumps(block["input"], ensure_ascii=choose.random() < 0.5)
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ["", *split(choose, arguments)]]
        if choose.random() < 0.2:
            deltas.append({"type": "yet_unknown_delta", "words": [choose.text()]})
        events.append(event("content_block_start", index=index, content_block=opening))
        events += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        events.append(event("content_block_stop", index=index))
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [event("message_delta", delta=ending, usage=whole["usage"]), event("message_stop")]
    for _ in range(choose.randint(0, 3)):
        extra = choose.choice([event("ping"), event("yet_unknown", index="a", usage=[1]), event("ping", cost=0.5)])
        events.insert(choose.randint(1, len(events) - 1), extra)
    return events


def split(choose: Chooser, words: str) -> Iterator[str]:
    while words:
        size = choose.randint(1, 12)
        yield words[:size]
        words = words[size:]


ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    402: "billing_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def anthropic_error(choose: Chooser) -> Script:
    status, kind = choose.choice(list(ANTHROPIC_ERRORS.items()))
    headers = {"request-id": "req_theirs", "anthropic-ratelimit-requests-remaining": "0", "x-other": "y"}
    if status in (429, 529):
        headers["retry-after"] = str(choose.randint(3, 90))
    body = {"type": "error", "error": {"type": kind, "message": f"Odd: {choose.text()}."}, "request_id": "req_theirs"}
    return answer(status, choose.encode(body), headers=headers)


# OpenAI


def openai_request(seed: int, *, stream: bool) -> bytes:
    choose = Chooser(seed)
    messages: list[dict[str, Any]] = [{"role": choose.choice(["system", "developer"]), "content": choose.text()}]
    for turn in range(choose.randint(1, 4)):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
        parts = [{"type": "text", "text": choose.text()}, *choose.sample([image], choose.randint(0, 1))]
        messages.append(
            {"role": "user", "content": choose.choice([choose.text(), parts]), **choose.maybe({"name": "n"})}
        )
        calls = [
            {"id": f"call_{turn}{n}", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u00fc"}'}}
            for n in range(choose.randint(1, 3))
        ]
        messages.append({"role": "assistant", "content": choose.choice([None, choose.text()]), "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": choose.text()} for call in calls]
    body = {
        "model": GPT,
        "user": f"seed-{seed}",
        "messages": messages,
        **choose.maybe({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "x": 1.0}}]}),
        **choose.maybe({"temperature": 1.0, "top_p": 0.1, "logprobs": True, "top_logprobs": 2}),
        **choose.maybe({"max_completion_tokens": 99, "reasoning_effort": "low", "service_tier": "flex"}),
        **choose.maybe({"yet_unknown": {"model": "x", "stream": "y", "deep": [1.50, 10**30]}}),
        **choose.maybe({"prediction": {"type": "content", "content": choose.text()}, "store": True}),
    }
    if stream:
        body["stream"] = True
        body |= choose.maybe({"stream_options": {"include_usage": True}})
    items = list(body.items())
    choose.shuffle(items)
    return choose.encode(dict(items))


def openai_usage(choose: Chooser) -> dict[str, Any]:
    prompt, completion = choose.randint(1, 999), choose.randint(1, 999)
    details = {"completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0}}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": {"cached_tokens": 1}, **choose.maybe(details)}


def openai_calls(choose: Chooser) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "f", "arguments": json.dumps({"a": choose.text()})},
        }
        for n in range(choose.randint(0, 3))
    ]


def openai_completion(choose: Chooser) -> dict[str, Any]:
    calls = openai_calls(choose)
    message = {"role": "assistant", "content": choose.choice([None, choose.text()]) if calls else choose.text()}
    message |= {"refusal": None, **choose.maybe({"annotations": []}), **({"tool_calls": calls} if calls else {})}
    finish = "tool_calls" if calls else choose.choice(["stop", "length", "content_filter"])
    return {
        "id": f"chatcmpl-{choose.getrandbits(40):x}",
        "object": "chat.completion",
        "created": choose.randint(10**9, 2 * 10**9),
        "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": openai_usage(choose),
        **choose.maybe({"system_fingerprint": "fp_1", "service_tier": "default", "yet_unknown": [1.50]}),
    }


def openai_events(choose: Chooser, *, usage: bool) -> list[bytes]:
    whole = openai_completion(choose)
    message, choice = whole["choices"][0]["message"], whole["choices"][0]
    separators, escaped = choose.choice([(",", ":"), (", ", ": ")]), choose.random() < 0.5
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "" if message["content"] else None, "refusal": None}
    ]
    deltas += [{"content": part} for part in split(choose, message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls", [])):
        deltas.append({"tool_calls": [{**call, "index": index, "function": {"name": "f", "arguments": ""}}]})
        for part in split(choose, call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    head = {**{name: value for name, value in whole.items() if name != "usage"}, "object": "chat.completion.chunk"}
    seen, padded = {"usage": None} if usage else {}, choose.random() < 0.5
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], **seen}
        for delta in deltas
    ]
    chunks.append({**head, "choices": [{**choice_end(choice["finish_reason"])}], **seen})
    if usage:
        chunks.append({**head, "choices": [], "usage": whole["usage"]})
    if padded:
        chunks = [{**chunk, "obfuscation": "x" * choose.randint(1, 20)} for chunk in chunks]
    lines = [json.dumps(chunk, separators=separators, ensure_ascii=escaped) for chunk in chunks]
    return [f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"]]


def choice_end(reason: str) -> dict[str, Any]:
    return {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}


# the provider


class SeededWire:
    """Responds by the seed in the request. `errors` makes every response an error."""

    def __init__(self) -> None:
        self.errors = False

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        return None

    def usual(self, seen: Recorded) -> Script:
        request = seen.json
        is_anthropic = seen.path.split("?")[0] == "/v1/messages"
        user = request["metadata"]["user_id"] if is_anthropic else request["user"]
        choose = Chooser(int(user.removeprefix("seed-")) + 1_000_000)
        if self.errors:
            return anthropic_error(choose)
        if not request.get("stream"):
            message = anthropic_message(choose, anthropic_blocks(choose)) if is_anthropic else openai_completion(choose)
            return answer(200, choose.encode(message))
        if is_anthropic:
            events = anthropic_events(choose)
        else:
            events = openai_events(choose, usage=bool((request.get("stream_options") or {}).get("include_usage")))
        size = sum(map(len, events))
        cuts = choose.choice([None, None, [choose.randint(1, size) for _ in range(8)], choose.randint(20, 400)])
        return sse(events, split_at=cuts)


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(SeededWire(), key=PROVIDER_KEY) as fake:
        yield fake


@pytest.fixture(scope="module")
def relay(provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    config = "[routing]\nretries = 0\nbreaker = false\n"
    env = provider_environment({"A": provider, "B": provider})
    gateway = Gateway(tmp_path_factory.mktemp("relay"), env=env, config=config, is_forked=True).start()
    yield gateway
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log


Pair = tuple[tuple[Got, Recorded], tuple[Got, Recorded]]


def ask_both(provider: FakeProvider, relay: Gateway, path: str, body: bytes) -> Pair:
    """Send a request to the provider, and through the gateway. Return each response with the request that arrived."""
    provider.requests.clear()
    answers = []
    for port, key in ((provider.port, PROVIDER_KEY), (relay.port, KEY)):
        with RawClient(port) as client:
            got = client.request("POST", path, body, key=key, headers=HEADERS)
            assert got.whole
            answers.append((got, provider.requests[-1]))
    return answers[0], answers[1]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_anthropic_conversation_is_equal_through_gateway(provider: FakeProvider, relay: Gateway, stream: bool) -> None:
    for seed in SEEDS:
        body = anthropic_request(seed, stream=stream)
        (direct, asked), (relayed, forwarded) = ask_both(provider, relay, "/v1/messages?beta=true", body)
        assert forwarded.body == asked.body == body, seed
        assert forwarded.path == asked.path
        assert HEADERS.items() <= forwarded.headers.items()
        assert (relayed.status, relayed.body) == (direct.status, direct.body), seed
        assert relayed.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_anthropic_error_is_equal_through_gateway(provider: FakeProvider, relay: Gateway, stream: bool) -> None:
    wire = provider.wire
    assert isinstance(wire, SeededWire)
    wire.errors = True
    try:
        for seed in SEEDS:
            body = anthropic_request(seed, stream=stream)
            (direct, _), (relayed, _) = ask_both(provider, relay, "/v1/messages", body)
            expected = {**direct.json, "request_id": relayed.headers["request-id"]}
            assert (relayed.status, relayed.json) == (direct.status, expected), seed
            assert relayed.headers["request-id"] != "req_theirs"
            for name in ("retry-after", "anthropic-ratelimit-requests-remaining"):
                assert relayed.headers.get(name) == direct.headers.get(name)
    finally:
        wire.errors = False


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_openai_conversation_is_equal_through_gateway(provider: FakeProvider, relay: Gateway, stream: bool) -> None:
    for seed in SEEDS:
        body = openai_request(seed, stream=stream)
        (direct, asked), (relayed, forwarded) = ask_both(provider, relay, "/v1/chat/completions", body)
        if stream and b"include_usage" not in body:  # the gateway asks for the usage, and hides it from the client
            assert forwarded.json == {**asked.json, "stream_options": {"include_usage": True}}, seed
            assert without_usage(relayed.body) == direct.body, seed
        else:
            assert forwarded.body == asked.body == body, seed
            assert relayed.body == direct.body, seed
        assert relayed.status == direct.status
        assert relayed.headers["content-type"] == direct.headers["content-type"]


def without_usage(body: bytes) -> bytes:
    """Remove `"usage": null`, which OpenAI sends only if the client asks for the usage."""
    return re.sub(rb', ?"usage": ?null', b"", body)
