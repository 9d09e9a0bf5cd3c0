"""Common uses of openai-python."""

import asyncio
import json
import time
from array import array

import openai
from pydantic import BaseModel
from report import (
    ARGUMENTS,
    BOTH,
    CODES,
    EMBEDDINGS,
    GPT,
    KEY,
    LOCAL,
    TEXTS,
    TOOL_SCHEMA,
    URL,
    WEAK_KEY,
    WEATHER,
    WORDS,
    check,
    check_vectors,
    raises,
    run,
    same,
)

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, timeout=60)
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": TOOL_SCHEMA}},
    {"type": "function", "function": {"name": "climate", "parameters": TOOL_SCHEMA}},
]


def user(text):
    return [{"role": "user", "content": text}]


@check("JSON")
def whole(model):
    answer = client.chat.completions.create(model=model, messages=user("Hi"))
    same((answer.choices[0].message.content, answer.choices[0].finish_reason), (WORDS, "stop"))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


@check("stream")
def stream(model):
    chunks = list(client.chat.completions.create(model=model, messages=user("Hi"), stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), WORDS)
    same(chunks[-1].choices[0].finish_reason, "stop")
    assert len(chunks) > 5


@check("usage in a stream")
def usage(model):
    stream = client.chat.completions.create(
        model=model, messages=user("Hi"), stream=True, stream_options={"include_usage": True}
    )
    *_, last = stream
    assert last.usage.total_tokens > 0


@check("tools")
def tools(model):
    first = user(WEATHER)
    answer = client.chat.completions.create(model=model, messages=first, tools=TOOLS).choices[0]
    (call,) = answer.message.tool_calls
    same((answer.finish_reason, call.function.name), ("tool_calls", "weather"))
    same(json.loads(call.function.arguments), ARGUMENTS)
    rest = [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    same(
        client.chat.completions.create(model=model, messages=first + rest, tools=TOOLS).choices[0].message.content,
        WORDS,
    )


@check("tools in a stream")
def streamed_tools(model):
    with client.chat.completions.stream(model=model, messages=user(f"[[two]] {WEATHER}"), tools=TOOLS) as running:
        calls = running.get_final_completion().choices[0].message.tool_calls
    same([call.function.name for call in calls], ["weather", "climate"])
    assert len({call.id for call in calls}) == 2
    same([json.loads(call.function.arguments) for call in calls], [ARGUMENTS] * 2)


class Forecast(BaseModel):
    city: str
    days: int
    dry: bool


@check("structured output")
def structured(model):
    answer = client.chat.completions.parse(model=model, messages=user(WEATHER), response_format=Forecast)
    same(answer.choices[0].message.parsed, Forecast(city="Oslo", days=3, dry=True))
    with client.chat.completions.stream(model=model, messages=user(WEATHER), response_format=Forecast) as running:
        same(running.get_final_completion().choices[0].message.parsed, Forecast(city="Oslo", days=3, dry=True))


CLASSES = {
    "401": openai.AuthenticationError,
    "403": openai.PermissionDeniedError,
    "404": openai.NotFoundError,
    "[[400]]": openai.BadRequestError,
    "[[429]]": openai.RateLimitError,
    "[[500]]": openai.InternalServerError,
}


@check("errors")
def errors(model):
    keys = {"401": "wrong", "403": WEAK_KEY}
    for stream, kind in CLASSES.items():
        one = client.with_options(api_key=keys.get(stream, KEY))
        name = "no-such-model" if stream == "404" else model
        for streamed in (False, True):
            error = raises(
                kind, lambda: one.chat.completions.create(model=name, messages=user(stream), stream=streamed)
            )
            same((error.status_code, error.code), CODES[stream])
            assert error.request_id


@check("cut stream")
def cut(model):
    for how in ("[[cut]]", "[[half]]", "[[broken]]"):
        error = raises(
            openai.APIError, lambda: list(client.chat.completions.create(model=model, messages=user(how), stream=True))
        )
        same(error.code, "provider_error")


@check("cancellation")
def cancel(model):
    for chunk in (running := client.chat.completions.create(model=model, messages=user("[[slow]]"), stream=True)):
        if chunk.choices[0].delta.content:
            break
    running.close()
    time.sleep(0.5)
    whole(model)


@check("async cancellation")
async def cancel_task(model):
    other = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)

    async def read():
        async for _ in await other.chat.completions.create(model=model, messages=user("[[slow]]"), stream=True):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await asyncio.sleep(0.5)
    await other.chat.completions.create(model=model, messages=user("Hi"))
    await other.close()


@check("models", (GPT,))
def models(model):
    assert set(BOTH) <= {one.id for one in client.models.list()}
    same(client.models.retrieve(model).id, model)


@check("embedded model", (LOCAL,))
def embedded(model):
    assert (
        client.chat.completions.create(model=model, messages=user("Say hello."), max_tokens=20)
        .choices[0]
        .message.content
    )
    chunks = list(client.chat.completions.create(model=model, messages=user("Say hello."), max_tokens=20, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    error = raises(
        openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=user("Hi"), temperature=9)
    )
    same(error.code, "invalid_request")


@check("embeddings", EMBEDDINGS)
def embeddings(model):
    answer = client.embeddings.create(model=model, input=TEXTS)
    check_vectors([row.embedding for row in answer.data], model)
    same([row.index for row in answer.data], [0, 1, 2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    floats = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    for one, other in zip(answer.data, floats.data, strict=True):
        same(array("f", other.embedding).tobytes(), array("f", one.embedding).tobytes())  # `answer` was base64
    many = client.embeddings.create(model=model, input=["word"] * 2048)
    same(len(many.data), 2048)
    same(
        raises(openai.BadRequestError, lambda: client.embeddings.create(model=model, input=["x"] * 2049)).param, "input"
    )
    same(raises(openai.BadRequestError, lambda: client.embeddings.create(model=GPT, input="x")).param, "model")
    same(
        raises(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=user("Hi"))).param,
        "model",
    )


run()
