"""Streams of OpenAI upstreams to OpenAI clients: passed through or repaired. A truncated stream is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import create_stream_passthrough, create_stream_transform

from svc.dialects import anthropic
from svc.dialects.openai import dialect
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InvalidRequest, ProviderFailed, RateLimited
from svc.wire.sse import MAX_EVENT_BYTES

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, index: Any = 0, **fields: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice], **fields}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


FIRST = chunk({"role": "assistant", "content": ""})
WORDS = b"".join(chunk({"content": f" word {number}"}) for number in range(5))
LAST = chunk({}, "stop")


def run(stream: bytes, *, usage: bool = False) -> tuple[StreamTransform, bytes]:
    transform = create_stream_passthrough(dialect, include_usage=usage)
    out = transform.feed(stream)
    return transform, out + transform.end()


def chunks(out: bytes) -> list[Any]:
    events = [event.removeprefix(b"data: ") for event in out.split(b"\n\n") if event]
    return [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]


def deltas(out: bytes) -> list[dict[str, Any]]:
    return [made["choices"][0]["delta"] for made in chunks(out) if isinstance(made, dict) and made.get("choices")]


def test_passthrough_valid_stream_returns_same_object() -> None:
    stream = FIRST + WORDS + LAST + DONE
    transform = create_stream_passthrough(dialect, include_usage=False)
    assert transform.feed(stream) is stream
    assert (transform.has_started, transform.has_ended, transform.finish_reason, transform.error, transform.model) == (
        True,
        True,
        "stop",
        None,
        "m",
    )
    assert transform.end() == b""


def test_passthrough_chunks_matching_template_return_same_object() -> None:
    transform = create_stream_passthrough(dialect, include_usage=False)
    transform.feed(FIRST + WORDS)
    for text in (" plain", 'a \\"quote\\" \\n', " grüße 你好"):
        block = WORDS.replace(b" word 3", text.encode())
        assert transform.feed(block) is block


@pytest.mark.parametrize("text", [b"a\xffb", b"a\\xb", b"a\x01b", b"a\x00b", b"a\\"])
def test_passthrough_invalid_text_in_template_chunk_is_an_error(text: bytes) -> None:
    transform = create_stream_passthrough(dialect, include_usage=False)
    transform.feed(FIRST + WORDS)
    out = transform.feed(WORDS.replace(b" word 3", text))
    assert isinstance(transform.error, ProviderFailed)
    assert chunks(out)[-1]["error"]["code"] == "provider_error"


def test_passthrough_usage_is_sent_only_when_requested() -> None:
    last = chunk({}, "stop", usage=USAGE)
    transform, out = run(FIRST + last + DONE)
    assert b"usage" not in out
    assert transform.usage is not None
    assert transform.usage.prompt_tokens == 3
    _, out = run(FIRST + last + DONE, usage=True)
    made = chunks(out)
    assert [one["usage"] for one in made[:-1]] == [None, None, USAGE]
    assert made[-2]["choices"] == []
    assert made[-1] == "[DONE]"


def test_passthrough_upstream_usage_chunk_is_sent_only_when_requested() -> None:
    body = json.loads(FIRST[6:]) | {"choices": [], "usage": USAGE}
    stream = FIRST + LAST + b"data: " + json.dumps(body).encode() + b"\n\n" + DONE
    assert run(stream)[1] == FIRST + LAST + DONE
    assert sum(1 for made in chunks(run(stream, usage=True)[1]) if made != "[DONE]" and made["usage"]) == 1


def test_passthrough_vendor_usage_is_read() -> None:
    transform, out = run(
        FIRST + chunk({}, "stop", x_groq={"id": "r", "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    )
    assert transform.usage is not None
    assert transform.usage.completion_tokens == 2
    assert b'"usage"' not in out


def test_passthrough_repeated_role_and_changing_ids_are_normalized() -> None:
    stream = b"".join(
        chunk({"role": "assistant", "content": "x"}, id=f"c{number}", created=number) for number in range(1, 9)
    )
    made = chunks(run(stream + LAST)[1])[:-1]
    assert [one["choices"][0]["delta"].get("role") for one in made] == ["assistant"] + [None] * 8
    assert {(one["id"], one["created"]) for one in made} == {("c1", 1)}


def test_passthrough_tool_calls_get_index_and_no_repeated_fields() -> None:
    def call(**fields: Any) -> bytes:
        return chunk({"tool_calls": [{"type": "function", **fields}]})

    stream = (
        FIRST
        + call(id="a", function={"name": "f", "arguments": "{"})
        + call(id="a", function={"name": "f", "arguments": '"x":'})
        + call(function={"arguments": "1}"})
        + call(id="b", function={"name": "g", "arguments": {"y": 2}})
        + chunk({}, "tool_calls")
    )
    tool_calls = [tool_call for delta in deltas(run(stream)[1]) for tool_call in delta.get("tool_calls", [])]
    assert [
        (tool_call["index"], tool_call.get("id"), tool_call["function"].get("name")) for tool_call in tool_calls
    ] == [
        (0, "a", "f"),
        (0, None, None),
        (0, None, None),
        (1, "b", "g"),
    ]
    assert "".join(tool_call["function"]["arguments"] for tool_call in tool_calls[:3]) == '{"x":1}'
    assert tool_calls[3]["function"]["arguments"] == '{"y":2}'


def test_passthrough_two_calls_with_one_index_get_distinct_indexes() -> None:
    stream = FIRST
    for name in ("a", "b"):
        stream += chunk({"tool_calls": [{"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}}]})
    tool_calls = [delta["tool_calls"][0] for delta in deltas(run(stream + LAST)[1]) if "tool_calls" in delta]
    assert [(tool_call["index"], tool_call["id"]) for tool_call in tool_calls] == [(0, "a"), (1, "b")]


def test_passthrough_rest_of_a_call_with_a_used_index_goes_to_that_call() -> None:
    stream = FIRST
    for name in ("a", "b"):
        stream += chunk({"tool_calls": [{"index": 0, "id": name, "function": {"name": name, "arguments": "{"}}]})
        for _ in range(3):
            stream += chunk({"tool_calls": [{"index": 0, "function": {"arguments": f'"{name}":1,'}}]})
    arguments = {0: "", 1: ""}
    for delta in deltas(run(stream + LAST)[1]):
        for tool_call in delta.get("tool_calls", []):
            arguments[tool_call["index"]] += tool_call["function"]["arguments"]
    assert arguments == {0: '{"a":1,"a":1,"a":1,', 1: '{"b":1,"b":1,"b":1,'}


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("end_turn", "stop"), ("model_length", "length"), ("tool_use", "tool_calls"), ("length", "length")],
)
def test_passthrough_finish_reason_is_normalized(reason: str, shown: str) -> None:
    transform, out = run(FIRST + chunk({}, reason) + DONE)
    assert transform.finish_reason == shown
    assert chunks(out)[1]["choices"][0]["finish_reason"] == shown


@pytest.mark.parametrize("reason", [5, True, ["stop"], {"type": "stop"}], ids=str)
def test_stream_finish_reason_that_is_no_string_is_stop(reason: Any) -> None:
    stream = FIRST + WORDS + chunk({}, reason) + DONE
    for client in (dialect, anthropic.dialect):
        transform = create_stream_transform(dialect, client, include_usage=False)
        transform.feed(stream)
        assert (transform.has_ended, transform.finish_reason, transform.error) == (True, "stop", None)


@pytest.mark.parametrize("content_type", [b"Text/Event-Stream", b"TEXT/EVENT-STREAM; Charset=UTF-8", b""])
def test_stream_media_type_ignores_case(content_type: bytes) -> None:
    assert create_stream_passthrough(dialect, include_usage=False).accept_head(content_type)


def test_passthrough_finish_without_done_marker_is_complete() -> None:
    transform, out = run(FIRST + WORDS + LAST)
    assert out == FIRST + WORDS + LAST + DONE
    assert transform.has_ended
    assert run(FIRST + LAST + b"data: [DONE]")[1].endswith(DONE)
    assert run(FIRST + LAST + b'data: {"id":')[1] == FIRST + LAST + DONE


@pytest.mark.parametrize("tail", [b"", DONE, b'data: {"id":"c1","obj', b"data: garbage\n\n", chunk({}, "error")])
def test_passthrough_stream_without_finish_reason_is_an_error(tail: bytes) -> None:
    transform, out = run(FIRST + WORDS + tail)
    assert b"[DONE]" not in out
    assert chunks(out)[-1]["error"]["code"] == "provider_error"
    assert transform.has_ended
    assert isinstance(transform.error, ProviderFailed)


def test_passthrough_error_in_mid_stream_ends_stream_with_error() -> None:
    error = b'data: {"error":{"message":"Overloaded at http://10.0.0.5:80/x","type":"overloaded"}}\n\n'
    transform, out = run(FIRST + error + LAST + DONE)
    assert chunks(out)[1]["error"]["message"] == "The provider failed: Overloaded at […]"
    assert len(chunks(out)) == 2
    assert transform.fail(ProviderFailed("again")) == b""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "type": "rate_limit_error"}, RateLimited),
        ({"message": "too long", "code": "context_length_exceeded"}, InvalidRequest),
        ({"message": "boom"}, ProviderFailed),
        ("boom", ProviderFailed),
    ],
)
def test_passthrough_error_before_first_chunk_is_raised(error: Any, kind: type[Exception]) -> None:
    transform = create_stream_passthrough(dialect, include_usage=False)
    with pytest.raises(kind):
        transform.feed(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert not transform.has_started


@pytest.mark.parametrize(
    "first", [b"data: <html>\n\n", b"data: [1]\n\n", DONE, b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]
)
def test_passthrough_malformed_first_event_raises_provider_failed(first: bytes) -> None:
    with pytest.raises(ProviderFailed):
        create_stream_passthrough(dialect, include_usage=False).feed(first)


def test_passthrough_end_before_first_chunk_reports_upstream_message() -> None:
    transform, _ = run(b'{"error":{"message":"no such thing"}}')
    assert not transform.has_started
    assert transform.error is not None
    assert "no such thing" in transform.error.message


def test_passthrough_comments_and_unknown_events_are_dropped() -> None:
    noise = b": hello\n\nretry: 100\n\nid: 5\n\nevent: ping\ndata: {}\n\nevent: x\n\n"
    stream = noise + b"id: 7\nevent: message\n" + FIRST + noise + LAST.replace(b"\n", b"\r\n") + DONE
    assert run(stream)[1] == FIRST + LAST + DONE


def test_passthrough_several_choices_complete_only_when_all_finish() -> None:
    both = b"".join(chunk({"role": "assistant", "content": "x"}, index=index) for index in (0, 1))
    assert b"error" in run(both + chunk({}, "stop", index=0) + DONE)[1]
    whole = both + chunk({}, "stop", index=0) + chunk({}, "length", index=1) + DONE
    assert run(whole)[1] == whole


def test_passthrough_content_after_finish_is_dropped() -> None:
    assert run(FIRST + LAST + WORDS + LAST + DONE)[1] == FIRST + LAST + DONE


def test_passthrough_chunks_with_obfuscation_return_same_object() -> None:
    transform = create_stream_passthrough(dialect, include_usage=False)
    transform.feed(FIRST + chunk({"content": "a"}, obfuscation="x1"))
    block = b"".join(chunk({"content": f" {number}"}, obfuscation="k" * number) for number in range(9))
    assert transform.feed(block) is block
    assert b"error" in transform.feed(block.replace(b'"kkk"', b'"k"k"'))


def test_passthrough_mapped_error_is_sent_before_and_after_the_start() -> None:
    error = b'data: {"error": {"message": "secret"}}\n\n'
    transform = create_stream_passthrough(dialect, include_usage=False)
    transform.map_error = lambda error: ProviderFailed("mapped", reason=error.message)
    out = transform.feed(FIRST + WORDS) + transform.feed(error)
    assert chunks(out)[-1]["error"]["message"] == "mapped"
    assert isinstance(transform.error, ProviderFailed)
    assert transform.error.reason == "The provider failed: secret"
    transform = create_stream_passthrough(dialect, include_usage=False)
    transform.map_error = lambda error: ProviderFailed("mapped")
    with pytest.raises(ProviderFailed, match="mapped"):
        transform.feed(error)


def test_passthrough_event_above_size_limit_is_an_error() -> None:
    transform = create_stream_passthrough(dialect, include_usage=False)
    transform.feed(FIRST)
    out = b""
    while not out:
        out = transform.feed(b"data: " + b"x" * 1_000_000)
    assert "too long" in chunks(out)[0]["error"]["message"]


def test_passthrough_events_before_one_above_size_limit_are_sent_even_if_one_read_has_both() -> None:
    """Otherwise the size of a read would decide between a failed stream and one that another backend repeats."""
    transform = create_stream_passthrough(dialect, include_usage=False)
    out = transform.feed(FIRST + WORDS + b"data: " + b"x" * MAX_EVENT_BYTES)
    assert out.startswith(FIRST + WORDS)
    assert transform.has_started
    assert "too long" in chunks(out)[-1]["error"]["message"]
    assert transform.feed(b"\n\n") + transform.end() == b""


def test_passthrough_first_event_above_size_limit_raises() -> None:
    transform = create_stream_passthrough(dialect, include_usage=False)
    with pytest.raises(ProviderFailed, match="too long"):
        transform.feed(b": comment\n\ndata: " + b"x" * MAX_EVENT_BYTES)
