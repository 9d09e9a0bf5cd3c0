"""The wire format of OpenAI-compatible providers: bodies, chunks, errors and request validation. No I/O.

Streams are lists of whole events, so that a test can leave out, repeat, reorder or cut them.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

from tests.fakes import responses_wire
from tests.fakes.provider import Recorded
from tests.fakes.responses_wire import CREATED, TEXT, Tool
from tests.fakes.script import Script, answer, sse

ID = "chatcmpl-fake1"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
DONE = b"data: [DONE]\n\n"

AUDIO = (b"ID3 first part, with \r\n\r\n and data: [DONE]\n\n", b"\xff\xf3\x00second part", b"\x00" * 5000)
"""Not real audio: the gateway must not read it."""
PROMPT_FIELDS = {
    "/v1/chat/completions": "messages",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
    "/v1/responses/input_tokens": "input",
    "/v1/audio/speech": "input",
}
"""The endpoints, each with the field of its prompt."""
GROQ_REJECTS = (
    *("logprobs", "logit_bias", "top_logprobs", "n"),
    *("messages[].name", "messages[].reasoning_content", "messages[].thinking_blocks", "messages[].refusal"),
    *("messages[].annotations", "messages[].audio"),
)


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chat(
    text: str | None = TEXT,
    *,
    tools: Sequence[Tool] = (),
    finish: str = "stop",
    model: str = "gpt-4o-2024-08-06",
    message: dict[str, Any] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Return a complete chat completion. `message` and `extra` add or replace fields."""
    assistant: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if tools:
        assistant["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
            for one, name, arguments in tools
        ]
    choice = {"index": 0, "message": {**assistant, **(message or {})}, "logprobs": None, "finish_reason": finish}
    base = {"id": ID, "object": "chat.completion", "created": CREATED, "model": model, "system_fingerprint": "fp_1"}
    return {**base, "choices": [choice], "usage": USAGE, **extra}


def embeddings(request: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """Return a vector for each input: its index, `dimensions` long."""
    inputs = request["input"]
    count = len(inputs) if isinstance(inputs, list) and not isinstance(inputs[0], int) else 1
    vectors = [[float(number), *[0.5] * (request.get("dimensions", 3) - 1)] for number in range(count)]
    rows = [
        {
            "object": "embedding",
            "index": number,
            "embedding": base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            if request.get("encoding_format") == "base64"
            else vector,
        }
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 8, "total_tokens": 8}
    return {"object": "list", "data": rows, "model": request["model"], "usage": usage, **extra}


def speech(audio: Sequence[bytes] = AUDIO, *, content_type: str = "audio/mpeg", end: Script | None = None) -> Script:
    """Return a response with audio, one HTTP chunk for each part."""
    return sse(audio, content_type=content_type, end=end)


def speech_event(kind: str, **fields: Any) -> bytes:
    """Return one event of a response with `stream_format` sse."""
    return event({"type": f"speech.audio.{kind}", **fields})


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, *, model: str = "gpt-4o-2024-08-06", **extra: Any
) -> bytes:
    """Return one event with one choice. `extra` adds or replaces fields of the chunk (`usage=None`, `choices=[]`)."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    base = {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": model, "choices": [choice]}
    return event({**base, **extra})


def role() -> bytes:
    return chunk({"role": "assistant", "content": ""})


def words(text: str) -> list[bytes]:
    """Return the chunks of a text, one per word."""
    words = text.split(" ")
    return [chunk({"content": word if at == 0 else " " + word}) for at, word in enumerate(words)]


def usage_chunk() -> bytes:
    return chunk(choices=[], usage=USAGE)


def stream(text: str = TEXT, *, finish: str = "stop", usage: bool = True, done: bool = True) -> list[bytes]:
    """Return all events of a text completion, in the order that OpenAI publishes."""
    events = [role(), *words(text), chunk({}, finish)]
    return events + [usage_chunk()] * usage + [DONE] * done


def tool_stream(tools: Sequence[Tool], *, usage: bool = True, every: int = 5) -> list[bytes]:
    """Return all events of a completion with tool calls. Arguments are split every `every` characters."""
    events = [chunk({"role": "assistant", "content": None})]
    for index, (one, name, arguments) in enumerate(tools):
        events.append(tool_chunk(index, one, name))
        events += [
            tool_chunk(index, arguments=arguments[at : at + every]) for at in range(0, max(1, len(arguments)), every)
        ]
    events.append(chunk({}, "tool_calls"))
    return events + [usage_chunk()] * usage + [DONE]


def tool_chunk(index: int | None, one: str | None = None, name: str | None = None, arguments: str = "") -> bytes:
    """Return one chunk of a tool call. With `index=None` it lacks the index, as with some vendors."""
    call: dict[str, Any] = {} if index is None else {"index": index}
    if one is not None:
        call |= {"id": one, "type": "function"}
    call["function"] = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [call]})


def error(
    message: str = "The fake rejects the request.",
    kind: str = "invalid_request_error",
    *,
    code: str | None = None,
    param: str | None = None,
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class OpenAIWire:
    """A provider with OpenAI's wire format. It answers 400 to the fields in `rejects`. `models` is its model list."""

    def __init__(self, *, rejects: Sequence[str] = (), models: Sequence[str] = ("gpt-4o", "gpt-4o-mini")) -> None:
        self.rejects = tuple(rejects)
        self.models = tuple(models)

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        if seen.headers.get("authorization") != f"Bearer {key}":
            text = "Incorrect API key provided."
            return "wrong key", answer(401, error(text, code="invalid_api_key"))
        if (seen.method, seen.path) == ("GET", "/v1/models"):
            return None
        complaint = self._complaint(seen)
        return (complaint, answer(400, error(complaint))) if complaint else None

    def _complaint(self, seen: Recorded) -> str | None:
        if (seen.method, seen.path) == ("POST", "/v1/audio/transcriptions"):
            is_form = seen.headers.get("content-type", "").startswith("multipart/form-data;")
            return None if is_form and b'name="file"' in seen.body else "no form with a file"
        if seen.method != "POST" or seen.path not in PROMPT_FIELDS:
            return f"no such address: {seen.method} {seen.path}"
        if seen.headers.get("content-type", "").split(";")[0] != "application/json":
            return f"wrong content-type {seen.headers.get('content-type')!r}"
        if "host" not in seen.headers:
            return "no host"
        request = seen.json
        prompt = PROMPT_FIELDS[seen.path]
        if not isinstance(request.get("model"), str) or not request.get(prompt):
            return f"model or {prompt} missing"
        if seen.path == "/v1/chat/completions" and "stream_options" in request and not request.get("stream"):
            return "stream_options without stream"
        if "max_tokens" in request and "max_completion_tokens" in request:
            return "max_tokens beside max_completion_tokens"
        return next((f"rejected: {name}" for name in self.rejects if has(request, name)), None)

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET":
            rows = [{"id": name, "object": "model", "created": CREATED, "owned_by": "fake"} for name in self.models]
            return answer(200, {"object": "list", "data": rows})
        request = seen.json
        if seen.path == "/v1/embeddings":
            return answer(200, embeddings(request))
        if seen.path == "/v1/responses/input_tokens":
            return answer(200, {"object": "response.input_tokens", "input_tokens": 4711})
        if seen.path == "/v1/responses":
            return sse(responses_wire.stream()) if request.get("stream") else answer(200, responses_wire.response())
        if seen.path == "/v1/audio/speech":
            return speech()
        if request.get("stream"):
            return sse(stream(usage=bool((request.get("stream_options") or {}).get("include_usage"))))
        return answer(200, chat())


def has(request: dict[str, Any], name: str) -> bool:
    """Whether the request has the field. `messages[].name` is searched in every message, and `n` of 1 is ignored."""
    if name.startswith("messages[]."):
        field = name.removeprefix("messages[].")
        return any(field in message for message in request.get("messages", ()) if isinstance(message, dict))
    return request.get(name) not in (None, 1) if name == "n" else name in request
