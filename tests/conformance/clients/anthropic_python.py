"""Common uses of anthropic-sdk-python at /v1/messages."""

import json
import time

import anthropic
from report import ARGUMENTS, CODES, KEY, LOCAL, TOOL_SCHEMA, URL, WEAK_KEY, WEATHER, WORDS, check, raises, run, same

client = anthropic.Anthropic(base_url=URL, api_key=KEY, timeout=60)
TOOLS = [{"name": "weather", "input_schema": TOOL_SCHEMA}, {"name": "climate", "input_schema": TOOL_SCHEMA}]


def ask(model, text, **more):
    return {"model": model, "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


@check("JSON")
def whole(model):
    answer = client.messages.create(**ask(model, "Hi"))
    same((answer.content[0].text, answer.stop_reason), (WORDS, "end_turn"))
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0


@check("stream")
def stream(model):
    with client.messages.stream(**ask(model, "Hi")) as running:
        pieces = list(running.text_stream)
        answer = running.get_final_message()
    same("".join(pieces), WORDS)
    same((answer.content[0].text, answer.stop_reason), (WORDS, "end_turn"))
    assert len(pieces) > 5


@check("usage in a stream")
def usage(model):
    with client.messages.stream(**ask(model, "Hi")) as running:
        found = running.get_final_message().usage
    assert found.input_tokens > 0
    assert found.output_tokens > 0


@check("tools")
def tools(model):
    answer = client.messages.create(**ask(model, WEATHER, tools=TOOLS))
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    same((answer.stop_reason, call.name, call.input), ("tool_use", "weather", ARGUMENTS))
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}
    history = [{"role": "user", "content": WEATHER}, {"role": "assistant", "content": answer.content}, result]
    again = client.messages.create(model=model, max_tokens=200, tools=TOOLS, messages=history)
    same(again.content[0].text, WORDS)


@check("tools in a stream")
def streamed_tools(model):
    with client.messages.stream(**ask(model, f"[[two]] {WEATHER}", tools=TOOLS)) as running:
        calls = [block for block in running.get_final_message().content if block.type == "tool_use"]
    same([(call.name, call.input) for call in calls], [("weather", ARGUMENTS), ("climate", ARGUMENTS)])
    assert len({call.id for call in calls}) == 2


@check("structured output")
def structured(model):
    schema = {**TOOL_SCHEMA, "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = client.messages.create(**ask(model, WEATHER, output_config=form))
    same(json.loads(answer.content[0].text), ARGUMENTS)


CLASSES = {
    "401": (anthropic.AuthenticationError, "authentication_error"),
    "403": (anthropic.PermissionDeniedError, "permission_error"),
    "404": (anthropic.NotFoundError, "not_found_error"),
    "[[400]]": (anthropic.BadRequestError, "invalid_request_error"),
    "[[429]]": (anthropic.RateLimitError, "rate_limit_error"),
    "[[500]]": (anthropic.InternalServerError, "api_error"),
}


@check("errors")
def errors(model):
    keys = {"401": "wrong", "403": WEAK_KEY}
    for failure, (kind, word) in CLASSES.items():
        one = client.with_options(api_key=keys.get(failure, KEY))
        name = "no-such-model" if failure == "404" else model
        for streamed in (False, True):
            error = raises(kind, lambda: one.messages.create(**ask(name, failure, stream=streamed)))
            same((error.status_code, error.body["error"]["type"]), (CODES[failure][0], word))


@check("cut stream")
def cut(model):
    for how in ("[[cut]]", "[[half]]", "[[broken]]"):
        error = raises(anthropic.APIError, lambda: list(client.messages.create(**ask(model, how, stream=True))))
        assert error.body["error"]["type"] in ("api_error", "overloaded_error"), error.body


@check("cancellation")
def cancel(model):
    with client.messages.stream(**ask(model, "[[slow]]")) as running:
        for _ in running.text_stream:
            break
    time.sleep(0.5)
    whole(model)


@check("models", (CLAUDE := "claude-3-5-sonnet-20241022",))
def models(model):
    assert model in {one.id for one in client.models.list()}
    same(client.models.retrieve(model).id, model)


@check("embedded model", (LOCAL,))
def embedded(model):
    assert client.messages.create(**ask(model, "Say hello.")).content[0].text
    with client.messages.stream(**ask(model, "Say hello.")) as running:
        assert "".join(running.text_stream)


run()
