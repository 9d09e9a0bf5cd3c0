"""Requests, responses and chunks that differ from each other as those of real programs do. Pure functions of a seed.

Lengths, histories, tools, orders of fields, spacing, scripts, escapes, ids, trace headers and random padding vary.
"""

from __future__ import annotations

import json
import random
import string
from typing import Any

WORDS = (
    *("the ", "of ", "to ", "that ", "model ", "answer ", "because ", "function", "(x)", " = ", "1024 ", "result: "),
    *("however, ", "Lisbon ", "\n", "\n\n", "- ", "**bold** ", "`code` ", '"quoted" ', "\t", "café ", "straße", "你好"),
    *("東京 ", "привет ", "🙂", "https://example.org/a?b=c ", '{"k": [1, 2]} ', "</div>", "is", "n't "),
)
CLIENT_HEADERS = (
    (
        *("accept: application/json", "user-agent: OpenAI/Python 2.8.0"),
        *("x-stainless-lang: python", "x-stainless-os: Linux", "x-stainless-arch: x64", "x-stainless-async: false"),
        *("x-stainless-runtime: CPython", "x-stainless-retry-count: 0", "x-stainless-read-timeout: 600"),
    ),
    ("accept: */*", "accept-language: *", "sec-fetch-mode: cors", "user-agent: ai-sdk/6.1", "traceparent: {trace}"),
    ("accept: */*", "user-agent: curl/8.5"),
)
"""The headers of three kinds of clients, without `accept-encoding`: the load generator does not decompress."""


class Traffic:
    """A sequence of requests and responses. Two objects with the same seed give the same sequence."""

    def __init__(self, seed: int, model: str) -> None:
        self._random = random.Random(seed)
        self._model = model

    def text(self, least: int, most: int) -> str:
        """Return words of about `least` to `most` characters in total."""
        wanted, found = self._random.randint(least, most), ""
        while len(found) < wanted:
            found += self._random.choice(WORDS)
        return found

    def body(self, *, stream: bool = False) -> bytes:
        """Return the body of a chat request."""
        messages = [{"role": "system", "content": self.text(20, self._length())}]
        for turn in range(self._random.choice((1, 1, 3, 3, 5, 9, 21))):
            text = self.text(10, self._length())
            content = [{"type": "text", "text": text}] if self._random.random() < 0.2 else text
            messages.append({"role": "assistant" if turn % 2 else "user", "content": content})
        fields: dict[str, Any] = {"model": self._model, "max_tokens": self._random.randint(16, 2000)}
        if self._random.random() < 0.5:
            fields["temperature"] = self._random.randint(0, 9) / 10
        if self._random.random() < 0.3:
            fields["tools"] = [self._tool(number) for number in range(self._random.randint(2, 9))]
        if stream:
            fields["stream"] = True
            if self._random.random() < 0.5:
                fields["stream_options"] = {"include_usage": True}
        fields = {"messages": messages, **fields} if self._random.random() < 0.5 else {**fields, "messages": messages}
        return self._encode(fields)

    def headers(self, client: int) -> str:
        """Return the header lines of a client, of which there are three kinds. Each request has another trace."""
        lines = "".join(f"{line}\r\n" for line in CLIENT_HEADERS[client % len(CLIENT_HEADERS)])
        return lines.format(trace=f"00-{self._random.getrandbits(128):032x}-{self._random.getrandbits(64):016x}-01")

    def response(self, mark: str) -> bytes:
        """Return a complete response, whose text begins with `mark`."""
        message = {"role": "assistant", "content": mark + self.text(100, 3000), "refusal": None, "annotations": []}
        usage = {"prompt_tokens": 19, "completion_tokens": self._random.randint(5, 900)}
        details = {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
        return self._encode(
            {
                **self._identity("chat.completion"),
                "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
                "usage": {**usage, "total_tokens": sum(usage.values()), **details},
                "service_tier": "default",
            }
        )

    def chunks(self, number: int) -> Chunks:
        """Return a stream of `number` text chunks. Its chunks share their id and time, and have random padding."""
        return Chunks(self._random.randrange(2**31), self._identity("chat.completion.chunk"), number)

    def _identity(self, kind: str) -> dict[str, Any]:
        letters = "".join(self._random.choices(string.ascii_letters + string.digits, k=29))
        created = 1_764_000_000 + self._random.randrange(10**6)
        return {"id": f"chatcmpl-{letters}", "object": kind, "created": created, "model": self._model}

    def _tool(self, number: int) -> dict[str, Any]:
        properties = {"path": {"type": "string"}, "limit": {"type": "integer"}}
        parameters = {"type": "object", "properties": properties, "required": ["path"]}
        function = {"name": f"tool_{number}", "description": self.text(40, 400), "parameters": parameters}
        return {"type": "function", "function": function}

    def _length(self) -> int:
        """Most texts are short, few are long."""
        length = self._random.randint(20, 220)
        while length < 12_000 and self._random.random() < 1 / 3:
            length *= 3
        return length

    def _encode(self, value: dict[str, Any]) -> bytes:
        separators = (", ", ": ") if self._random.random() < 1 / 3 else (",", ":")
        return json.dumps(value, separators=separators, ensure_ascii=self._random.random() < 0.2).encode()


class Chunks:
    """The events of one stream of OpenAI's format."""

    def __init__(self, seed: int, identity: dict[str, Any], number: int) -> None:
        self._random = random.Random(seed)
        self._identity = identity
        self.number = number

    def first(self) -> bytes:
        return self._event({"role": "assistant", "content": "", "refusal": None})

    def text(self, mark: str = "") -> bytes:
        """Return a chunk whose text begins with `mark`."""
        return self._event({"content": mark + self._random.choice(WORDS)})

    def last(self, *, usage: bool) -> bytes:
        """Return the chunk with the finish reason, the usage if it was requested, and the end mark."""
        end = self._event({}, "stop")
        if usage:
            counts = {"prompt_tokens": 19, "completion_tokens": self.number, "total_tokens": 19 + self.number}
            end += _encode_event({**self._identity, "choices": [], "usage": counts})
        return end + b"data: [DONE]\n\n"

    def _event(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        padding = "".join(self._random.choices(string.ascii_letters + string.digits, k=self._random.randint(1, 16)))
        return _encode_event({**self._identity, "choices": [choice], "usage": None, "obfuscation": padding})


def _encode_event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
