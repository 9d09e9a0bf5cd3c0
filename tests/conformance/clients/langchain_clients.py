"""LangChain: ChatOpenAI for one model, ChatAnthropic for the other."""

import time

import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from report import (
    CLAUDE,
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

MODELS = (f"{GPT} openai", f"{CLAUDE} openai", f"{GPT} anthropic", f"{CLAUDE} anthropic")


def chat(named, key=KEY, **more):
    model, _, kind = named.partition(" ")
    if kind == "anthropic":
        return ChatAnthropic(model=model, api_key=key, base_url=URL, max_retries=0, **more)
    return ChatOpenAI(model=model, api_key=key, base_url=f"{URL}/v1", max_retries=0, **more)


@tool
def weather(city: str, days: int) -> str:
    """The weather in a city."""
    return f"rain in {city} for {days} days"


@tool
def climate(city: str, days: int) -> str:
    """The climate of a city."""
    return f"cold in {city} for {days} days"


class Forecast(BaseModel):
    """The weather forecast."""

    city: str
    days: int


@check("JSON", MODELS)
def whole(named):
    answer = chat(named).invoke("Hi")
    same(answer.text, WORDS)
    assert answer.usage_metadata["total_tokens"] > 0


@check("stream", MODELS)
def stream(named):
    pieces = list(chat(named).stream("Hi"))
    same("".join(piece.text for piece in pieces), WORDS)
    assert len(pieces) > 5


@check("usage in a stream", MODELS)
def usage(named):
    more = {} if named.endswith("anthropic") else {"stream_usage": True}
    whole, *rest = chat(named, **more).stream("Hi")
    for piece in rest:
        whole += piece
    assert whole.usage_metadata["total_tokens"] > 0


@check("tools", MODELS)
def tools(named):
    bound = chat(named).bind_tools([weather, climate])
    question = HumanMessage(WEATHER)
    answer = bound.invoke([question])
    (call,) = answer.tool_calls
    same((call["name"], call["args"]), ("weather", {"city": "Oslo", "days": 3}))
    same(
        bound.invoke([question, answer, ToolMessage(weather.invoke(call).content, tool_call_id=call["id"])]).text, WORDS
    )


@check("tools in a stream", MODELS)
def streamed_tools(named):
    first, *rest = chat(named).bind_tools([weather, climate]).stream(f"[[two]] {WEATHER}")
    for piece in rest:
        first += piece
    same([call["name"] for call in first.tool_calls], ["weather", "climate"])
    same([call["args"] for call in first.tool_calls], [{"city": "Oslo", "days": 3}] * 2)


@check("structured output", MODELS)
def structured(named):
    same(chat(named).with_structured_output(Forecast).invoke(WEATHER), Forecast(city="Oslo", days=3))


CLASSES = {
    "401": "AuthenticationError",
    "403": "PermissionDeniedError",
    "404": "NotFoundError",
    "[[400]]": "BadRequestError",
    "[[429]]": "RateLimitError",
    "[[500]]": "InternalServerError",
}


@check("errors", MODELS)
def errors(named):
    sdk = anthropic if named.endswith("anthropic") else openai
    for failure, kind in CLASSES.items():
        name = named.replace(named.split()[0], "no-such-model") if failure == "404" else named
        one = chat(name, {"401": "wrong", "403": WEAK_KEY}.get(failure, KEY))
        for ask in (one.invoke, lambda text: list(one.stream(text))):
            error = raises(getattr(sdk, kind), lambda: ask(failure))
            same(error.status_code, CODES[failure][0])
            if sdk is openai:
                same(error.code, CODES[failure][1])


@check("cut stream", MODELS)
def cut(named):
    sdk = anthropic if named.endswith("anthropic") else openai
    for how in ("[[cut]]", "[[half]]", "[[broken]]"):
        raises(sdk.APIError, lambda: list(chat(named).stream(how)))


@check("cancellation", MODELS)
def cancel(named):
    for piece in (running := chat(named).stream("[[slow]]")):
        if piece.text:
            break
    running.close()
    time.sleep(0.5)
    whole(named)


@check("embedded model", (LOCAL,))
def embedded(named):
    assert chat(named, max_tokens=20).invoke("Say hello.").text
    assert "".join(piece.text for piece in chat(named, max_tokens=20).stream("Say hello."))


@check("embeddings", EMBEDDINGS)
def embeddings(model):
    # Without `check_embedding_ctx_length=False`, LangChain sends tokens of OpenAI's vocabulary instead of texts.
    one = OpenAIEmbeddings(model=model, api_key=KEY, base_url=f"{URL}/v1", check_embedding_ctx_length=False)
    vectors = one.embed_documents(TEXTS)
    check_vectors(vectors, model)
    same(one.embed_query(TEXTS[0]), vectors[0])
    wrong = OpenAIEmbeddings(model=GPT, api_key=KEY, base_url=f"{URL}/v1", check_embedding_ctx_length=False)
    same(raises(openai.BadRequestError, lambda: wrong.embed_query("x")).param, "model")


run()
