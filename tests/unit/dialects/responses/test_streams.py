"""Streams for Responses clients: order, numbers, ends, and the same output as a complete response."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from tests.codecs import create_responses_stream, encode_responses_request, responses_codec
from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.openresponses import read_events, validate_events

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect, ModelProfile
from svc.dialects.responses.native_schema import NativeEvent
from svc.dialects.responses.response_passthrough import pass_through_response
from svc.dialects.responses.stream_encoder import MAX_STREAMED_CHARS
from svc.dialects.responses.streamed_output import ITEM_OVERHEAD_BYTES, MAX_COLLECTED_BYTES, StreamedOutput
from svc.errors import ProviderFailed, RateLimited
from svc.wire.usage import TokenUsage

PROFILE = ModelProfile("m")


def client_request(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "Hi", "stream": True, **fields}).encode()


def stream(upstream: Dialect | None, events: list[bytes], **fields: Any) -> list[dict[str, Any]]:
    transform = create_responses_stream(upstream, client_request(**fields))
    return read_events(transform.feed(b"".join(events)) + transform.end())


def items_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the output of the last event, which has to be that of the events before."""
    output = events[-1]["response"]["output"]
    done = sorted(
        (event for event in events if event["type"] == "response.output_item.done"), key=lambda one: one["output_index"]
    )
    assert [event["item"] for event in done] == output
    return list(output)


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


BLOCKS = [
    anthropic_wire.thinking("Let me see."),
    anthropic_wire.redacted(),
    anthropic_wire.text("I look."),
    anthropic_wire.tool_use("toolu_1", "now", "{}"),
    anthropic_wire.text("And then."),
    anthropic_wire.tool_use("toolu_2", "weather", "{}"),
]
ENCRYPTED = {"include": ["reasoning.encrypted_content"]}


@pytest.mark.parametrize("fields", [{}, ENCRYPTED], ids=["", "encrypted"])
def test_stream_of_anthropic_has_items_of_complete_response(fields: dict[str, Any]) -> None:
    events = stream(anthropic.dialect, anthropic_wire.stream(BLOCKS, stop="tool_use"), **fields)
    raw = json.dumps(anthropic_wire.message(BLOCKS, stop="tool_use")).encode()
    whole = json.loads(responses_codec(anthropic.dialect, client_request(**fields), PROFILE).decode_response(raw).body)
    items = items_of(events)
    assert without_ids(items) == without_ids(whole["output"])
    reasoning = [item for item in items if item["type"] == "reasoning"]
    assert [("encrypted_content" in item) for item in reasoning] == ([True, True] if fields else [False])
    assert len({item["id"] for item in items}) == len(items)
    assert events[-1]["response"]["usage"] == whole["usage"]


def test_stream_of_parallel_calls_interleaved_keeps_arguments_apart() -> None:
    chunks = [
        openai_wire.role(),
        openai_wire.tool_chunk(0, "call_0", "weather"),
        openai_wire.tool_chunk(1, "call_1", "now"),
        openai_wire.tool_chunk(0, arguments='{"city":'),
        openai_wire.tool_chunk(1, arguments="{"),
        openai_wire.tool_chunk(0, arguments='"Graz"}'),
        openai_wire.tool_chunk(1, arguments="}"),
        openai_wire.chunk({}, "tool_calls"),
        openai_wire.DONE,
    ]
    items = items_of(stream(openai.dialect, chunks))
    assert [(item["call_id"], item["arguments"]) for item in items] == [("call_0", '{"city":"Graz"}'), ("call_1", "{}")]


def test_call_without_arguments_has_an_empty_object() -> None:
    """Clients parse the arguments of a call."""
    chunks = [
        openai_wire.role(),
        openai_wire.tool_chunk(0, "call_0", "now"),
        openai_wire.chunk({}, "tool_calls"),
        openai_wire.DONE,
    ]
    events = stream(openai.dialect, chunks)
    assert [item["arguments"] for item in items_of(events)] == ["{}"]
    texts = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert texts == ["{}"]
    raw = json.dumps(openai_wire.chat(None, tools=[("call_0", "now", "")])).encode()
    whole = responses_codec(openai.dialect, client_request(), PROFILE).decode_response(raw)
    assert [item["arguments"] for item in json.loads(whole.body)["output"]] == ["{}"]


def test_stream_text_and_refusal_are_parts_of_one_message() -> None:
    chunks = [
        openai_wire.role(),
        openai_wire.chunk({"content": "Well."}),
        openai_wire.chunk({"refusal": "No."}),
        openai_wire.chunk({}, "stop"),
        openai_wire.DONE,
    ]
    events = stream(openai.dialect, chunks)
    (item,) = items_of(events)
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]
    assert [event["content_index"] for event in events if event["type"].endswith(".done") and "part" in event] == [0, 1]


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_stream_finish_reason_decides_end(finish: str, status: str, reason: str | None) -> None:
    events = stream(openai.dialect, openai_wire.stream("eins zwei", finish=finish))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == (f"response.{status}", status)
    assert (response["incomplete_details"] or {}).get("reason") == reason
    assert (response["completed_at"] is None) == (status == "incomplete")
    assert [item["status"] for item in items_of(events)] == [status]


def test_stream_incomplete_call_is_marked() -> None:
    chunks = [
        openai_wire.role(),
        openai_wire.tool_chunk(0, "call_0", "now", "{}"),
        openai_wire.tool_chunk(1, "call_1", "now", '{"a'),
        openai_wire.chunk({}, "length"),
        openai_wire.DONE,
    ]
    assert [item["status"] for item in items_of(stream(openai.dialect, chunks))] == ["completed", "incomplete"]


UPSTREAM_STREAMS: list[tuple[Dialect | None, list[bytes]]] = [
    (None, responses_wire.stream("eins zwei drei")),
    (openai.dialect, openai_wire.stream("eins zwei drei")),
    (anthropic.dialect, anthropic_wire.stream([anthropic_wire.thinking("Hm."), anthropic_wire.text("eins zwei drei")])),
]


@pytest.mark.parametrize(("upstream", "events"), UPSTREAM_STREAMS, ids=["native", "openai", "anthropic"])
def test_stream_cut_after_any_event_ends_in_failed(upstream: Dialect | None, events: list[bytes]) -> None:
    for count in range(1, len(events)):
        transform = create_responses_stream(upstream, client_request())
        out = transform.feed(b"".join(events[:count])) + transform.end()
        if not transform.has_started or transform.finish_reason is not None:
            continue
        last = validate_events(out)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "provider_error"
        assert {item["status"] for item in last["response"]["output"]} <= {"completed", "incomplete"}
        assert b"[DONE]" not in out


def native_events(*kinds: tuple[str, dict[str, Any]]) -> list[bytes]:
    created = ("response.created", {"response": responses_wire.frame()})
    return [responses_wire.event(number, kind, **fields) for number, (kind, fields) in enumerate((created, *kinds))]


OPEN_ITEMS = [
    ({"type": "message", "status": "in_progress", "content": []}, "content", "output_text", "text"),
    ({"type": "message", "status": "in_progress", "content": []}, "content", "refusal", "refusal"),
    ({"type": "reasoning", "summary": []}, "summary", "summary_text", "text"),
    ({"type": "reasoning", "summary": []}, "content", "reasoning_text", "text"),
]
DELTA_OF_PART = {"summary_text": "reasoning_summary_text"}


@pytest.mark.parametrize(("item", "field", "part_type", "text_field"), OPEN_ITEMS)
def test_native_stream_cut_has_parts_of_open_item(
    item: dict[str, Any], field: str, part_type: str, text_field: str
) -> None:
    index_name = "summary_index" if field == "summary" else "content_index"
    deltas = [
        (
            f"response.{DELTA_OF_PART.get(part_type, part_type)}.delta",
            {"output_index": 1, index_name: part, "delta": text},
        )
        for part, text in ((0, 'a"'), (0, "\U0001f600"), (1, "ü"))
    ]
    done = ("response.output_item.done", {"output_index": 0, "item": responses_wire.message("before")})
    added = ("response.output_item.added", {"output_index": 1, "item": item})
    output = stream(None, native_events(done, added, *deltas))[-1]["response"]["output"]
    assert output[0] == responses_wire.message("before")
    assert [part[text_field] for part in output[1][field]] == ['a"\U0001f600', "ü"]
    assert {part["type"] for part in output[1][field]} == {part_type}
    assert output[1].get("status") == ("incomplete" if "status" in item else None)


@pytest.mark.parametrize("event_type", ["response.output_item.done", "response.output_text.delta"])
def test_streamed_output_number_of_items_and_texts_is_bounded(event_type: str) -> None:
    output = StreamedOutput()
    message = b'{"type":"message","content":[]}'
    output.add_event(NativeEvent("response.output_item.added", item=msgspec.Raw(message)))
    large = b'"' + bytes(MAX_COLLECTED_BYTES - 100 * ITEM_OVERHEAD_BYTES) + b'"'
    output.add_event(NativeEvent("response.output_item.done", item=msgspec.Raw(large), output_index=1))
    for index in range(200):
        item = {"output_index": 2 + index, "item": msgspec.Raw(message)}
        delta = {"content_index": index, "delta": msgspec.Raw(b'""')}
        output.add_event(NativeEvent(event_type, **(item if event_type.endswith("done") else delta)))
    items = output.list_items()
    assert 50 < len(items) + len(items[0]["content"]) < 100


@pytest.mark.parametrize(("item_type", "field"), [("function_call", "arguments"), ("custom_tool_call", "input")])
def test_native_stream_cut_has_text_of_open_call(item_type: str, field: str) -> None:
    item = {"type": item_type, "call_id": "call_1", "name": "now", field: ""}
    delta = {"function_call": "function_call_arguments", "custom_tool_call": "custom_tool_call_input"}[item_type]
    kinds = [(f"response.{delta}.delta", {"output_index": 0, "delta": text}) for text in ('{"a', '":1')]
    added = ("response.output_item.added", {"output_index": 0, "item": item})
    search = ("response.output_item.added", {"output_index": 1, "item": {"type": "web_search_call"}})
    output = stream(None, native_events(added, *kinds, search))[-1]["response"]["output"]
    assert output == [{**item, field: '{"a":1'}]


@pytest.mark.parametrize(("upstream", "events"), UPSTREAM_STREAMS, ids=["native", "openai", "anthropic"])
def test_stream_gateway_error_has_its_code_and_message(upstream: Dialect | None, events: list[bytes]) -> None:
    transform = create_responses_stream(upstream, client_request())
    out = transform.feed(b"".join(events[:6])) + transform.fail(RateLimited("Slow down.", limit="tokens"))
    last = validate_events(out + transform.end())[-1]
    assert last["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


@pytest.mark.parametrize(("upstream", "events"), UPSTREAM_STREAMS, ids=["native", "openai", "anthropic"])
def test_stream_split_at_every_position_gives_same_output(upstream: Dialect | None, events: list[bytes]) -> None:
    raw = b"".join(events)
    expected = texts_of(create_responses_stream(upstream, client_request()), [raw])
    for position in range(0, len(raw), 3):
        split = [raw[:position], raw[position:]]
        assert texts_of(create_responses_stream(upstream, client_request()), split) == expected


def texts_of(transform: Any, chunks: list[bytes]) -> list[tuple[str, str | None]]:
    out = b"".join([transform.feed(chunk) for chunk in chunks]) + transform.end()
    return [(event["type"], event.get("delta")) for event in read_events(out)]


def test_stream_too_long_ends_in_failed() -> None:
    transform = create_responses_stream(openai.dialect, client_request())
    transform.feed(openai_wire.role())
    chunk = openai_wire.chunk({"content": "x" * (MAX_STREAMED_CHARS // 8)})
    outputs = [transform.feed(chunk) for _ in range(9)]
    assert [transform.has_ended, b"response.failed" in outputs[-1]] == [True, True]
    assert isinstance(transform.error, ProviderFailed)


def test_stream_signature_without_text_has_no_item_unless_requested() -> None:
    blocks = [anthropic_wire.thinking(""), anthropic_wire.text("Yes.")]
    plain, encrypted = (stream(anthropic.dialect, anthropic_wire.stream(blocks), **more) for more in ({}, ENCRYPTED))
    assert [item["type"] for item in items_of(plain)] == ["message"]
    assert [item["type"] for item in items_of(encrypted)] == ["reasoning", "message"]


@pytest.mark.parametrize("upstream", [openai.dialect, anthropic.dialect], ids=lambda dialect: dialect.name)
def test_reasoning_returned_by_client_reaches_same_backend_only(upstream: Dialect) -> None:
    streams = {"openai": UPSTREAM_STREAMS[1][1], "anthropic": UPSTREAM_STREAMS[2][1]}
    if upstream.name == "openai":
        streams["openai"] = [
            openai_wire.role(),
            openai_wire.chunk({"reasoning_content": "Hm."}),
            *openai_wire.stream("Yes.")[1:],
        ]
    output = items_of(stream(upstream, streams[upstream.name], **ENCRYPTED))
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "12:00"}
    raw = client_request(input=[{"role": "user", "content": "Hi"}, *output, call, result])
    for target, model in itertools.product((openai.dialect, anthropic.dialect), ("m", "other")):
        body = encode_responses_request(target, raw, ModelProfile(model)).body
        assert (b"Hm." in body) == (target is upstream and model == "m")


def test_native_stream_error_event_becomes_failed_response() -> None:
    events = [
        *responses_wire.stream("eins zwei")[:5],
        responses_wire.event(5, "error", **{**responses_wire.error(), "type": "error"}),
    ]
    last = stream(None, events)[-1]
    assert (last["type"], last["sequence_number"]) == ("response.failed", 5)
    assert last["response"]["id"] == responses_wire.ID


@pytest.mark.parametrize(
    "first",
    [
        b"data: {}\n\n",
        b'data: {"type": "error", "message": "Sorry"}\n\n',
        b'data: {"type": "message_start"}\n\n',
        b'data: {"type": "response.created"}\n\n',
        b'data: {"type": "response.created", "response": {"id": ""}}\n\n',
        responses_wire.event(0, "response.failed", response=responses_wire.frame(status="failed", error={"code": "x"})),
    ],
)
def test_native_stream_without_start_raises_before_client_gets_status(first: bytes) -> None:
    transform = create_responses_stream(None, client_request())
    with pytest.raises(ProviderFailed):
        transform.feed(first)
    assert not transform.has_started


def with_status(last: bytes, status: str) -> bytes:
    """Return the last event of a stream with an error and another status of its response."""
    prefix, data = last.split(b"data: ", 1)
    event = json.loads(data)
    event["response"] |= {"status": status, "error": {"code": "server_error", "message": "It broke."}}
    return prefix + b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
def test_stream_completed_event_of_failed_response_ends_in_failed(status: str) -> None:
    *events, last = responses_wire.stream("eins zwei drei")
    assert b"response.completed" in last
    found = stream(None, [*events, with_status(last, status)])
    assert [event["type"] for event in found].count("response.completed") == 0
    assert found[-1]["type"] == "response.failed"
    assert ("It broke." in found[-1]["response"]["error"]["message"]) == (status != "in_progress")


def test_stream_that_begins_with_completed_event_of_failed_response_has_not_started() -> None:
    transform = create_responses_stream(None, client_request())
    with pytest.raises(ProviderFailed, match=r"It broke\."):
        transform.feed(with_status(responses_wire.stream("eins")[-1], "failed"))
    assert not transform.has_started


def test_stream_completed_event_of_failed_response_keeps_usage() -> None:
    *events, last = responses_wire.stream("eins zwei drei")
    transform = create_responses_stream(None, client_request())
    transform.feed(b"".join([*events, with_status(last, "failed")]))
    assert transform.error is not None
    assert transform.usage is not None


def native_response(**fields: Any) -> bytes:
    return json.dumps({"id": "resp_1", "model": "m", "output": [], **fields}).encode()


@pytest.mark.parametrize("fields", [{"status": "completed"}, {"status": "queued", "background": True}])
def test_native_response_complete_or_in_background_is_unchanged(fields: dict[str, Any]) -> None:
    assert pass_through_response(native_response(**fields)).body == native_response(**fields)


def test_native_response_cached_tokens_beside_the_input_are_added_to_it() -> None:
    usage = {"input_tokens": 100, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 500}}
    assert pass_through_response(native_response(status="completed", usage=usage)).usage == TokenUsage(600, 10, 500)


@pytest.mark.parametrize("usage", [{}, {"input_tokens": 3}, {"input_tokens": -1, "output_tokens": 2}], ids=str)
def test_native_response_without_both_counts_has_no_usage(usage: dict[str, int]) -> None:
    assert pass_through_response(native_response(status="completed", usage=usage)).usage is None


@pytest.mark.parametrize(
    "fields", [{"status": "in_progress"}, {"status": "queued", "background": False}, {"status": "cancelled"}]
)
def test_native_response_unfinished_or_cancelled_raises(fields: dict[str, Any]) -> None:
    with pytest.raises(ProviderFailed):
        pass_through_response(native_response(**fields))
