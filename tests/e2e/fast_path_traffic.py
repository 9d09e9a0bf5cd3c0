"""Random traffic for `test_fast_paths.py`: requests of clients, and the provider's response to each.

Most requests repeat, like those of programs, so that every fast path is used: heads, bodies, chunk framing.
The rest only resembles them and must not take a fast path: another field, an escape, a split, an error in the middle.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from tests.e2e.harness import CLAUDE, GPT, KEY
from tests.fakes.provider import head_bytes
from tests.fakes.script import Gate, Head, Script, body, end, fin, head, hold, pause, raw, reset, stall

READ_GAP_SECONDS = 0.003
"""Between two writes that the gateway should read separately."""
CONNECTIONS = 3
HOSTILE_TEXTS = (
    "",
    '"',
    "\\",
    '{"content":"',
    '"}}]}\n\ndata: [DONE]\n\n',
    "\x01",
    "é",
    "好",
    "🦙",
    "\u2028",
    "x" * 60,
    "[DONE]",
)
DAMAGES = (
    (b'" word', b'" "ord'),
    (b'" word', b'" \x01ord'),
    (b'" word', b'" \xfford'),
    (b'" word', b'" \\xord'),
    (b'" word', b'","w":"'),
    (b"null}]", b'"xx"}]'),
    (b"null}]", b"true}]"),
    (b"}}]}", b'},"index":0}]}'),
    (b"}\n\n", b"]\n\n"),
    (b"}}\n\n", b"} \n\n"),
    (b'"index":0', b'"index":1'),
)
"""Replacements, before and after, that turn a text chunk into one that only resembles it."""
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"model": {"type": "string"}}}}}]


@dataclass(frozen=True)
class Reply:
    """A provider's script for one request."""

    provider: Literal["A", "B"]
    script: Script
    gate: Gate | None = None
    """The script continues when the client has received the first event. Otherwise the number of bytes in one read
    would decide whether an error precedes it.
    """


@dataclass(frozen=True)
class Step:
    """Requests on one connection, sent in `writes`."""

    connection: int
    writes: tuple[bytes, ...]
    replies: tuple[Reply | None, ...]
    """The provider's reply to each request. None for a request that the gateway rejects."""
    disconnect_at: bytes = b""
    """The client closes its connection once the response holds these bytes."""


@dataclass(frozen=True)
class Shape:
    """A request that a program sends again and again."""

    path: str
    model: str
    stream: bool
    fields: dict[str, Any]
    system: str
    headers: tuple[str, ...]
    spaced: bool
    request_ids: tuple[str, ...]
    """One of them is sent with each request."""

    @property
    def provider(self) -> Literal["A", "B"]:
        return "A" if self.model == GPT else "B"


class Traffic:
    """The steps of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._shapes = [self._shape() for _ in range(CONNECTIONS)]

    def steps(self, count: int) -> list[Step]:
        return [self._step() for _ in range(count)]

    def _step(self) -> Step:
        random = self._random
        connection = random.randrange(CONNECTIONS)
        if random.random() < 0.15:
            self._shapes[connection] = self._shape()
        shape = self._shapes[connection]
        if shape.stream and random.random() < 0.05:
            return self._abandoned(connection, shape)
        number = 2 if random.random() < 0.05 else 1
        requests = [self._request(shape) for _ in range(number)]
        replies = tuple(
            self._reply(requested_shape) if requested_shape is not None else None for _, requested_shape in requests
        )
        data = b"".join(one for one, _ in requests)
        cuts = random.choice([0, 0, 0, 0, 1, 2])
        return Step(connection, tuple(self._cut(data, cuts)), replies)

    def _abandoned(self, connection: int, shape: Shape) -> Step:
        """The client disconnects in mid-stream."""
        mark = b"DISCONNECT"
        events = self._events(shape, [*self._texts(8), mark.decode()], tools=False)
        marked = next(number for number, event in enumerate(events) if mark in event)
        script = head(content_type="text/event-stream")
        for event in events[: marked + 1]:
            script += body(event) + pause(READ_GAP_SECONDS)
        data = self._http(shape, self._body(shape, "short"))
        return Step(connection, (data,), (Reply(shape.provider, script + stall()),), disconnect_at=mark)

    # requests

    def _shape(self) -> Shape:
        random = self._random
        path = random.choice(["/v1/chat/completions", "/v1/chat/completions", "/v1/messages"])
        stream = random.random() < 0.75
        models = [GPT, CLAUDE] if path == "/v1/chat/completions" else [CLAUDE, GPT]
        model = models[random.random() < 0.25]  # mostly untranslated requests, which the fast paths serve
        fields: dict[str, Any] = {"stream": True} if stream else {}
        if path == "/v1/messages":
            fields["max_tokens"] = 50
        elif stream and random.random() < 0.5:
            fields["stream_options"] = {"include_usage": True}
        if path != "/v1/messages" and random.random() < 0.2:
            fields["tools"] = TOOLS
        if random.random() < 0.2:
            fields["temperature"] = 0.5
        headers = [random.choice([f"Authorization: Bearer {KEY}", f"x-api-key: {KEY}"])]
        if random.random() < 0.3:
            headers.append("anthropic-beta: b1")
        ids = random.choice([["mine"], ["mine"], ["mine", "mind"]])
        system = random.choice(["Sum up.", "é", 'Say "x".', "s" * 3000])
        return Shape(
            path,
            model,
            stream,
            fields,
            system,
            tuple(headers),
            random.random() < 0.5,
            tuple(ids),
        )

    def _request(self, shape: Shape) -> tuple[bytes, Shape | None]:
        """Return one request and its shape. The shape is None if the gateway rejects the request."""
        random = self._random
        fault = random.random()
        if fault >= 0.24:
            return self._http(shape, self._body(shape, self._text())), shape
        content = self._body(shape, "short")  # long texts are not checked for control characters
        if fault < 0.02:
            return self._http(shape, content[:-1]), None
        if fault < 0.04:
            return self._http(shape, content[:-4] + b"\x01" + content[-4:]), None
        if fault < 0.06:
            return self._http(shape, content.replace(b'"role"', b'"r\xffle"', 1)), None
        if fault < 0.08:
            return self._http(shape, self._encode(shape, {"model": 3, "messages": []})), None
        if fault < 0.10:
            return self._http(shape, content.replace(b"user", b"us\\u0065r")), shape
        if fault < 0.12:
            return self._http(shape, content.replace(b'"model"', b'"model" ', 1)), shape
        if fault < 0.15:
            return self._http(shape, content[:-1] + b',"top_p":0.5}'), shape
        if fault < 0.17:
            return self._http(shape, content[:-1] + b',"stream":3}'), None
        if fault < 0.19:
            return self._http(shape, content.replace(b"short", b'sh"rt')), None
        whole = replace(shape, stream=False)  # the length after the text is unchanged
        return self._http(shape, content.replace(b"true", b"null")), whole

    def _body(self, shape: Shape, text: str) -> bytes:
        user = {"role": "user", "content": text}
        if shape.path == "/v1/messages":
            fields: dict[str, Any] = {"model": shape.model, "system": shape.system, **shape.fields, "messages": [user]}
        else:
            messages = [{"role": "system", "content": shape.system}, user]
            fields = {"model": shape.model, "messages": messages, **shape.fields}
        return self._encode(shape, fields)

    def _text(self) -> str:
        random = self._random
        text = " ".join(random.choice(["one", "two", "three", *HOSTILE_TEXTS]) for _ in range(random.randrange(1, 12)))
        size = random.random()
        if size < 0.04:
            return text + "y" * 140_000  # the gateway reads the remainder without its parser
        return text + "y" * 40_000 if size < 0.08 else text or "."

    def _http(self, shape: Shape, content: bytes) -> bytes:
        request_id = self._random.choice(shape.request_ids)
        lines = [f"POST {shape.path} HTTP/1.1", "Host: x", *shape.headers, f"X-Request-Id: {request_id}"]
        lines += [f"Content-Length: {len(content)}", "", ""]
        return "\r\n".join(lines).encode() + content

    def _encode(self, shape: Shape, value: dict[str, Any]) -> bytes:
        separators = (", ", ": ") if shape.spaced else (",", ":")
        return json.dumps(value, separators=separators, ensure_ascii=shape.spaced).encode()

    def _cut(self, data: bytes, cuts: int) -> list[bytes]:
        places = sorted(self._random.sample(range(1, len(data)), cuts))
        edges = [0, *places, len(data)]
        return [data[start:stop] for start, stop in itertools.pairwise(edges)]

    # responses

    def _reply(self, shape: Shape) -> Reply:
        kind = self._random.random()
        if kind < 0.06:
            return Reply(shape.provider, self._error())
        if not shape.stream:
            return Reply(shape.provider, self._whole(shape))
        events = self._events(shape, self._texts(self._random.choice([3, 8, 20])))
        if kind < 0.5:
            return self._broken_stream(shape, events)
        return Reply(shape.provider, self._stream(events))

    def _error(self) -> Script:
        random = self._random
        status = random.choice([400, 404, 429, 500, 503, 529])
        content = random.choice([b'{"error":{"message":"no","type":"t"}}', b"<html>", b"", b'{"error":"x"}'])
        return whole_response(content, status=status, headers=(("retry-after", "1"),))

    def _whole(self, shape: Shape) -> Script:
        random = self._random
        content = self._answer(shape)
        fault = random.random()
        if fault < 0.04:
            return whole_response(content[:-3])
        if fault < 0.08:
            return whole_response(content, length=len(content) + 3) + fin()
        if fault < 0.12:
            return head(headers={"server": "local"}) + body(content) + end()
        if fault < 0.16:
            return raw(raw_response(content) + b"HTTP/1.1 200 OK\r\n")
        if fault < 0.20:
            data = raw_response(content)
            cut = random.randrange(1, len(data))
            return raw(data[:cut]) + pause(READ_GAP_SECONDS) + raw(data[cut:])
        return whole_response(content)

    def _answer(self, shape: Shape) -> bytes:
        text = self._text()[:20_000]
        if shape.provider == "A":
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            fields: dict[str, Any] = {
                **self._stamp("chat.completion"),
                "choices": [choice],
                "usage": self._usage(shape),
            }
        else:
            fields = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": CLAUDE,
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": self._usage(shape),
            }
        return json.dumps(fields).encode()

    def _stamp(self, kind: str) -> dict[str, Any]:
        number = self._random.randrange(10**6)
        return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000 + number, "model": "gpt-4o"}

    def _usage(self, shape: Shape) -> dict[str, int]:
        prompt, completion = self._random.randrange(1, 5000), self._random.randrange(1, 5000)
        if shape.provider == "B":
            return {"input_tokens": prompt, "output_tokens": completion}
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    # streams

    def _stream(self, events: list[bytes]) -> Script:
        """Events: each in its own chunk, several in one chunk, or split anywhere."""
        random = self._random
        framing = random.random()
        if framing < 0.1:
            data = b"".join(events)
            events = self._cut(data, min(len(data) - 1, random.randrange(1, 20)))
        elif framing < 0.25:
            together = random.randrange(2, 5)
            events = [b"".join(events[at : at + together]) for at in range(0, len(events), together)]
        return head(content_type="text/event-stream") + self._chunks(events) + end()

    def _broken_stream(self, shape: Shape, events: list[bytes]) -> Reply:
        random = self._random
        gate, first, rest = Gate(), events[0], events[1:]
        script = head(content_type="text/event-stream") + self._chunks([first]) + hold(gate)
        fault = random.random()
        if fault < 0.1:  # unread data may be lost by a reset
            return Reply(shape.provider, script + reset(), gate)
        if fault < 0.3:
            ending = random.choice([end(), fin(), raw(b"zz\r\n") + fin()])
            return Reply(shape.provider, script + self._chunks(rest[: random.randrange(len(rest))]) + ending, gate)
        texts = [number for number, event in enumerate(rest) if number > 1 and b'" word' in event]
        if fault < 0.35:
            rest[-1] = rest[-1][: random.randrange(1, len(rest[-1]))]
        elif fault < 0.4 or not texts:
            error = b'data: {"error":{"message":"m","code":"c"}}\n\n'
            wrong = random.choice([b"data: {nonsense\n\n", b"data: \xff\n\n", error, b"x\n\n"])
            rest.insert(random.randrange(len(rest) + 1), wrong)
        else:
            number = random.choice(texts)
            rest[number] = rest[number].replace(*random.choice(DAMAGES))
        return Reply(shape.provider, script + self._chunks(rest) + end(), gate)

    def _chunks(self, parts: list[bytes]) -> Script:
        """Each part as an HTTP/1.1 chunk, one or several per read."""
        size_line = self._random.choice([b"%x\r\n", b"%x\r\n", b"%x\r\n", b"%X;a=b\r\n"])
        together = self._random.choice([1, 1, 1, 3])
        chunks = [size_line % len(part) + part + b"\r\n" for part in parts]
        script = Script()
        for at in range(0, len(chunks), together):
            script += raw(b"".join(chunks[at : at + together])) + pause(READ_GAP_SECONDS)
        return script

    def _events(self, shape: Shape, texts: list[str], *, tools: bool = True) -> list[bytes]:
        if shape.provider == "B":
            return self._anthropic_events(shape, texts)
        return self._openai_events(shape, texts, tools=tools and "tools" in shape.fields)

    def _texts(self, count: int) -> list[str]:
        hostile_share = self._random.choice([0.0, 0.0, 0.2])
        return [
            self._random.choice(HOSTILE_TEXTS) if self._random.random() < hostile_share else f" word{number}"
            for number in range(count)
        ]

    def _openai_events(self, shape: Shape, texts: list[str], *, tools: bool) -> list[bytes]:
        random = self._random
        stamp = self._stamp("chat.completion.chunk" if random.random() < 0.9 else "chat.completion.chunX")
        padded, spaced = random.random() < 0.1, random.random() < 0.2
        separators = (", ", ": ") if spaced else (",", ":")

        def event(**fields: Any) -> bytes:
            if padded:
                fields["obfuscation"] = "".join(random.choice("abcXYZ019") for _ in range(random.randrange(8)))
            data = json.dumps({**stamp, **fields}, separators=separators, ensure_ascii=spaced)
            return f"data: {data}\n\n".encode()

        def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> bytes:
            return event(choices=[{"index": index, "delta": delta, "finish_reason": reason}])

        if tools and random.random() < 0.5:
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
            events = [chunk({"role": "assistant", "content": None}), chunk({"tool_calls": [call]})]
            for part in ('{"a', '":', "1", "}"):
                events.append(chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}))
            reason = "tool_calls"
        else:
            events = [chunk({"role": "assistant", "content": ""})]
            events += [chunk({"content": text}) for text in texts]
            reason = random.choice(["stop", "stop", "length"])
        if random.random() < 0.1:
            events.insert(random.randrange(1, len(events)), random.choice([b": ping\n\n", events[0], events[-1]]))
        events.append(chunk({}, reason))
        if random.random() < 0.9:
            events.append(event(choices=[], usage=self._usage(shape)))
        return [*events, b"data: [DONE]\n\n"]

    def _anthropic_events(self, shape: Shape, texts: list[str]) -> list[bytes]:
        message = {"id": f"msg_{self._random.randrange(10**6)}", "type": "message", "role": "assistant"}
        message |= {"model": CLAUDE, "content": [], "stop_reason": None, "stop_sequence": None}
        usage = self._usage(shape)
        events = [anthropic_event("message_start", message={**message, "usage": {**usage, "output_tokens": 1}})]
        kinds = [("text", "text_delta")]
        if self._random.random() < 0.2:
            kinds.insert(0, ("thinking", "thinking_delta"))
        for index, (kind, delta) in enumerate(kinds):
            events.append(anthropic_event("content_block_start", index=index, content_block={"type": kind, kind: ""}))
            if self._random.random() < 0.2:
                events.append(anthropic_event("ping"))
            for text in texts:
                events.append(anthropic_event("content_block_delta", index=index, delta={"type": delta, kind: text}))
            events.append(anthropic_event("content_block_stop", index=index))
        stop = {"stop_reason": "end_turn", "stop_sequence": None}
        events.append(anthropic_event("message_delta", delta=stop, usage={"output_tokens": usage["output_tokens"]}))
        return [*events, anthropic_event("message_stop")]


def anthropic_event(name: str, **fields: Any) -> bytes:
    data = json.dumps({"type": name, **fields}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {name}\ndata: {data}\n\n".encode()


def raw_response(
    content: bytes, *, status: int = 200, headers: tuple[tuple[str, str], ...] = (), length: int | None = None
) -> bytes:
    named = (("server", "local"), ("content-type", "application/json"), *headers)
    return head_bytes(Head(status, named, "length", len(content) if length is None else length)) + content


def whole_response(
    content: bytes, *, status: int = 200, headers: tuple[tuple[str, str], ...] = (), length: int | None = None
) -> Script:
    """Send the response in one write, so that the gateway reads it at once."""
    return raw(raw_response(content, status=status, headers=headers, length=length))
