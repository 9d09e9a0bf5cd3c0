"""Streams of OpenAI upstreams to OpenAI clients: handed on, put right, never more complete than they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import create_stream_passthrough

from svc.dialects.openai import dialect
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InvalidRequest, ProviderFailed, RateLimited

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, index: Any = 0, **fields: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    frame = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice], **fields}
    return b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n"


FIRST = chunk({"role": "assistant", "content": ""})
WORDS = b"".join(chunk({"content": f" word {number}"}) for number in range(5))
LAST = chunk({}, "stop")


def run(stream: bytes, *, usage: bool = False) -> tuple[StreamTransform, bytes]:
    pipe = create_stream_passthrough(dialect, include_usage=usage)
    out = pipe.feed(stream)
    return pipe, out + pipe.end()


def chunks(out: bytes) -> list[Any]:
    events = [event.removeprefix(b"data: ") for event in out.split(b"\n\n") if event]
    return [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]


def deltas(out: bytes) -> list[dict[str, Any]]:
    return [made["choices"][0]["delta"] for made in chunks(out) if isinstance(made, dict) and made.get("choices")]


def test_a_right_stream_goes_through_as_it_is() -> None:
    stream = FIRST + WORDS + LAST + DONE
    pipe = create_stream_passthrough(dialect, include_usage=False)
    assert pipe.feed(stream) is stream
    assert (pipe.has_started, pipe.has_ended, pipe.finish_reason, pipe.error, pipe.model) == (
        True,
        True,
        "stop",
        None,
        "m",
    )
    assert pipe.end() == b""


def test_a_block_that_the_template_fits_is_the_same_object() -> None:
    pipe = create_stream_passthrough(dialect, include_usage=False)
    pipe.feed(FIRST + WORDS)
    for text in (" plain", 'a \\"quote\\" \\n', " grüße 你好"):
        block = WORDS.replace(b" word 3", text.encode())
        assert pipe.feed(block) is block


@pytest.mark.parametrize("text", [b"a\xffb", b"a\\xb", b"a\x01b", b"a\x00b", b"a\\"])
def test_the_template_lets_nothing_else_through(text: bytes) -> None:
    pipe = create_stream_passthrough(dialect, include_usage=False)
    pipe.feed(FIRST + WORDS)
    out = pipe.feed(WORDS.replace(b" word 3", text))
    assert isinstance(pipe.error, ProviderFailed)
    assert chunks(out)[-1]["error"]["code"] == "provider_error"


def test_usage_is_shown_only_when_asked_for() -> None:
    last = chunk({}, "stop", usage=USAGE)
    pipe, out = run(FIRST + last + DONE)
    assert b"usage" not in out
    assert pipe.usage is not None
    assert pipe.usage.prompt_tokens == 3
    _, out = run(FIRST + last + DONE, usage=True)
    made = chunks(out)
    assert [one["usage"] for one in made[:-1]] == [None, None, USAGE]
    assert made[-2]["choices"] == []
    assert made[-1] == "[DONE]"


def test_a_usage_chunk_of_the_upstream() -> None:
    frame = json.loads(FIRST[6:]) | {"choices": [], "usage": USAGE}
    stream = FIRST + LAST + b"data: " + json.dumps(frame).encode() + b"\n\n" + DONE
    assert run(stream)[1] == FIRST + LAST + DONE
    assert sum(1 for made in chunks(run(stream, usage=True)[1]) if made != "[DONE]" and made["usage"]) == 1


def test_vendor_usage_is_found() -> None:
    pipe, out = run(
        FIRST + chunk({}, "stop", x_groq={"id": "r", "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    )
    assert pipe.usage is not None
    assert pipe.usage.completion_tokens == 2
    assert b'"usage"' not in out


def test_role_once_and_one_id() -> None:
    stream = b"".join(
        chunk({"role": "assistant", "content": "x"}, id=f"c{number}", created=number) for number in range(1, 9)
    )
    made = chunks(run(stream + LAST)[1])[:-1]
    assert [one["choices"][0]["delta"].get("role") for one in made] == ["assistant"] + [None] * 8
    assert {(one["id"], one["created"]) for one in made} == {("c1", 1)}


def test_tools_once_with_an_index() -> None:
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
    pieces = [piece for delta in deltas(run(stream)[1]) for piece in delta.get("tool_calls", [])]
    assert [(piece["index"], piece.get("id"), piece["function"].get("name")) for piece in pieces] == [
        (0, "a", "f"),
        (0, None, None),
        (0, None, None),
        (1, "b", "g"),
    ]
    assert "".join(piece["function"]["arguments"] for piece in pieces[:3]) == '{"x":1}'
    assert pieces[3]["function"]["arguments"] == '{"y":2}'


def test_two_calls_under_one_index() -> None:
    stream = FIRST
    for name in ("a", "b"):
        stream += chunk({"tool_calls": [{"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}}]})
    pieces = [delta["tool_calls"][0] for delta in deltas(run(stream + LAST)[1]) if "tool_calls" in delta]
    assert [(piece["index"], piece["id"]) for piece in pieces] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("end_turn", "stop"), ("model_length", "length"), ("tool_use", "tool_calls"), ("length", "length")],
)
def test_finish_reasons(reason: str, shown: str) -> None:
    pipe, out = run(FIRST + chunk({}, reason) + DONE)
    assert pipe.finish_reason == shown
    assert chunks(out)[1]["choices"][0]["finish_reason"] == shown


def test_finish_without_an_end_mark_is_complete() -> None:
    pipe, out = run(FIRST + WORDS + LAST)
    assert out == FIRST + WORDS + LAST + DONE
    assert pipe.has_ended
    assert run(FIRST + LAST + b"data: [DONE]")[1].endswith(DONE)
    assert run(FIRST + LAST + b'data: {"id":')[1] == FIRST + LAST + DONE


@pytest.mark.parametrize("tail", [b"", DONE, b'data: {"id":"c1","obj', b"data: garbage\n\n", chunk({}, "error")])
def test_without_finish_it_never_looks_complete(tail: bytes) -> None:
    pipe, out = run(FIRST + WORDS + tail)
    assert b"[DONE]" not in out
    assert chunks(out)[-1]["error"]["code"] == "provider_error"
    assert pipe.has_ended
    assert isinstance(pipe.error, ProviderFailed)


def test_an_error_in_mid_stream() -> None:
    error = b'data: {"error":{"message":"Overloaded at http://10.0.0.5:80/x","type":"overloaded"}}\n\n'
    pipe, out = run(FIRST + error + LAST + DONE)
    assert chunks(out)[1]["error"]["message"] == "The provider failed: Overloaded at […]"
    assert len(chunks(out)) == 2
    assert pipe.fail(ProviderFailed("again")) == b""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "type": "rate_limit_error"}, RateLimited),
        ({"message": "too long", "code": "context_length_exceeded"}, InvalidRequest),
        ({"message": "boom"}, ProviderFailed),
        ("boom", ProviderFailed),
    ],
)
def test_before_the_start_it_is_raised(error: Any, kind: type[Exception]) -> None:
    pipe = create_stream_passthrough(dialect, include_usage=False)
    with pytest.raises(kind):
        pipe.feed(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert not pipe.has_started


@pytest.mark.parametrize(
    "first", [b"data: <html>\n\n", b"data: [1]\n\n", DONE, b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]
)
def test_a_bad_first_event_is_raised(first: bytes) -> None:
    with pytest.raises(ProviderFailed):
        create_stream_passthrough(dialect, include_usage=False).feed(first)


def test_the_end_before_the_start_says_what_came() -> None:
    pipe, _ = run(b'{"error":{"message":"no such thing"}}')
    assert not pipe.has_started
    assert pipe.error is not None
    assert "no such thing" in pipe.error.message


def test_what_breaks_clients_is_left_out() -> None:
    noise = b": hello\n\nretry: 100\n\nid: 5\n\nevent: ping\ndata: {}\n\nevent: x\n\n"
    stream = noise + b"id: 7\nevent: message\n" + FIRST + noise + LAST.replace(b"\n", b"\r\n") + DONE
    assert run(stream)[1] == FIRST + LAST + DONE


def test_several_choices() -> None:
    both = b"".join(chunk({"role": "assistant", "content": "x"}, index=index) for index in (0, 1))
    assert b"error" in run(both + chunk({}, "stop", index=0) + DONE)[1]
    whole = both + chunk({}, "stop", index=0) + chunk({}, "length", index=1) + DONE
    assert run(whole)[1] == whole


def test_content_after_the_end_of_a_choice_is_ignored() -> None:
    assert run(FIRST + LAST + WORDS + LAST + DONE)[1] == FIRST + LAST + DONE


def test_random_padding_does_not_keep_a_run_from_going_through() -> None:
    pipe = create_stream_passthrough(dialect, include_usage=False)
    pipe.feed(FIRST + chunk({"content": "a"}, obfuscation="x1"))
    block = b"".join(chunk({"content": f" {number}"}, obfuscation="k" * number) for number in range(9))
    assert pipe.feed(block) is block
    assert b"error" in pipe.feed(block.replace(b'"kkk"', b'"k"k"'))


def test_an_endless_event_is_a_failure() -> None:
    pipe = create_stream_passthrough(dialect, include_usage=False)
    pipe.feed(FIRST)
    out = b""
    while not out:
        out = pipe.feed(b"data: " + b"x" * 1_000_000)
    assert "too long" in chunks(out)[0]["error"]["message"]
