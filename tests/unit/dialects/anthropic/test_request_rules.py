"""Requests of Anthropic clients for another dialect's upstream: what the Messages API rejects, the gateway rejects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import ENDPOINTS

from svc.dialects import anthropic, openai
from svc.dialects.base import EncodedRequest, ModelProfile, RequestBody
from svc.errors import InvalidRequest

USER = {"role": "user", "content": "Hi"}
TOOL: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "noon"}
TURNS = [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]


def encode(**fields: Any) -> EncodedRequest:
    """Return the request for an OpenAI upstream."""
    endpoint = ENDPOINTS["anthropic"]
    body = RequestBody(json.dumps({"model": "m", "max_tokens": 4096, "messages": [USER], **fields}).encode())
    codec = endpoint.select_codec(openai.dialect, ModelProfile("m"))
    return codec.encode_request(
        body, endpoint.decode_routing_info(body), ModelProfile("m"), lambda: endpoint.decode_request(body)
    )


def check_rejected(param: str, **fields: Any) -> None:
    """The error has the field, and so has the message, since Anthropic's format has no other place for it."""
    with pytest.raises(InvalidRequest) as caught:
        encode(**fields)
    assert caught.value.param == param
    body = json.loads(ENDPOINTS["anthropic"].encode_error(caught.value, "req_1"))
    assert body["error"]["type"] == "invalid_request_error"
    assert param in body["error"]["message"]
    assert len(body["error"]["message"]) < 500


HUGE = "x" * 100_000
WRONG_FIELDS: dict[str, list[dict[str, Any]]] = {
    "tool_choice": [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "now"}},
        {"tool_choice": {"type": "any"}, "tools": []},
        {"tool_choice": "any", "tools": [TOOL]},
        {"tool_choice": [], "tools": [TOOL]},
    ],
    "tool_choice.type": [
        {"tool_choice": {}, "tools": [TOOL]},
        {"tool_choice": {"type": "required"}, "tools": [TOOL]},
        {"tool_choice": {"type": HUGE}, "tools": [TOOL]},
    ],
    "tool_choice.name": [
        {"tool_choice": {"type": "tool"}, "tools": [TOOL]},
        {"tool_choice": {"type": "tool", "name": ""}, "tools": [TOOL]},
        {"tool_choice": {"type": "tool", "name": 5}, "tools": [TOOL]},
        {"tool_choice": {"type": "tool", "name": "other"}, "tools": [TOOL]},
        {"tool_choice": {"type": "tool", "name": HUGE}, "tools": [TOOL]},
    ],
    "tool_choice.disable_parallel_tool_use": [
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}, "tools": [TOOL]}
    ],
    "tools": [{"tools": "now"}, {"tools": TOOL}],
    "tools[0].name": [{"tools": [{**TOOL, "name": name}]} for name in ("", "a b", 5, HUGE)],
    "tools[1].name": [{"tools": [TOOL, {**TOOL, "description": "another"}]}],
    "tools[0].input_schema": [
        {"tools": [{"name": "now"}]},
        {"tools": [{**TOOL, "input_schema": None}]},
        {"tools": [{**TOOL, "input_schema": "object"}]},
    ],
    "tools[0].input_schema.type": [{"tools": [{**TOOL, "input_schema": {"type": "string"}}]}],
    "tools[0].type": [{"tools": [{"type": "hologram", "name": "now"}]}],
    "tools[0].cache_control.type": [{"tools": [{**TOOL, "cache_control": value}]} for value in ({}, {"type": "fast"})],
    "thinking": [{"thinking": value} for value in ("enabled", True, [])],
    "thinking.type": [{"thinking": value} for value in ({}, {"type": 1}, {"type": "deep"}, {"type": HUGE})],
    "thinking.budget_tokens": [
        {"thinking": {"type": "enabled", **value}}
        for value in (
            {},
            {"budget_tokens": None},
            {"budget_tokens": "2048"},
            {"budget_tokens": 2048.5},
            {"budget_tokens": -1},
            {"budget_tokens": 1023},
            {"budget_tokens": 4096},
            {"budget_tokens": 10**30},
        )
    ],
    "thinking.display": [{"thinking": {"type": "adaptive", "display": "all"}}],
    "top_k": [{"top_k": value} for value in (-1, "5", 1.5, [], 2**31)],
    "service_tier": [{"service_tier": value} for value in (5, "", "fast", HUGE, {})],
    "metadata": [{"metadata": value} for value in ("u1", 5, [])],
    "metadata.user_id": [{"metadata": {"user_id": value}} for value in (5, ["u1"])],
    "stop_sequences": [{"stop_sequences": value} for value in ("END", 5, {})],
    "stop_sequences[1]": [{"stop_sequences": ["END", value]} for value in (5, None, "")],
    "cache_control": [{"cache_control": value} for value in ("ephemeral", [])],
    "cache_control.ttl": [{"cache_control": {"type": "ephemeral", "ttl": value}} for value in ("2h", 300)],
    "context_management": [{"context_management": value} for value in ("clear", [])],
    "system": [{"system": value} for value in (5, {})],
    "system[0].type": [{"system": [{"type": "image", "source": {"type": "url", "url": "https://i.example/a.png"}}]}],
    "system[0].cache_control": [{"system": [{"type": "text", "text": "x", "cache_control": "ephemeral"}]}],
}


@pytest.mark.parametrize(
    ("param", "fields"),
    [(param, fields) for param, rows in WRONG_FIELDS.items() for fields in rows],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_translated_request_wrong_field_is_named(param: str, fields: dict[str, Any]) -> None:
    check_rejected(param, **fields)


TEXT = {"type": "text", "text": "x"}
WRONG_BLOCKS: list[tuple[str, list[Any]]] = [
    ("messages[0].content[0].tool_use_id", [{"role": "user", "content": [RESULT]}]),
    ("messages[1].content[0].tool_use_id", [USER, {"role": "user", "content": [RESULT]}]),
    (
        "messages[2].content[1].tool_use_id",
        [*TURNS[:2], {"role": "user", "content": [RESULT, {**RESULT, "tool_use_id": "t2"}]}],
    ),
    ("messages[1].content[0].type", [USER, {"role": "user", "content": [CALL]}]),
    ("messages[2].content[0].type", [*TURNS[:2], {"role": "assistant", "content": [RESULT]}]),
    ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]),
    ("messages[1].content[0].id", [USER, {"role": "assistant", "content": [{**CALL, "id": ""}]}]),
    ("messages[1].content[0].name", [USER, {"role": "assistant", "content": [{**CALL, "name": ""}]}]),
    ("messages[1].content[0].name", [USER, {"role": "assistant", "content": [{**CALL, "name": HUGE}]}]),
    *(
        (f"messages[0].content[0].{field}", [{"role": "user", "content": [block]}])
        for field, block in (
            ("source", {"type": "image"}),
            ("source.media_type", {"type": "image", "source": {"type": "base64", "media_type": HUGE, "data": "AAAA"}}),
            ("source.media_type", {"type": "image", "source": {"type": "base64", "media_type": "png", "data": "AAAA"}}),
            ("citations.enabled", {"type": "document", "citations": {"enabled": "yes"}}),
            ("source.url", {"type": "image", "source": {"type": "url", "url": "file:///x"}}),
            ("source.url", {"type": "document", "source": {"type": "url", "url": "x"}}),
            (
                "source.data",
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "A=A"}},
            ),
            ("cache_control", {**TEXT, "cache_control": "ephemeral"}),
            ("cache_control.type", {**TEXT, "cache_control": {"type": 1}}),
        )
    ),
    *(
        (f"messages[2].content[0].{field}", [*TURNS[:2], {"role": "user", "content": [block]}])
        for field, block in (
            ("cache_control.ttl", {**RESULT, "cache_control": {"type": "ephemeral", "ttl": ""}}),
            ("content[0].cache_control.type", {**RESULT, "content": [{**TEXT, "cache_control": {}}]}),
        )
    ),
]


@pytest.mark.parametrize(("param", "messages"), WRONG_BLOCKS)
def test_translated_request_wrong_block_is_named(param: str, messages: list[Any]) -> None:
    check_rejected(param, messages=messages)


def test_translated_request_document_link_names_field_also_after_system() -> None:
    link = {"type": "document", "source": {"type": "url", "url": "https://d.example/a.pdf"}}
    messages = [USER, {"role": "user", "content": [link]}]
    check_rejected("messages[1].content[0].source.url", messages=messages, system="Be brief.")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": TURNS, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "now"}},
        {"thinking": {"type": "enabled", "budget_tokens": 4095}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}},
        {"thinking": {"type": "enabled", "budget_tokens": 9000}, "tools": [TOOL]},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "between_tools"}},
        {"thinking": None, "service_tier": None, "metadata": None, "top_k": None, "stop_sequences": None},
        {"metadata": {"user_id": None}, "service_tier": "standard_only", "top_k": 0},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "scope": "global"}}]},
        {"tools": [{**TOOL, "input_schema": {}, "type": "custom", "defer_loading": True}]},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_translated_request_valid_fields_are_accepted(fields: dict[str, Any]) -> None:
    assert encode(**fields).body


def test_translated_request_choice_without_tools_is_left_out() -> None:
    for choice in ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "none"}):
        body = json.loads(encode(tool_choice=choice).body)
        assert body.keys() == {"model", "messages", "max_tokens"}


# an OpenAI client's request for an Anthropic upstream

FUNCTION: dict[str, Any] = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def encode_chat(**fields: Any) -> dict[str, Any]:
    request = openai.dialect.decode_request(json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    return dict(json.loads(anthropic.dialect.encode_request(request, ModelProfile("m", max_output_tokens=4096)).body))


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools[1].function.name", {"tools": [FUNCTION, FUNCTION]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice.function.name", {"tool_choice": {"type": "function", "function": {"name": "now"}}}),
        (
            "tool_choice.function.name",
            {"tool_choice": {"type": "function", "function": {"name": HUGE}}, "tools": [FUNCTION]},
        ),
        ("thinking.type", {"thinking": {"type": "auto"}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 512}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("top_k", {"top_k": -2}),
        ("top_k", {"top_k": 2**31}),
        ("seed", {"seed": "7"}),
        ("seed", {"seed": 2**63}),
        ("prediction", {"prediction": "x"}),
        ("web_search_options", {"web_search_options": True}),
        ("tools[0].cache_control.type", {"tools": [{**FUNCTION, "cache_control": {"type": 5}}]}),
        ("messages[0].cache_control.ttl", {"messages": [{**USER, "cache_control": {"type": "ephemeral", "ttl": 5}}]}),
        (
            "messages[0].content[0].cache_control.type",
            {"messages": [{"role": "user", "content": [{**TEXT, "cache_control": {}}]}]},
        ),
        (
            "messages[0].tool_calls[0].function.name",
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": HUGE}}]}]},
        ),
        ("presence_penalty", {"presence_penalty": 3}),
        ("frequency_penalty", {"frequency_penalty": "1"}),
        ("logprobs", {"logprobs": 1}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("logit_bias", {"logit_bias": []}),
        ("store", {"store": "yes"}),
        ("metadata", {"metadata": "x"}),
        ("metadata.a", {"metadata": {"a": 1}}),
        ("service_tier", {"service_tier": 5}),
        ("verbosity", {"verbosity": "chatty"}),
        ("prompt_cache_key", {"prompt_cache_key": 5}),
        ("safety_identifier", {"safety_identifier": 5}),
        ("messages[1].tool_call_id", {"messages": [USER, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}),
        (
            "messages[1].content",
            {
                "messages": [
                    USER,
                    {"role": "system", "content": [{"type": "image_url", "image_url": "https://i.example"}]},
                ]
            },
        ),
    ],
)
def test_chat_request_that_anthropic_rejects_names_the_field(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_chat(**fields)
    assert caught.value.param == param
    assert len(caught.value.message) < 500


def test_chat_request_defaults_of_other_servers_are_left_out() -> None:
    body = encode_chat(top_k=-1, tool_choice="auto", parallel_tool_calls=False)
    assert body.keys() == {"model", "max_tokens", "messages"}
