"""The embedded model behind the gateway, with the openai and anthropic SDKs and a third-party model."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.harness import Gateway, run
from tests.e2e.reading import complete_chunks
from tests.e2e.test_openresponses import IMAGE, TEXT_CASES
from tests.openresponses import validate_events, validate_response

MODEL = "smollm2-135m"
IMAGE_URL = IMAGE["image_url"]
ASK = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def embedded(model_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    environ = {"SVC_REGISTRY_ROOT": str(model_home / "registry")}
    home = tmp_path_factory.mktemp("embedded")
    one = Gateway(home, env=environ, config="[local]\nenabled = true\n", is_forked=True).start(60)
    yield one
    assert one.stop() == 0, one.log
    assert "Traceback" not in one.log


def child_of(gateway: Gateway) -> int:
    tasks = Path(f"/proc/{gateway.process.pid}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    (found,) = [pid for pid in children if b"local_model.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def test_transcription_with_embedded_chat_model_returns_404_with_endpoint(embedded: Gateway) -> None:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(32000))
    with pytest.raises(openai.NotFoundError) as caught:
        embedded.openai().audio.transcriptions.create(model=MODEL, file=("a.wav", out.getvalue()))
    assert caught.value.code == "model_not_found"
    assert "Use POST /v1/chat/completions" in caught.value.message


def test_embedded_model_is_listed(embedded: Gateway) -> None:
    listed = {model.id: model.owned_by for model in embedded.openai().models.list()}
    assert listed.pop(MODEL) == "local"
    assert set(listed) <= {"moonshine-tiny-en", "espeak-en-us"}  # if other tests have built them


def test_embedded_model_openai_client_gets_text_and_usage(embedded: Gateway) -> None:
    answer = embedded.openai(timeout=60).chat.completions.create(model=MODEL, messages=ASK, max_tokens=20)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 20


def test_embedded_model_openai_client_gets_stream(embedded: Gateway) -> None:
    stream = embedded.openai(timeout=60).chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ["basic-response", "system-prompt", "multi-turn"])
def test_embedded_model_response_follows_openresponses(embedded: Gateway, case: str, stream: bool) -> None:
    request = {"model": MODEL, "max_output_tokens": 20, "stream": stream, "input": TEXT_CASES[case]}
    with embedded.raw(timeout=60) as raw:
        got = raw.request("POST", "/v1/responses", request, key=embedded.key)
    response = validate_response(validate_events(got.body)[-1]["response"] if stream else got.json)
    assert response.status in ("completed", "incomplete")
    assert {item.type for item in response.output} == {"message"}
    assert response.usage.output_tokens > 0


WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
WEATHER_QUESTION = "What's the weather like in San Francisco?"


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
@pytest.mark.parametrize("stream", [False, True])
def test_embedded_model_openresponses_tool_calling_returns_function_call(
    embedded: Gateway, stream: bool, choice: object
) -> None:
    tools = [{"type": "function", **WEATHER}, {"type": "function", **WEATHER, "name": "get_time"}]
    request = {"model": MODEL, "input": WEATHER_QUESTION, "tools": tools, "tool_choice": choice, "temperature": 0}
    with embedded.raw(timeout=60) as raw:
        got = raw.request("POST", "/v1/responses", {**request, "stream": stream}, key=embedded.key)
    response = validate_response(validate_events(got.body)[-1]["response"] if stream else got.json)
    assert response.status == "completed"
    (call,) = response.output
    assert call.type == "function_call"
    assert call.name == "get_weather" or choice == "required"
    assert "location" in json.loads(call.arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_embedded_model_openai_client_gets_forced_tool_call(embedded: Gateway, stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    fields = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": choice, "temperature": 0}
    ask = [{"role": "user", "content": WEATHER_QUESTION}]
    with embedded.raw(timeout=60) as raw:
        body = {"model": MODEL, "messages": ask, "stream": stream, **fields}
        got = raw.request("POST", "/v1/chat/completions", body, key=embedded.key)
    if not stream:
        assert got.json["choices"][0]["finish_reason"] == "tool_calls"
        (call,) = got.json["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert "location" in json.loads(call["function"]["arguments"])
        return
    deltas = [chunk["choices"][0]["delta"] for chunk in complete_chunks(got.body) if chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    assert len(calls) > 2
    assert "location" in json.loads("".join(call["function"].get("arguments", "") for call in calls))
    assert not any(delta.get("content") for delta in deltas)


def test_embedded_model_anthropic_client_gets_forced_tool_use(embedded: Gateway) -> None:
    tools = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
    got = embedded.anthropic(timeout=60).messages.create(
        model=MODEL,
        max_tokens=200,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": WEATHER_QUESTION}],
        tools=tools,  # type: ignore[arg-type]
        tool_choice={"type": "any"},
    )
    (block,) = got.content
    assert (block.type, got.stop_reason) == ("tool_use", "tool_use")
    assert "location" in block.input


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]}]},
            "messages[0].content",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_URL}]}]},
            "input",
        ),
    ],
)
def test_embedded_model_image_returns_400(embedded: Gateway, path: str, body: dict[str, object], param: str) -> None:
    got = embedded.request("POST", path, {"model": MODEL, **body})
    assert (got.status, got.json["error"]["code"], got.json["error"]["param"]) == (400, "invalid_request", param)
    assert "takes no images" in got.json["error"]["message"]


@pytest.mark.parametrize(("mode", "status"), [("required", 200), ("auto", 400)])
def test_embedded_model_allowed_tools_exclude_the_others_or_return_400(
    embedded: Gateway, mode: str, status: int
) -> None:
    """llama.cpp takes an object as `auto`, and would offer all tools to the model."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("now", "forbidden")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools[:1]}}
    got = embedded.chat(MODEL, tools=tools, tool_choice=choice, max_tokens=60)
    assert got.status == status
    if status == 200:
        (call,) = got.json["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "now"
    else:
        assert got.json["error"]["param"] == "tool_choice.allowed_tools.mode"


@pytest.mark.parametrize(
    ("tools", "param"), [([{}], "tools[0].type"), ("x", "tools"), ([{"type": "function"}], "tools[0].function")]
)
def test_embedded_model_wrong_tools_return_400(embedded: Gateway, tools: object, param: str) -> None:
    """llama.cpp itself answers 500, which would be a failure of the provider."""
    got = embedded.request("POST", "/v1/chat/completions", {"model": MODEL, "messages": ASK, "tools": tools})
    assert (got.status, got.json["error"]["code"], got.json["error"]["param"]) == (400, "invalid_request", param)


def test_embedded_model_anthropic_client_gets_response_and_stream(embedded: Gateway) -> None:
    client = embedded.anthropic(timeout=60)
    answer = client.messages.create(model=MODEL, messages=ASK, max_tokens=20)
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(model=MODEL, messages=ASK, max_tokens=20) as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens > 0


def test_embedded_model_json_schema_constrains_output(embedded: Gateway) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    answer = embedded.openai(timeout=60).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Ann is 7. How old is she?"}],
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
    )
    assert '"age"' in (answer.choices[0].message.content or "")


@pytest.mark.parametrize("schema", [{"schema": 123}, {"schema": []}, {"schema": None}, {}])
def test_embedded_model_invalid_json_schema_returns_400_with_param(
    embedded: Gateway, schema: dict[str, object]
) -> None:
    """llama.cpp itself ignores an invalid schema."""
    form = {"type": "json_schema", "json_schema": {"name": "person", **schema}}
    got = embedded.chat(MODEL, max_tokens=5, response_format=form)
    assert (got.status, got.code) == (400, "invalid_request")
    assert got.json["error"]["param"] == "response_format.json_schema.schema"


UNENFORCEABLE = {"type": "object", "properties": {"code": {"$ref": "#/nowhere"}}}
FUNCTION = {"name": "send", "parameters": UNENFORCEABLE}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            {"messages": ASK, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
            "tools",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": ASK,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": UNENFORCEABLE}},
            },
            "response_format",
        ),
        (
            "/v1/messages",
            {
                "messages": ASK,
                "max_tokens": 9,
                "tools": [{"name": "send", "input_schema": UNENFORCEABLE}],
                "tool_choice": {"type": "any"},
            },
            "tools",
        ),
        (
            "/v1/responses",
            {"input": "Hi", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
            "tools",
        ),
        (
            "/v1/responses",
            {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": UNENFORCEABLE}}},
            "text.format",
        ),
    ],
)
def test_embedded_model_unenforceable_schema_names_its_field(
    embedded: Gateway, path: str, body: dict[str, object], param: str
) -> None:
    got = embedded.request("POST", path, {"model": MODEL, **body})
    error = got.json["error"]
    assert (got.status, error["type"]) == (400, "invalid_request_error")
    assert "JSON schema" in error["message"]
    assert error.get("param", param) == param  # Anthropic's format has no field for it


@pytest.mark.slow
@pytest.mark.parametrize("grammar", ['root ::= "a"{5,2}', 'root ::= ("a" | "b"{9,3})*'])
def test_embedded_model_grammar_of_unlimited_size_cannot_exhaust_memory(embedded: Gateway, grammar: str) -> None:
    """llama.cpp repeats the element about 2^64 times, until it gets no more memory."""
    pid = child_of(embedded)
    soft, _ = resource.prlimit(pid, resource.RLIMIT_DATA)
    assert 0 < soft < 4 << 30
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(embedded.chat, MODEL, max_tokens=4, grammar=grammar)
        while not hostile.done():
            assert embedded.chat(MODEL, max_tokens=2).status in (200, 502)  # 502 at the moment without memory
    got = hostile.result()
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "invalid_request", "grammar")
    assert child_of(embedded) == pid
    assert embedded.chat(MODEL, max_tokens=4).status == 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6},
        {"type": "string", "pattern": "^a{5, 2}$"},
        {"$ref": "#/default", "default": {"type": "string", "minLength": 5.0, "maxLength": 2}},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]},
        {"enum": [f"value-{number}" for number in range(20_000)]},
        {"type": "string", "pattern": f"^{'a?' * 3000}{'a' * 3000}$"},
        {"type": "integer", "minimum": 5.5, "maximum": 5.7},
        {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(3000)}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_embedded_model_hostile_schema_returns_400_with_param(
    embedded: Gateway, schema: dict[str, object], stream: bool
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    got = embedded.chat(MODEL, max_tokens=4, response_format=form, stream=stream)
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "invalid_request", "response_format")
    tools = [{"name": "send", "input_schema": {"type": "object", "properties": {"x": schema}, "required": ["x"]}}]
    body = {"model": MODEL, "messages": ASK, "max_tokens": 9, "tools": tools, "tool_choice": {"type": "any"}}
    assert embedded.request("POST", "/v1/messages", {**body, "stream": stream}).status == 400


def test_embedded_model_prompt_beyond_context_returns_400(embedded: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        embedded.openai(timeout=60).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 9000}]
        )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "some words " * 300_000}]}, "messages"),
        ("/v1/responses", {"input": "some words " * 300_000}, "input"),
    ],
)
def test_embedded_model_prompt_of_megabytes_is_not_sent_to_it(
    embedded: Gateway, path: str, body: dict[str, object], param: str
) -> None:
    got = embedded.request("POST", path, {"model": MODEL, **body})
    assert (got.status, got.json["error"]["param"]) == (400, param)
    assert "8192 tokens: it has about" in got.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "some words " * 300_000}]}),
        ("/v1/responses/input_tokens", {"input": "some words " * 300_000}),
    ],
)
def test_embedded_model_tokens_of_a_prompt_of_megabytes_are_counted(
    embedded: Gateway, path: str, body: dict[str, object]
) -> None:
    got = embedded.request("POST", path, {"model": MODEL, **body})
    assert got.status == 200
    assert got.json["input_tokens"] > 400_000


def test_embedded_model_killed_process_is_restarted(embedded: Gateway) -> None:
    os.kill(child_of(embedded), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        got = embedded.chat(MODEL, max_tokens=5)
        if got.status == 200:
            return
        assert (got.status, got.code) == (502, "provider_error")
        assert "127.0.0.1" not in got.body.decode()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_embedded_model_missing_weights_exits_1(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text("[local]\nenabled = true\n")
    result = run("gateway", "--port", "0", home=tmp_path)
    assert result.returncode == 1
    assert "svc models add smollm2-135m" in result.stderr
