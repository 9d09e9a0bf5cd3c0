"""Translated streams: text events that resemble the last one give the same events as those that are decoded."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.dialects.fastpath.chunk_template import MAX_LEARNED_TEMPLATES
from svc.dialects.translation import StreamTranslation

TEXT = st.one_of(
    st.text(max_size=9), st.sampled_from(["", "plain words of usual length", "x" * 90, "a/b", "\x00", "é" * 70])
)
ITEM = st.tuples(st.sampled_from(["text", "text", "text", "ping", "tool", "block"]), TEXT, st.booleans(), st.booleans())


def anthropic_event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


def encode(text: str, *, is_ascii: bool, escapes_slash: bool) -> str:
    encoded = json.dumps(text, ensure_ascii=is_ascii)
    return encoded.replace("/", "\\/") if escapes_slash else encoded


def anthropic_stream(items: list[tuple[str, str, bool, bool]]) -> bytes:
    message = {"id": "msg_1", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}
    events = [("message_start", anthropic_event("message_start", message=message))]
    index = 0
    opened = {"type": "text", "text": ""}
    events.append(("content_block_start", anthropic_event("content_block_start", index=0, content_block=opened)))
    for kind, text, is_ascii, escapes_slash in items:
        if kind == "ping":
            events.append(("ping", anthropic_event("ping")))
        elif kind == "text":
            value = encode(text, is_ascii=is_ascii, escapes_slash=escapes_slash)
            delta = f'{{"type":"content_block_delta","index":{index},"delta":{{"type":"text_delta","text":{value}}}}}'
            events.append(("content_block_delta", delta))
        else:
            events.append(("content_block_stop", anthropic_event("content_block_stop", index=index)))
            index += 1
            block: dict[str, Any] = dict(opened)
            if kind == "tool":
                tool = {"type": "tool_use", "id": f"t{index}", "name": "f", "input": {}}
                events.append(
                    ("content_block_start", anthropic_event("content_block_start", index=index, content_block=tool))
                )
                for part in ('{"text": ', json.dumps(text), "", '"more": ', json.dumps(text), "}"):
                    value = encode(part, is_ascii=is_ascii, escapes_slash=escapes_slash)
                    delta = f'{{"type":"input_json_delta","partial_json":{value}}}'
                    event = f'{{"type":"content_block_delta","index":{index},"delta":{delta}}}'
                    events.append(("content_block_delta", event))
                events.append(("content_block_stop", anthropic_event("content_block_stop", index=index)))
                index += 1
            events.append(
                ("content_block_start", anthropic_event("content_block_start", index=index, content_block=block))
            )
    events.append(("content_block_stop", anthropic_event("content_block_stop", index=index)))
    events.append(
        (
            "message_delta",
            anthropic_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
        )
    )
    events.append(("message_stop", anthropic_event("message_stop")))
    return "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events).encode(errors="replace")


def openai_stream(items: list[tuple[str, str, bool, bool]]) -> bytes:
    def chunk(delta: str, finish: str = "null") -> str:
        return (
            'data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
            f'"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'
        )

    out = [chunk('{"role":"assistant","content":""}')]
    for number, (kind, text, is_ascii, escapes_slash) in enumerate(items):
        if kind == "ping":
            out.append(": ping\n\n")
        elif kind == "tool":
            function = {"name": "f", "arguments": json.dumps({"text": text})}
            call = {"index": number, "id": f"t{number}", "type": "function", "function": function}
            out.append(chunk(json.dumps({"tool_calls": [call]})))
        elif kind == "block":
            out.append(chunk(json.dumps({"reasoning_content": text})))
        else:
            out.append(chunk(f'{{"content":{encode(text, is_ascii=is_ascii, escapes_slash=escapes_slash)}}}'))
    out.append(chunk("{}", '"stop"') + "data: [DONE]\n\n")
    return "".join(out).encode(errors="replace")


def decode_events(raw: bytes) -> list[tuple[list[bytes], Any]]:
    """Return the lines before the data of each event, and the decoded data: escapes of the same text may differ."""
    assert raw.endswith(b"\n\n")
    events = []
    for event in raw.removesuffix(b"\n\n").split(b"\n\n"):
        *lines, data = event.split(b"\n")
        assert data.startswith(b"data: ")
        data = data.removeprefix(b"data: ")
        events.append((lines, data if data == b"[DONE]" else json.loads(data)))
    return events


def translate(
    upstream: Dialect, client: Dialect, raw: bytes, size: int, *, fast: bool
) -> tuple[list[tuple[list[bytes], Any]], Any, Any]:
    transform = StreamTranslation(upstream.create_stream_decoder(), client.create_stream_encoder(include_usage=True))
    if not fast:
        transform.disable_fast_paths()
    out = b"".join(transform.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + transform.end()
    error = transform.error.message if transform.error else None
    out = re.sub(rb'"created":\d+', b'"created":0', out)  # the gateway's clock
    return decode_events(out), error, (transform.finish_reason, transform.has_ended)


@pytest.mark.parametrize("upstream", ["anthropic", "openai"])
@given(items=st.lists(ITEM, max_size=12), size=st.integers(1, 900))
@settings(max_examples=150, deadline=None)
def test_translation_with_templates_gives_same_events(upstream: str, items: list[Any], size: int) -> None:
    if upstream == "anthropic":
        source, target, raw = anthropic.dialect, openai.dialect, anthropic_stream(items)
    else:
        source, target, raw = openai.dialect, anthropic.dialect, openai_stream(items)
    general, fast = (translate(source, target, raw, size, fast=fast) for fast in (False, True))
    assert fast == general


def test_translation_of_similar_texts_decodes_few_events() -> None:
    transform = StreamTranslation(
        anthropic.dialect.create_stream_decoder(), openai.dialect.create_stream_encoder(include_usage=False)
    )
    decoded: list[bytes] = []
    decode = transform._decoder.decode
    raw = anthropic_stream([("text", f"word {number}", False, False) for number in range(50)])

    class Counting:
        text_field = b"text"
        arguments_field = b"partial_json"

        def __getattr__(self, name: str) -> Any:
            return getattr(decode.__self__, name)

        def decode(self, event: bytes) -> Any:
            decoded.append(event)
            return decode(event)

    transform._decoder = Counting()
    transform.feed(raw)
    assert len(decoded) == 6


def test_translation_after_many_tools_without_arguments_learns_a_template_of_text() -> None:
    transform = StreamTranslation(
        anthropic.dialect.create_stream_decoder(), openai.dialect.create_stream_encoder(include_usage=False)
    )
    message = {"id": "msg_1", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}
    events = [anthropic_event("message_start", message=message)]
    for index in range(MAX_LEARNED_TEMPLATES + 1):
        tool = {"type": "tool_use", "id": f"t{index}", "name": "f", "input": {}}
        events.append(anthropic_event("content_block_start", index=index, content_block=tool))
        events.append(anthropic_event("content_block_stop", index=index))
    events.append(anthropic_event("content_block_delta", index=99, delta={"type": "text_delta", "text": "later"}))
    transform.feed("".join(f"data: {event}\n\n" for event in events).encode())
    assert transform.passthrough_template is not None


def test_translation_of_tool_arguments_learns_one_template() -> None:
    transform = StreamTranslation(
        anthropic.dialect.create_stream_decoder(), openai.dialect.create_stream_encoder(include_usage=False)
    )
    head, separator, _ = anthropic_stream([("tool", "text", False, False)]).partition(b'"partial_json":')
    assert separator
    start = head[head.rindex(b"event: ") :] + separator
    transform.feed(head[: head.rindex(b"event: ")])
    transform.feed(start + b'"first"}}\n\n')
    template = transform.passthrough_template
    assert template is not None
    for text in (b"{", b"\\u00e9\\ud83d\\ude00", b"}"):
        out = transform.feed(start + b'"' + text + b'"}}\n\n')
        assert b'"tool_calls":[{"index":0,"function":{"arguments":"' + text + b'"}}]' in out
        assert transform.passthrough_template is template
