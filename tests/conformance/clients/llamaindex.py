"""LlamaIndex: OpenAILike for both models."""

import time

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from report import (
    ARGUMENTS,
    CODES,
    EMBEDDINGS,
    GPT,
    KEY,
    LOCAL,
    TEXTS,
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


def chat(model, key=KEY, **more):
    base = {"api_base": f"{URL}/v1", "api_key": key, "is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(
        model=model, max_retries=0, context_window=8000, should_use_structured_outputs=True, **base, **more
    )


def weather(city: str, days: int) -> str:
    """The weather in a city."""
    return f"rain in {city} for {days} days"


def climate(city: str, days: int) -> str:
    """The climate of a city."""
    return f"cold in {city} for {days} days"


TOOLS = [FunctionTool.from_defaults(weather), FunctionTool.from_defaults(climate)]


class Forecast(BaseModel):
    """The weather forecast."""

    city: str
    days: int


@check("JSON")
def whole(model):
    same(chat(model).complete("Hi").text, WORDS)


@check("stream")
def stream(model):
    pieces = [piece.delta for piece in chat(model).stream_chat([ChatMessage("Hi")])]
    same("".join(pieces), WORDS)
    assert len(pieces) > 5


@check("usage in a stream")
def usage(model):
    options = {"stream_options": {"include_usage": True}}
    *_, last = chat(model, additional_kwargs=options).stream_chat([ChatMessage("Hi")])
    assert last.raw.usage.total_tokens > 0


@check("tools")
def tools(model):
    llm = chat(model)
    answer = llm.chat_with_tools(TOOLS, user_msg=WEATHER)
    (call,) = llm.get_tool_calls_from_response(answer)
    same((call.tool_name, call.tool_kwargs), ("weather", ARGUMENTS))
    result = ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": call.tool_id})
    same(llm.chat_with_tools(TOOLS, chat_history=[ChatMessage(WEATHER), answer.message, result]).message.content, WORDS)


@check("tools in a stream")
def streamed_tools(model):
    llm = chat(model)
    *_, last = llm.stream_chat_with_tools(TOOLS, user_msg=f"[[two]] {WEATHER}", allow_parallel_tool_calls=True)
    calls = llm.get_tool_calls_from_response(last)
    same([(call.tool_name, call.tool_kwargs) for call in calls], [("weather", ARGUMENTS), ("climate", ARGUMENTS)])


@check("structured output")
def structured(model):
    same(chat(model).as_structured_llm(Forecast).complete(WEATHER).raw, Forecast(city="Oslo", days=3))


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
    for failure, kind in CLASSES.items():
        one = chat("no-such-model" if failure == "404" else model, {"401": "wrong", "403": WEAK_KEY}.get(failure, KEY))
        for ask in (one.complete, lambda text: list(one.stream_complete(text))):
            error = raises(kind, lambda: ask(failure))
            same((error.status_code, error.code), CODES[failure])


@check("cut stream")
def cut(model):
    for how in ("[[cut]]", "[[half]]", "[[broken]]"):
        error = raises(openai.APIError, lambda: list(chat(model).stream_chat([ChatMessage(how)])))
        same(error.code, "provider_error")


@check("cancellation")
def cancel(model):
    for piece in (running := chat(model).stream_chat([ChatMessage("[[slow]]")])):
        if piece.delta:
            break
    running.close()
    time.sleep(0.5)
    whole(model)


@check("embedded model", (LOCAL,))
def embedded(model):
    assert chat(model, max_tokens=20).complete("Say hello.").text
    assert "".join(piece.delta for piece in chat(model, max_tokens=20).stream_chat([ChatMessage("Say hello.")]))


@check("embeddings", EMBEDDINGS)
def embeddings(model):
    one = OpenAILikeEmbedding(model_name=model, api_key=KEY, api_base=f"{URL}/v1")
    vectors = one.get_text_embedding_batch(TEXTS)
    check_vectors(vectors, model)
    same(one.get_query_embedding(TEXTS[0]), vectors[0])
    wrong = OpenAILikeEmbedding(model_name=GPT, api_key=KEY, api_base=f"{URL}/v1", max_retries=0)
    same(raises(openai.BadRequestError, lambda: wrong.get_query_embedding("x")).param, "model")


run()
