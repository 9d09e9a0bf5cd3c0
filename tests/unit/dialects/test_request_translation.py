"""Translation of each request field to the other dialect, and the field that each rejection names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import decode_routing_info, pass_through_request
from tests.nesting import depths_near_limit

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.anthropic.request_encoder import DEFAULT_ANTHROPIC_MAX_TOKENS
from svc.dialects.base import Dialect, ModelProfile
from svc.dialects.openai import dialect as openai
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatMessage,
    ImagePart,
    RedactedThinkingPart,
    RefusalPart,
    ResponseFormat,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolResult,
    UpstreamOverrides,
)

CACHE = {"type": "ephemeral"}
TARGET = ModelProfile("theirs", max_output_tokens=8192)


def read(dialect: Dialect, **fields: Any) -> Any:
    """Return the canonical form of a request. `messages` defaults to one user message."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    if dialect is anthropic:
        body = {"max_tokens": 100, **body}
    return dialect.decode_request(json.dumps(body).encode())


def content(dialect: Dialect, *blocks: Any, role: str = "user") -> Any:
    """Return the canonical parts of a message with these blocks."""
    messages = [{"role": role, "content": list(blocks)}]
    calls = [
        {"type": "tool_use", "id": block["tool_use_id"], "name": "f"}
        for block in blocks
        if isinstance(block, dict) and block.get("tool_use_id")
    ]
    if calls:
        messages.insert(0, {"role": "assistant", "content": calls})
    return read(dialect, messages=messages).messages[-1].parts


def write(dialect: Dialect, source: Dialect, target: ModelProfile = TARGET, **fields: Any) -> dict[str, Any]:
    built = dialect.encode_request(read(source, **fields), target)
    return dict(json.loads(built.body))


def dropped(dialect: Dialect, source: Dialect, target: ModelProfile = TARGET, **fields: Any) -> tuple[str, ...]:
    return dialect.encode_request(read(source, **fields), target).dropped_fields


def rejected_param(dialect: Dialect, **fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        read(dialect, **fields)
    assert caught.value.message
    return caught.value.param


# an Anthropic client's request


def test_anthropic_request_all_fields_are_decoded() -> None:
    request = read(
        anthropic,
        system="Be brief.",
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END"],
        max_tokens=4096,
        metadata={"user_id": "u1"},
        thinking={"type": "enabled", "budget_tokens": 2048},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        service_tier="auto",
    )
    assert request.messages[0] == ChatMessage("system", [TextPart("Be brief.")])
    assert (request.stream, request.include_usage, request.max_tokens) == (True, True, 4096)
    assert (request.temperature, request.top_p, request.top_k, request.stop) == (0.5, 0.9, 40, ["END"])
    assert (request.user, request.effort, request.source) == ("u1", "high", "anthropic")
    assert request.thinking == {"type": "enabled", "budget_tokens": 2048}
    assert request.response_format == ResponseFormat("json_schema", schema={"type": "object"})
    assert request.extra == {"service_tier": "auto"}


def test_anthropic_request_all_block_types_are_decoded() -> None:
    base64 = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert content(
        anthropic,
        {"type": "text", "text": "a", "cache_control": CACHE},
        {"type": "image", "source": base64, "cache_control": CACHE},
        {"type": "image", "source": {"type": "url", "url": "https://i.example/a.png"}, "cache_control": CACHE},
    ) == [
        TextPart("a", CACHE),
        ImagePart(media_type="image/png", data="AAAA", cache=CACHE),
        ImagePart(url="https://i.example/a.png", cache=CACHE),
    ]
    assert content(
        anthropic,
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}, "cache_control": CACHE},
        {"type": "tool_use", "id": "t2", "name": "g"},
        role="assistant",
    ) == [
        ThinkingPart("hm", "s"),
        RedactedThinkingPart("d"),
        ToolCall("t1", "f", '{"a":1}', CACHE),
        ToolCall("t2", "g", "{}"),
    ]
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "cache_control": CACHE}
    assert content(
        anthropic,
        {**result, "content": [{"type": "text", "text": "x"}, {"type": "image", "source": base64}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "text"},
        {"type": "tool_result", "tool_use_id": "t3"},
    ) == [
        ToolResult("t1", [TextPart("x"), ImagePart(media_type="image/png", data="AAAA")], True, CACHE),
        ToolResult("t2", [TextPart("text")]),
        ToolResult("t3", []),
    ]


@pytest.mark.parametrize(
    ("block", "param"),
    [
        ({"type": "text"}, "text"),
        ({"type": "thinking"}, "thinking"),
        ({"type": "redacted_thinking"}, "data"),
        ({"type": "tool_use", "name": "f"}, "id"),
        ({"type": "tool_use", "id": "t"}, "name"),
        ({"type": "tool_result"}, "tool_use_id"),
        ({"type": "image"}, "source"),
        ({"type": "image", "source": {"type": "base64", "data": "AAAA"}}, "source"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png"}}, "source"),
        ({"type": "image", "source": {"type": "url"}}, "source"),
        ({"type": "hologram"}, "type"),
        ({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}, ""),
    ],
)
def test_anthropic_request_incomplete_block_error_names_the_field(block: dict[str, Any], param: str) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [{"type": "text", "text": "a"}, block]}]
    expected = f"messages[1].content[1].{param}" if param else "messages[1].content[1].content[0].type"
    assert rejected_param(anthropic, messages=messages) == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "f"}, ToolChoice("tool", "f")),
    ],
)
def test_anthropic_request_tool_choice_is_decoded(choice: dict[str, Any], expected: ToolChoice) -> None:
    request = read(anthropic, tools=[{"name": "f", "input_schema": {}}], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, None)
    tools = [{"name": "f", "input_schema": {}}]
    one = read(anthropic, tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True})
    assert one.parallel_tool_calls is False


def test_anthropic_request_tools_keep_all_fields() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True, "cache_control": CACHE}
    assert read(anthropic, tools=[tool, {"name": "g", "type": "custom", "input_schema": {}}]).tools == [
        ToolDefinition("f", "d", {"type": "object"}, True, CACHE),
        ToolDefinition("g", parameters={}),
    ]


def test_anthropic_request_tool_without_name_or_of_other_type_is_rejected() -> None:
    assert rejected_param(anthropic, tool_choice={"type": "tool"}) == "tool_choice.name"
    tools = [{"name": "f", "input_schema": {}}, {"name": "bash", "type": "bash_20250124"}]
    assert rejected_param(anthropic, tools=tools) == "tools[1].type"


# an OpenAI client's request


def test_openai_request_all_fields_are_decoded() -> None:
    request = read(
        openai,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=10,
        temperature=1.5,
        top_p=0.9,
        top_k=40,
        stop="END",
        parallel_tool_calls=False,
        reasoning_effort="low",
        thinking={"type": "adaptive"},
        user="u1",
        seed=7,
    )
    assert (request.stream, request.include_usage, request.max_tokens) == (True, True, 10)
    assert (request.temperature, request.top_p, request.top_k, request.stop) == (1.5, 0.9, 40, ["END"])
    assert (request.parallel_tool_calls, request.effort, request.user) == (False, "low", "u1")
    assert (request.thinking, request.extra, request.source) == ({"type": "adaptive"}, {"seed": 7}, "openai")
    assert not read(openai, stream_options={"include_usage": True}).include_usage
    assert read(openai, max_tokens=10, max_completion_tokens=20).max_tokens == 20
    assert read(openai, stop=["a", "b"]).stop == ["a", "b"]


def test_openai_request_all_part_types_are_decoded() -> None:
    assert content(
        openai,
        {"type": "text", "text": "a", "cache_control": CACHE},
        {"type": "input_text", "text": "b"},
        {"type": "image_url", "image_url": "https://i.example/a.png", "cache_control": CACHE},
        {"type": "image_url", "image_url": {"url": "http://i.example/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "DATA:Image/PNG;charset=x;BASE64,AAAA", "detail": "high"}},
    ) == [
        TextPart("a", CACHE),
        TextPart("b"),
        ImagePart(url="https://i.example/a.png", cache=CACHE),
        ImagePart(url="http://i.example/a.png", detail="low"),
        ImagePart(media_type="image/png", data="AAAA", detail="high"),
    ]


def test_openai_request_assistant_message_keeps_part_order() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "cache_control": CACHE}
    message = {
        "role": "assistant",
        "content": "text",
        "refusal": "no",
        "reasoning_content": "hm",
        "tool_calls": [call],
        "name": "bob",
    }
    request = read(openai, messages=[{"role": "user", "content": "Hi"}, message])
    parts = [ThinkingPart("hm"), TextPart("text"), RefusalPart("no"), ToolCall("c", "f", "{}", CACHE)]
    assert request.messages[1] == ChatMessage("assistant", parts, "bob")
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    request = read(openai, messages=[{"role": "assistant", "thinking_blocks": blocks, "reasoning_content": "not this"}])
    assert request.messages[0].parts == [ThinkingPart("hm", "s"), RedactedThinkingPart("d")]


def test_openai_request_tool_message_becomes_tool_result() -> None:
    message = {"role": "tool", "tool_call_id": "c", "content": "result", "cache_control": CACHE}
    assert read(openai, messages=[message]).messages[0] == ChatMessage(
        "tool", [ToolResult("c", [TextPart("result", CACHE)], cache=CACHE)]
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "content"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "refusal"}]}, "content[0].refusal"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "ftp://x"}]}, "content[0].image_url.url"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "content[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "hologram"}]}, "tool_calls[0].type"),
    ],
)
def test_openai_request_incomplete_message_error_names_the_field(message: dict[str, Any], param: str) -> None:
    assert rejected_param(openai, messages=[{"role": "user", "content": "Hi"}, message]) == f"messages[1].{param}"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("tool", "f")),
        (None, None),
    ],
)
def test_openai_request_tool_choice_is_decoded(choice: Any, expected: ToolChoice | None) -> None:
    assert read(openai, tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_openai_request_allowed_tools_are_the_only_tools(mode: str) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tools[2], tools[0]]}}
    request = read(openai, tools=tools, tool_choice=choice)
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["f", "h"], ToolChoice(mode))
    made = write(anthropic, openai, tools=tools, tool_choice=choice)
    assert [tool["name"] for tool in made["tools"]] == ["f", "h"]


@pytest.mark.parametrize(
    ("allowed", "param"),
    [
        (None, ""),
        ({"mode": "auto"}, ".tools"),
        ({"mode": "auto", "tools": []}, ".tools"),
        ({"mode": "never", "tools": []}, ".mode"),
        ({"tools": [{"type": "function"}]}, ".tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, ".tools[0].function.name"),
    ],
)
def test_openai_request_invalid_allowed_tools_are_rejected(allowed: Any, param: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert rejected_param(openai, tools=tools, tool_choice=choice) == f"tool_choice.allowed_tools{param}"


def test_openai_request_invalid_tool_choice_is_rejected() -> None:
    assert rejected_param(openai, tool_choice="sometimes") == "tool_choice"
    assert rejected_param(openai, tool_choice={"type": "function"}) == "tool_choice.function"


def test_openai_request_tools_keep_all_fields() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    inside = {"name": "g", "cache_control": CACHE}
    tools = [
        {"type": "function", "function": function, "cache_control": CACHE},
        {"type": "function", "function": inside},
    ]
    assert read(openai, tools=tools).tools == [
        ToolDefinition("f", "d", {"type": "object"}, True, CACHE),
        ToolDefinition("g", cache=CACHE),
    ]
    assert rejected_param(openai, tools=[{"type": "function"}]) == "tools[0].function"


def test_openai_request_response_format_is_decoded() -> None:
    assert read(openai, response_format={"type": "text"}).response_format == ResponseFormat("text")
    assert read(openai, response_format={"type": "json_object"}).response_format == ResponseFormat("json_object")
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    assert read(openai, response_format=form).response_format == ResponseFormat(
        "json_schema", "answer", {"type": "object"}, True
    )


def test_anthropic_request_nested_tool_results_are_rejected() -> None:
    text = '{"type":"text","text":"x"}'
    block = '{"type":"tool_result","tool_use_id":"t","content":[' * 300 + text + "]}" * 300
    raw = f'{{"model":"m","max_tokens":5,"messages":[{{"role":"user","content":[{block}]}}]}}'
    with pytest.raises(InvalidRequest, match="`tool_result`") as caught:
        anthropic.decode_request(raw.encode())
    assert caught.value.param == "messages[0].content[0].content[0].type"


def test_anthropic_upstream_deeply_nested_arguments_are_encoded_or_rejected() -> None:
    rejections = 0
    for depth in depths_near_limit():
        function = {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}
        call = {"id": "c", "type": "function", "function": function}
        request = read(openai, messages=[{"role": "assistant", "tool_calls": [call]}])
        try:
            anthropic.encode_request(request, TARGET)
        except InvalidRequest:
            rejections += 1
    assert rejections


# to an Anthropic upstream


def test_anthropic_upstream_all_fields_are_encoded() -> None:
    body = write(
        anthropic,
        openai,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
        ],
        stream=True,
        max_tokens=10,
        temperature=1.5,
        top_p=0.9,
        top_k=40,
        stop=["END", " "],
        reasoning_effort="minimal",
        user="u1",
        parallel_tool_calls=False,
        tool_choice={"type": "function", "function": {"name": "f"}},
        tools=[{"type": "function", "function": {"name": "f", "description": "d", "strict": True}}],
    )
    assert body == {
        "model": "theirs",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "Hi"}],
        "system": "Be brief.\nBe kind.",
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 40,
        "stop_sequences": ["END"],
        "tools": [
            {"name": "f", "description": "d", "strict": True, "input_schema": {"type": "object", "properties": {}}}
        ],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low"},
        "metadata": {"user_id": "u1"},
        "stream": True,
    }
    assert dropped(anthropic, openai, stop=["END", " "], seed=1, temperature=1) == ("seed", "stop")
    assert dropped(anthropic, openai, temperature=1.5) == ("temperature",)


def test_anthropic_upstream_max_tokens_comes_from_request_model_or_default() -> None:
    assert write(anthropic, openai, max_tokens=10)["max_tokens"] == 10
    assert write(anthropic, openai)["max_tokens"] == 8192
    assert write(anthropic, openai, ModelProfile("theirs"))["max_tokens"] == DEFAULT_ANTHROPIC_MAX_TOKENS


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", None, {"type": "none"}),
        ("none", False, {"type": "none"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (None, True, None),
        (None, None, None),
    ],
)
def test_anthropic_upstream_tool_choice_is_encoded(choice: Any, parallel: bool | None, expected: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert write(anthropic, openai, tools=tools, tool_choice=choice, parallel_tool_calls=parallel).get(
        "tool_choice"
    ) == (expected)
    if choice != "required":  # it is rejected
        assert "tool_choice" not in write(anthropic, openai, tool_choice=choice, parallel_tool_calls=parallel)


@pytest.mark.parametrize(
    ("effort", "config"), [("none", None), ("minimal", {"effort": "low"}), ("high", {"effort": "high"})]
)
def test_anthropic_upstream_reasoning_effort_becomes_output_config(effort: str, config: Any) -> None:
    assert write(anthropic, openai, reasoning_effort=effort).get("output_config") == config


def test_anthropic_upstream_messages_merge_and_tool_results_become_user_blocks() -> None:
    call = {"id": "call|1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    bare = {"id": "call2", "type": "function", "function": {"name": "g", "arguments": " "}}
    body = write(
        anthropic,
        openai,
        messages=[
            {"role": "user", "content": "one"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": None, "tool_calls": [call, bare]},
            {"role": "tool", "tool_call_id": "call|1", "content": "r1"},
            {"role": "tool", "tool_call_id": "call2", "content": ""},
            {"role": "assistant", "content": "so far  "},
        ],
    )
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "call2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "r1"},
                {"type": "tool_result", "tool_use_id": "call2"},
            ],
        },
        {"role": "assistant", "content": "so far"},
    ]


def test_anthropic_upstream_cache_control_is_kept_on_all_blocks() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "cache_control": CACHE}
    image = {"type": "image_url", "image_url": "https://i.example/a.png", "cache_control": CACHE}
    inline = {"type": "image_url", "image_url": "data:image/jpg;base64,AAAA", "cache_control": CACHE}
    text = {"type": "text", "text": "t", "cache_control": CACHE}
    body = write(
        anthropic,
        openai,
        messages=[
            {"role": "system", "content": "s", "cache_control": CACHE},
            {"role": "user", "content": [text, image, inline]},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "r", "cache_control": CACHE},
        ],
        tools=[{"type": "function", "function": {"name": "f"}, "cache_control": CACHE}],
    )
    assert body["system"] == [{"type": "text", "text": "s", "cache_control": CACHE}]
    blocks = [block for message in body["messages"] for block in message["content"]] + body["tools"]
    assert len(blocks) == 6
    assert all(block["cache_control"] == CACHE for block in blocks)
    assert blocks[2]["source"] == {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}


def test_anthropic_upstream_thinking_without_signature_is_dropped() -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "a", "thinking_blocks": blocks},
        {"role": "user", "content": "and"},
        {"role": "assistant", "content": "b", "reasoning_content": "unsigned"},
        {"role": "user", "content": "go on"},
    ]
    written = write(anthropic, openai, messages=messages)["messages"]
    assert written[1]["content"] == [*blocks, {"type": "text", "text": "a"}]
    assert written[3]["content"] == "b"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "system", "content": [{"type": "image_url", "image_url": "https://i.example/a.png"}]},
                    {"role": "user", "content": "Hi"},
                ]
            },
            "messages[0].content",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "data:image/bmp;base64,AAAA"}]}
                ]
            },
            "messages[0].content",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_anthropic_upstream_unsupported_field_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        write(anthropic, openai, **fields)
    assert caught.value.param == param
    assert caught.value.message[0].isupper() or caught.value.message[0] == "`"


# to an OpenAI upstream


def test_openai_upstream_all_fields_are_encoded() -> None:
    body = write(
        openai,
        anthropic,
        system=[{"type": "text", "text": "Be brief."}],
        stream=True,
        max_tokens=10,
        temperature=0.5,
        top_p=0.9,
        stop_sequences=["END"],
        metadata={"user_id": "u" * 100},
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    assert body.pop("stream_options") == {"include_usage": True}
    assert body == {
        "model": "theirs",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "max_tokens": 10,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "user": "u" * 64,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }


def test_openai_upstream_unsupported_fields_are_listed_as_dropped() -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}
    names = dropped(
        openai,
        anthropic,
        system=[{"type": "text", "text": "s", "cache_control": CACHE}],
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [*blocks, {"type": "tool_use", "id": "t", "name": "f"}]},
            {"role": "user", "content": [result]},
        ],
        top_k=40,
        thinking={"type": "adaptive"},
    )
    assert set(names) == {"cache_control", "messages[].thinking", "messages[].is_error", "top_k", "thinking"}
    assert dropped(openai, anthropic) == ()


def test_openai_upstream_tool_results_come_first_and_images_move_to_user_message() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    body = write(
        openai,
        anthropic,
        messages=[
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "text", "text": "x"}, image, {"type": "text", "text": "y"}],
                    },
                ],
            },
        ],
    )
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert body["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "x\ny"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "text", "text": "see"},
            ],
        },
    ]


def test_openai_upstream_assistant_text_blocks_are_joined() -> None:
    written = write(
        openai,
        anthropic,
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
        ],
    )["messages"]
    assert written[1:] == [{"role": "assistant", "content": "ab"}, {"role": "assistant", "content": ""}]


def test_routing_info_anthropic_request_has_all_routing_fields() -> None:
    raw = json.dumps({"model": "m", "max_tokens": 77, "stream": True, "messages": [{"role": "user", "content": "x"}]})
    head = decode_routing_info(anthropic, raw.encode())
    assert (head.model, head.max_tokens, head.stream, head.include_usage, head.choice_count) == ("m", 77, True, True, 1)


def test_anthropic_upstream_document_keeps_cache_control() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    block = {"type": "document", "source": source, "cache_control": CACHE}
    found = read(anthropic, messages=[{"role": "user", "content": [block, {"type": "text", "text": "sum it up"}]}])
    body = json.loads(anthropic.encode_request(found, TARGET).body)
    assert body["messages"][0]["content"][0]["cache_control"] == CACHE


def test_openai_upstream_assistant_refusal_is_kept() -> None:
    request = read(openai, messages=[{"role": "assistant", "content": "a", "refusal": "no"}])
    body = json.loads(openai.encode_request(request, TARGET).body)
    assert body["messages"] == [{"role": "assistant", "content": "a", "refusal": "no"}]
    request = read(openai, messages=[{"role": "assistant", "refusal": "no"}])
    body = json.loads(openai.encode_request(request, TARGET).body)
    assert body["messages"] == [{"role": "assistant", "content": None, "refusal": "no"}]


def test_passthrough_upstream_without_stream_usage_drops_stream_options_unlisted() -> None:
    target = ModelProfile(
        "theirs", overrides=UpstreamOverrides(rejects=("stream_options", "seed", "store"), stream_usage=False)
    )
    options = {"stream": True, "stream_options": {"include_usage": True}, "seed": 1}
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **options}).encode()
    built = pass_through_request(openai, raw, target)
    assert built.dropped_fields == ("seed",)
    assert json.loads(built.body).keys() == {"model", "stream", "messages"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "The body is empty. It must be a JSON object."),
        (b"[1]", "The body must be a JSON object"),
        (b"{", "The body is not valid JSON"),
        (b'{"model": "m" "n"}', "The body is not valid JSON"),
    ],
)
@pytest.mark.parametrize("dialect", [openai, anthropic])
def test_routing_info_body_not_a_json_object_error_says_so(dialect: Dialect, raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, raw)
    assert caught.value.message.startswith(words)
    assert "JSON is malformed" not in caught.value.message


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("temperature", 3, "at most 2"), ("temperature", -1, "at least 0"), ("max_tokens", 0, "at least 1")],
)
def test_routing_info_number_out_of_range_error_states_the_bound(field: str, value: float, words: str) -> None:
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], field: value}).encode()
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(openai, raw)
    assert caught.value.param == field
    assert words in caught.value.message


IMAGE_FIELD = "messages[0].content[0]"
BROKEN_BASE64 = ["", "A", "AAA", "AA=A", "A A=", "ÄÄÄÄ", "%41%41"]


@pytest.mark.parametrize("data", BROKEN_BASE64)
def test_image_with_broken_base64_is_rejected(data: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    for dialect, content, param in (
        (openai, part, f"{IMAGE_FIELD}.image_url.url"),
        (anthropic, {"type": "image", "source": source}, f"{IMAGE_FIELD}.source.data"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read(dialect, messages=[{"role": "user", "content": [content]}])
        assert caught.value.param == param


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "é", "a\n", "n" * 129])
def test_tool_name_that_providers_refuse_is_rejected(name: str) -> None:
    tools = {"function": {"name": name}, "type": "function"}
    for dialect, tool, param in (
        (openai, tools, "tools[0].function.name"),
        (anthropic, {"name": name}, "tools[0].name"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read(dialect, tools=[tool])
        assert caught.value.param == param


def test_tool_name_of_maximum_length_is_accepted() -> None:
    assert read(openai, tools=[{"type": "function", "function": {"name": "n" * 64}}]).tools[0].name == "n" * 64
    assert read(anthropic, tools=[{"name": "n" * 128, "input_schema": {}}]).tools[0].name == "n" * 128


def test_unknown_effort_is_rejected() -> None:
    for dialect, fields, param in (
        (openai, {"reasoning_effort": "extreme"}, "reasoning_effort"),
        (anthropic, {"output_config": {"effort": "extreme"}}, "output_config.effort"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read(dialect, **fields)
        assert caught.value.param == param
