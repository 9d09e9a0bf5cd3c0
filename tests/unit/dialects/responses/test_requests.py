"""Requests of Responses clients: every understood field with a wrong value, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import encode_responses_request

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect, EncodedRequest, ModelProfile, RequestBody
from svc.errors import InvalidRequest
from svc.gateway.endpoints.responses_api import endpoint
from svc.wire.stored_response import EarlierItems

UPSTREAMS = [openai.dialect, anthropic.dialect]
FUNCTION: dict[str, Any] = {"type": "function", "name": "now"}
SEARCH: dict[str, Any] = {"type": "web_search"}
IMAGE = {"type": "input_image", "image_url": "data:image/tiff;base64,AAAA"}
ARCHIVE = {"type": "input_file", "file_data": "data:application/zip;base64,UEs="}
CALL = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "noon"}
LINK = {"type": "input_file", "file_url": "https://d.example/a.pdf"}


def encode(upstream: Dialect | None = openai.dialect, **fields: Any) -> EncodedRequest:
    raw = json.dumps({"model": "m", "input": "Hi", **fields}).encode()
    return encode_responses_request(upstream, raw, ModelProfile("m"))


def param_of(upstream: Dialect | None = openai.dialect, **fields: Any) -> str:
    """Return the field that the error names."""
    with pytest.raises(InvalidRequest) as caught:
        encode(upstream, **fields)
    assert len(caught.value.message) < 500
    return caught.value.param or ""


WRONG_VALUES: dict[str, list[Any]] = {
    "model": [None, 1, "", "m" * 513],
    "input": [None, 1, "", [], {}, True],
    "input[0]": [["text"], [None], [1]],
    "input[0].type": [
        [{"type": "x" * 100 + "_call"}],
        [{}],
        [{"type": 1}],
        [{"type": ""}],
        [{"type": "new_item"}],
        [{"content": "Hi"}],
    ],
    "input[0].role": [[{"type": "message", "content": "Hi"}], [{"role": "tool", "content": "Hi"}], [{"role": 1}]],
    "instructions": [1, ["Be brief."], {}],
    "stream": ["true", 1],
    "max_output_tokens": [0, -1, 1.5, "9", 2**31],
    "temperature": [-0.1, 2.1, "1", []],
    "top_p": [-0.1, 1.1, "1"],
    "tools": [{}, "x"],
    "tools[0]": [["x"], [None]],
    "tools[0].type": [[{"type": ""}], [{"type": "x" * 65}], [{}], [{"type": None}], [{"type": 1}]],
    "tool_choice": [1, True, "any", [FUNCTION]],
    "parallel_tool_calls": ["true", 1],
    "text": ["x", []],
    "text.format": [{"format": "json"}],
    "text.format.type": [{"format": {}}, {"format": {"type": "xml"}}],
    "text.format.name": [
        {"format": {"type": "json_schema", "schema": {}}},
        {"format": {"type": "json_schema", "schema": {}, "name": "a b"}},
        {"format": {"type": "json_schema", "schema": {}, "name": "n" * 65}},
    ],
    "text.format.schema": [
        {"format": {"type": "json_schema", "name": "x"}},
        {"format": {"type": "json_schema", "name": "x", "schema": "y"}},
    ],
    "text.format.strict": [{"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": "yes"}}],
    "text.verbosity": [{"verbosity": value} for value in (1, "", "chatty", "x" * 100_000)],
    "reasoning": ["high", []],
    "reasoning.effort": [{"effort": 1}, {"effort": "extreme"}, {"effort": ""}],
    "reasoning.summary": [{"summary": value} for value in (True, "", "none", "x" * 100_000)],
    "reasoning.generate_summary": [{"generate_summary": "long"}],
    "store": ["true", 1],
    "background": ["true", 1, True],
    "prompt": ["pmpt_1", {"id": "pmpt_1"}, {}],
    "conversation": [1, "", "conv_1", {}, {"id": "conv_1"}],
    "max_tool_calls": [0, -1, 1.5, "1", []],
    "top_logprobs": [-1, 21, 1, "1"],
    "previous_response_id": [1, ""],
    "include": ["reasoning.encrypted_content", {}],
    "include[0]": [[1], [""], ["everything"], ["x" * 100_000]],
    "include[1]": [["reasoning.encrypted_content", "reasoning"]],
    "metadata": ["x", [], {f"k{number}": "" for number in range(17)}],
    "metadata.a": [{"a": 1}, {"a": None}, {"a": {}}, {"b": "", "a": "x" * 513}, {"a": "x" * 100_000}],
    "metadata." + "k" * 64: [{"k" * 65: ""}, {"k" * 100_000: "x"}],
    "client_metadata": ["x", []],
    "user": [1, {}],
    "safety_identifier": [1],
    "service_tier": [1, "", "express", "x" * 100_000],
    "truncation": [1, "always"],
    "prompt_cache_key": [1, "k" * 65],
    "stream_options": [True, []],
    "stream_options.include_obfuscation": [{"include_obfuscation": "x"}],
}


@pytest.mark.parametrize(
    ("param", "value"), [(param, value) for param, values in WRONG_VALUES.items() for value in values]
)
def test_request_wrong_value_names_field(param: str, value: Any) -> None:
    name = param.partition("[")[0].partition(".")[0]
    assert param_of(**{name: value}) == param


@pytest.mark.parametrize(
    ("param", "item"),
    [
        ("content", {"role": "user"}),
        ("content", {"role": "user", "content": 1}),
        ("content[0]", {"role": "user", "content": ["Hi"]}),
        ("content[0].type", {"role": "user", "content": [{"text": "Hi"}]}),
        ("content[0].type", {"role": "user", "content": [{"type": "input_audio"}]}),
        ("content[0].text", {"role": "user", "content": [{"type": "input_text"}]}),
        ("content[0].text", {"role": "user", "content": [{"type": "input_text", "text": 1}]}),
        ("content[0].type", {"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}),
        ("content[0].type", {"role": "assistant", "content": [{"type": "input_image", "image_url": "https://x.y"}]}),
        ("content[0].refusal", {"role": "assistant", "content": [{"type": "refusal"}]}),
        ("content[0].image_url", {"role": "user", "content": [{"type": "input_image"}]}),
        ("content[0].image_url", {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
        ("content[0].image_url", {"role": "user", "content": [{"type": "input_image", "image_url": {"url": "x"}}]}),
        (
            "content[0].image_url",
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,A=A"}]},
        ),
        ("content[0].file_id", {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}),
        ("content[0]", {"role": "user", "content": [{"type": "input_file"}]}),
        ("content[0].file_data", {"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}),
        ("content[0].file_url", {"role": "user", "content": [{"type": "input_file", "file_url": "file:///x"}]}),
        ("call_id", {"type": "function_call", "name": "now", "arguments": "{}"}),
        ("call_id", {"type": "function_call", "call_id": "", "name": "now", "arguments": "{}"}),
        ("name", {"type": "function_call", "call_id": "c", "arguments": "{}"}),
        ("arguments", {"type": "function_call", "call_id": "c", "name": "now"}),
        ("arguments", {"type": "function_call", "call_id": "c", "name": "now", "arguments": {}}),
        ("namespace", {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}", "namespace": 1}),
        ("input", {"type": "custom_tool_call", "call_id": "c", "name": "note"}),
        ("name", {**CALL, "name": "n" * 513}),
        ("namespace", {**CALL, "namespace": "n" * 513}),
        ("status", {**CALL, "status": 5}),
        ("summary", {"type": "reasoning", "summary": "x"}),
        ("summary[0]", {"type": "reasoning", "summary": ["x"]}),
        ("content[0].detail", {"role": "user", "content": [{**IMAGE, "detail": "best"}]}),
        (
            "content[0].annotations",
            {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": {}}]},
        ),
        ("call_id", {"type": "function_call_output", "output": "x"}),
        ("call_id", {"type": "function_call_output", "call_id": "c", "output": "x"}),
        ("call_id", {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}),
        ("content[0].file_data", {"role": "user", "content": [{"type": "input_file", "file_data": "JVBERi0xLjQ=="}]}),
        (
            "content[0].file_data",
            {"role": "user", "content": [{"type": "input_file", "file_data": "data:application/pdf;base64,A=A"}]},
        ),
        ("content[0].file_url", {"role": "user", "content": [LINK]}),
        ("output", {"type": "function_call_output", "call_id": "c"}),
        ("output", {"type": "function_call_output", "call_id": "c", "output": {}}),
        (
            "output[0].type",
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "refusal", "refusal": ""}]},
        ),
        ("output", {"type": "custom_tool_call_output", "call_id": "c"}),
        ("encrypted_content", {"type": "reasoning", "summary": [], "encrypted_content": 1}),
        ("type", {"type": "item_reference", "id": "msg_1"}),
    ],
)
def test_request_wrong_input_item_names_field(param: str, item: dict[str, Any]) -> None:
    assert param_of(input=[{"role": "user", "content": "Hi"}, item]) == f"input[1].{param}"


@pytest.mark.parametrize(
    ("param", "tools"),
    [
        ("tools[0].name", [{"type": "function"}]),
        ("tools[0].name", [{"type": "function", "name": ""}]),
        ("tools[0].parameters", [{**FUNCTION, "parameters": "x"}]),
        ("tools[0].strict", [{**FUNCTION, "strict": "yes"}]),
        ("tools[0].description", [{**FUNCTION, "description": 1}]),
        ("tools[1].name", [FUNCTION, FUNCTION]),
        ("tools[0].name", [{"type": "custom"}]),
        ("tools[0].format", [{"type": "custom", "name": "x", "format": "lark"}]),
        ("tools[0].format.type", [{"type": "custom", "name": "x", "format": {"type": "xml"}}]),
        ("tools[0].format.syntax", [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "bnf"}}]),
        ("tools[0].format.definition", [{"type": "custom", "name": "x", "format": {"type": "text", "definition": 1}}]),
        ("tools[0].tools", [{"type": "namespace", "name": "crm"}]),
        ("tools[0].tools[0].name", [{"type": "namespace", "name": "crm", "tools": [{"type": "function"}]}]),
        (
            "tools[1].tools[0].name",
            [
                {"type": "function", "name": "a__b"},
                {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
            ],
        ),
    ],
)
def test_request_wrong_tool_names_field(param: str, tools: list[Any]) -> None:
    assert param_of(tools=tools) == param


@pytest.mark.parametrize(
    ("param", "choice"),
    [
        ("tool_choice.name", {"type": "function"}),
        ("tool_choice.name", {"type": "function", "name": "other"}),
        ("tool_choice.type", {"name": "now"}),
        ("tool_choice", {"type": "web_search"}),
        ("tool_choice", {"type": "mcp", "server_label": "x"}),
        ("tool_choice.mode", {"type": "allowed_tools", "mode": "never", "tools": [FUNCTION]}),
        ("tool_choice.tools", {"type": "allowed_tools", "mode": "auto", "tools": "x"}),
        ("tool_choice.tools[0].name", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}),
        ("tool_choice", {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}),
    ],
)
def test_request_wrong_tool_choice_names_field(param: str, choice: dict[str, Any]) -> None:
    assert param_of(tools=[FUNCTION, SEARCH], tool_choice=choice) == param


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda dialect: dialect.name)
def test_request_tool_choice_required_without_available_tool_returns_400(upstream: Dialect) -> None:
    assert param_of(upstream, tools=[SEARCH], tool_choice="required") == "tool_choice"
    assert "tool_choice" not in json.loads(encode(upstream, tools=[SEARCH], tool_choice="auto").body)


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda dialect: dialect.name)
def test_request_defaults_of_untranslatable_fields_are_accepted(upstream: Dialect) -> None:
    built = encode(upstream, background=False, prompt=None, top_logprobs=0, conversation=None, store=False)
    assert built.dropped_fields == ()


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("text.format.type", {"text": {"format": {"type": "json_object"}}}),
        (
            "input[1].content",
            {"instructions": "x", "input": [{"role": "user", "content": "a"}, {"role": "user", "content": [IMAGE]}]},
        ),
        (
            "input[3].arguments",
            {
                "input": [
                    {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
                    {"role": "user", "content": "a"},
                    {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
                    {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "[1]"},
                ]
            },
        ),
        (
            "input[2].output",
            {
                "input": [
                    {"role": "user", "content": "a"},
                    {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": [IMAGE]},
                ]
            },
        ),
        ("input[0].content", {"input": [{"role": "system", "content": [IMAGE]}, {"role": "user", "content": "a"}]}),
        (
            "input[1].content[1].file_data",
            {
                "input": [
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}, ARCHIVE]},
                ]
            },
        ),
        ("input", {"input": [{"role": "user", "content": ""}]}),
    ],
)
def test_request_error_of_anthropic_encoder_names_field_of_client(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(anthropic.dialect, **fields)
    assert caught.value.param == param
    assert "`messages" not in caught.value.message


def test_request_error_after_earlier_items_names_item_of_client() -> None:
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": [IMAGE]}]
    body = RequestBody(json.dumps({"model": "m", "previous_response_id": "resp_1", "input": items}).encode())
    body.earlier_items = EarlierItems(['{"role": "user", "content": "b"}'] * 3, {})
    codec = endpoint.select_codec(anthropic.dialect, ModelProfile("m"))
    routing_info = endpoint.decode_routing_info(body)
    with pytest.raises(InvalidRequest) as caught:
        codec.encode_request(body, routing_info, ModelProfile("m"), lambda: endpoint.decode_request(body))
    assert caught.value.param == "input[1].content"


def test_request_long_names_of_namespaces_stay_unique() -> None:
    members = [{"type": "function", "name": f"{'f' * 50}{number}"} for number in range(3)]
    tools = [{"type": "namespace", "name": "mcp__a_server_with_a_long_name__", "tools": members}]
    names = [tool["function"]["name"] for tool in json.loads(encode(tools=tools).body)["tools"]]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {64}
    call = {"type": "function_call", "call_id": "c", "namespace": tools[0]["name"], "name": members[1]["name"]}
    messages = json.loads(encode(tools=tools, input=[{**call, "arguments": "{}"}]).body)["messages"]
    assert messages[0]["tool_calls"][0]["function"]["name"] == names[1]


def test_request_dropped_fields_have_names_of_client() -> None:
    raw = json.dumps({"model": "m", "input": "Hi", "max_output_tokens": 99999, "reasoning": {"effort": "low"}}).encode()
    profile = ModelProfile("gpt-4o", max_output_tokens=100)
    built = encode_responses_request(openai.dialect, raw, profile)
    assert built.dropped_fields == ("max_output_tokens", "reasoning.effort")


HOSTED_ITEMS: list[dict[str, Any]] = [
    {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
    {"type": "tool_search_call", "arguments": {"q": 1}},
    {"type": "tool_search_output", "tools": []},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x"}]},
    {"type": "mcp_list_tools", "tools": []},
    {"type": "mcp_approval_response", "approve": True},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "additional_tools", "role": "developer", "tools": []},
]


@pytest.mark.parametrize("item", HOSTED_ITEMS, ids=lambda item: item["type"])
def test_request_item_of_hosted_tool_is_left_out_and_named(item: dict[str, Any]) -> None:
    built = encode(input=[{"role": "user", "content": "Hi"}, item])
    assert built.dropped_fields == (f"input[].{item['type']}",)
    assert json.loads(built.body)["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("encrypted", ["", "svc1.", "svc1.!", "svc1.e30=", "svc1." + "A" * 99, "gAAAA", "🦙"])
def test_request_reasoning_of_unknown_origin_is_left_out(encrypted: str) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted}
    built = encode(anthropic.dialect, input=[{"role": "user", "content": "Hi"}, item])
    assert json.loads(built.body)["messages"] == [{"role": "user", "content": "Hi"}]
    assert built.dropped_fields == ()


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda dialect: dialect.name)
def test_request_output_before_its_call_follows_it(upstream: Dialect) -> None:
    turns = [{"role": "user", "content": "a"}, CALL, OUTPUT, {"role": "user", "content": "b"}]
    swapped = [turns[0], OUTPUT, CALL, turns[3]]
    assert encode(upstream, input=swapped).body == encode(upstream, input=turns).body


def test_request_output_of_hosted_call_is_left_out_and_named() -> None:
    call = {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec"}}
    built = encode(input=[{"role": "user", "content": "Hi"}, call, OUTPUT])
    assert built.dropped_fields == ("input[].local_shell_call", "input[].function_call_output")
    assert json.loads(built.body)["messages"] == [{"role": "user", "content": "Hi"}]


def test_request_output_of_call_in_earlier_items_is_accepted() -> None:
    body = RequestBody(json.dumps({"model": "m", "previous_response_id": "resp_1", "input": [OUTPUT]}).encode())
    body.earlier_items = EarlierItems([json.dumps({"role": "user", "content": "b"}), json.dumps(CALL)], {})
    routing_info = endpoint.decode_routing_info(body)
    codec = endpoint.select_codec(openai.dialect, ModelProfile("m"))
    built = codec.encode_request(body, routing_info, ModelProfile("m"), lambda: endpoint.decode_request(body))
    assert [message["role"] for message in json.loads(built.body)["messages"]] == ["user", "assistant", "tool"]


def test_request_hints_at_their_limits_are_accepted() -> None:
    metadata = {f"{number:064}": "v" * 512 for number in range(16)}
    hints = {"prompt_cache_key": "k" * 64, "metadata": metadata, "max_tool_calls": 1, "service_tier": "priority"}
    built = encode(**hints, reasoning={"summary": "auto"}, text={"verbosity": "low"}, include=[])
    assert set(built.dropped_fields) == {"max_tool_calls", "service_tier", "text.verbosity"}


def test_request_native_hints_of_other_servers_are_unchanged() -> None:
    raw = (
        b'{"model": "m", "input": "Hi", "service_tier": "express", "include": ["everything"], "max_tool_calls": 0, '
        b'"metadata": {"a": "%s"}, "text": {"verbosity": "chatty"}, "reasoning": {"summary": "none"}}' % (b"x" * 600)
    )
    assert encode_responses_request(None, raw, ModelProfile("m")).body == raw


@pytest.mark.parametrize("fields", [{"metadata": {"a": 1}}, {"service_tier": 1}, {"max_tool_calls": "1"}])
def test_request_native_wrong_type_names_field(fields: dict[str, Any]) -> None:
    (name, value), *_ = fields.items()
    assert param_of(None, **fields) == ("metadata.a" if isinstance(value, dict) else name)


def test_request_native_is_unchanged_with_fields_that_translation_rejects() -> None:
    raw = b'{"model": "m",  "input": [{"type": "item_reference", "id": "msg_1"}], "background": true, "x": 1}'
    assert encode_responses_request(None, raw, ModelProfile("m")).body == raw


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "n" * 65])
def test_request_tool_name_that_providers_refuse_names_field(name: str) -> None:
    assert param_of(tools=[{**FUNCTION, "name": name}]) == "tools[0].name"
    assert param_of(tools=[{"type": "custom", "name": name}]) == "tools[0].name"


THINKING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "svc1.e30="}
NATIVE_REASONING = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAA"}
QUESTION = {"type": "message", "role": "user", "content": "What is svc1.?"}


def test_request_native_gets_no_reasoning_of_translated_responses() -> None:
    built = encode(None, input=[QUESTION, THINKING, NATIVE_REASONING], temperature=0.5)
    body = json.loads(built.body)
    assert body == {"model": "m", "input": [QUESTION, NATIVE_REASONING], "temperature": 0.5}


def test_request_native_gets_no_reasoning_of_stored_translated_responses() -> None:
    body = RequestBody(json.dumps({"model": "m", "previous_response_id": "resp_1", "input": [QUESTION]}).encode())
    body.earlier_items = EarlierItems([json.dumps(THINKING), json.dumps(NATIVE_REASONING)], {})
    profile = ModelProfile("m", has_responses=True)
    codec = endpoint.select_codec(openai.dialect, profile)
    built = codec.encode_request(body, endpoint.decode_routing_info(body), profile, lambda: None)
    assert [item["type"] for item in json.loads(built.body)["input"]] == ["reasoning", "message"]


def test_request_native_text_about_reasoning_is_unchanged() -> None:
    raw = b'{"model": "m",  "input": [{"role": "user", "content": "svc1. is a prefix"}]}'
    assert encode_responses_request(None, raw, ModelProfile("m")).body == raw


def test_request_item_reference_without_id_names_id() -> None:
    assert param_of(input=[{"type": "item_reference"}]) == "input[0].id"
