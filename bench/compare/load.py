"""The load generator and the provider, in one thread: `python -m bench.compare.load '{"test": "json", …}'`.

The argument names the ports of the target and of the provider. The output is one JSON object. A response counts only if
it is complete: status 200, and for a stream all chunks and `[DONE]`. With `seed`, requests and responses differ from
each other (`bench.varied`). Otherwise all are alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httptools
import uvloop
from bench.varied import CLIENT_HEADERS, Chunks, Traffic

MODEL = "gpt-4o-mini"
CHUNKS = 50
TEXT = "word " * 60
VARIED = 256
"""Number of the varied requests and responses, which repeat after that."""
MARK = "the text of the provider: "
"""The beginning of each varied response."""
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 60, "total_tokens": 80},
    }
).encode()


class Alike:
    """The chunks of a stream that differ in the time only."""

    def first(self) -> bytes:
        return self._event({"role": "assistant", "content": ""})

    def text(self, mark: str) -> bytes:
        return self._event({"content": mark})

    def last(self, *, usage: bool) -> bytes:
        return self._event({}, "stop") + b"data: [DONE]\n\n"

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        return b"data: " + json.dumps({**base, "choices": [choice]}).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Provider(asyncio.Protocol):
    """One connection of the provider. Responds at once, or in chunks at a fixed rate."""

    every = 0.02
    traffic: Traffic | None = None
    """Makes varied streams. None if all are alike."""
    answers: Iterator[bytes] = itertools.repeat(ANSWER)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        asked = json.loads(self._body) if self._body else {}
        if asked.get("stream"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            stream: Chunks | Alike = self.traffic.chunks(CHUNKS) if self.traffic is not None else Alike()
            self._transport.write(STREAM_HEAD + framed(stream.first()))
            self._go_on(0, asyncio.get_running_loop().time(), stream, usage)
        else:
            answer = next(self.answers)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % len(answer) + answer)

    def _go_on(self, number: int, began: float, stream: Chunks | Alike, usage: bool) -> None:
        if self._transport.is_closing():
            return
        if number == CHUNKS:
            self._transport.write(framed(stream.last(usage=usage)) + b"0\r\n\r\n")
            return
        self._transport.write(framed(stream.text(f"{time.monotonic():.6f} ")))
        loop = asyncio.get_running_loop()
        loop.call_at(began + (number + 1) * self.every, self._go_on, number + 1, began, stream, usage)


@dataclass
class Found:
    """The results."""

    answers: int = 0
    chunks: int = 0
    faults: int = 0
    fault: str | None = None
    """The message of the first fault."""
    delays: list[float] = field(default_factory=list)
    """Seconds: latencies of responses, or delays of chunks."""


class Client(asyncio.Protocol):
    """One connection of a client, with one request at a time."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)

    async def ask(self, request: bytes, stream: bool, seconds: float) -> None:
        """Send a request and wait for the complete response. Raises ConnectionError."""
        self._stream, self._text, self._status, self._chunks = stream, b"", 0, 0
        self._done = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        self.transport.write(request)
        try:
            await asyncio.wait_for(self._done, seconds)
        except TimeoutError:
            raise ConnectionError(f"no complete response within {seconds} s") from None
        finally:
            self._done = None
        if not stream:
            self._found.delays.append(time.monotonic() - began)

    def data_received(self, data: bytes) -> None:
        if self._done is not None:
            self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("closed"))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._text += data
        if not self._stream or self._status != 200:
            return
        now = time.monotonic()
        *whole, self._text = self._text.split(b"\n\n")
        for one in whole:
            self._event(one, now)

    def _event(self, one: bytes, now: float) -> None:
        start = one.find(b'"content":')
        sent = one[start + 10 :].lstrip(b' "').partition(b" ")[0] if start >= 0 else b""
        if sent.replace(b".", b"").isdigit():
            self._chunks += 1
            self._found.delays.append(now - float(sent))
        elif one == b"data: [DONE]":
            self._text = b"[DONE]\n\n"

    def on_message_complete(self) -> None:
        if self._done is None or self._done.done():
            return
        if self._stream:
            good = self._status == 200 and self._chunks == CHUNKS and b"[DONE]" in self._text
        else:
            good = self._status == 200 and (TEXT.encode() in self._text or MARK.encode() in self._text)
        if good:
            self._found.answers += 1
            self._found.chunks += self._chunks
            self._done.set_result(None)
        else:
            self._done.set_exception(
                ConnectionError(f"status {self._status}, {self._chunks} chunks: {self._text[-100:]!r}")
            )


def alike_requests(headers: dict[str, str], stream: bool) -> list[bytes]:
    """Return the only request."""
    body = json.dumps(
        {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "What is a gateway? " * 20}]}
    ).encode()
    return [request_bytes(headers, "", body)]


def varied_requests(traffic: Traffic, headers: dict[str, str], stream: bool, client: int) -> list[bytes]:
    """Return the requests of one kind of client."""
    return [request_bytes(headers, traffic.headers(client), traffic.body(stream=stream)) for _ in range(VARIED)]


def request_bytes(headers: dict[str, str], more: str, body: bytes) -> bytes:
    """Return a request with `headers` and the header lines `more`."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{lines}{more}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run a warm-up, then the work. The caller reads the CPU time between the two lines of the output."""
    loop = asyncio.get_running_loop()
    Provider.every = spec.get("every", 0.02)
    provider = await loop.create_server(Provider, "127.0.0.1", spec["provider"], backlog=1024)
    stream = spec["test"] == "stream"
    if (seed := spec.get("seed")) is None:
        requests = [alike_requests(spec["headers"], stream)]
    else:
        traffic = Provider.traffic = Traffic(seed, MODEL)
        requests = [varied_requests(traffic, spec["headers"], stream, client) for client in range(len(CLIENT_HEADERS))]
        Provider.answers = itertools.cycle([traffic.response(MARK) for _ in range(VARIED)])
    await work(spec | {"seconds": spec["warm"]}, requests, stream, Found())
    print("begin", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    found = Found()
    await work(spec, requests, stream, found)
    provider.close()
    return summary(found)


async def work(spec: dict[str, Any], requests: list[list[bytes]], stream: bool, found: Found) -> None:
    """Run all clients. `requests` has a list for each kind of client."""
    until = time.monotonic() + spec["seconds"]
    each = 1 / spec["rate"] * spec["connections"] if "rate" in spec else 0.0
    await asyncio.gather(
        *(one(spec, requests[at % len(requests)], stream, until, each, at, found) for at in range(spec["connections"]))
    )


async def one(
    spec: dict[str, Any], requests: list[bytes], stream: bool, until: float, each: float, at: int, found: Found
) -> None:
    """One client. Sends a request when it has the response, or `each` seconds after the previous request."""
    loop = asyncio.get_running_loop()
    client: Client | None = None
    turns = itertools.count(at * 7)
    due = time.monotonic() + at / spec["connections"] * (each or Provider.every)
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        try:
            if client is None or client.transport.is_closing():
                _, client = await loop.create_connection(lambda: Client(found), "127.0.0.1", spec["port"])
            await client.ask(requests[next(turns) % len(requests)], stream, spec.get("patience", 20))
        except (ConnectionError, OSError) as error:
            found.faults += 1
            found.fault = found.fault or str(error)[:200]
            client = None
            await asyncio.sleep(0.05)
        due = due + each if each else time.monotonic()
    if client is not None:
        client.transport.abort()


def summary(found: Found) -> dict[str, Any]:
    delays = sorted(found.delays)

    def at(share: float) -> float:
        return round(delays[min(len(delays) - 1, int(len(delays) * share))] * 1000, 3) if delays else 0.0

    return {
        "answers": found.answers,
        "chunks": found.chunks,
        "p50": at(0.5),
        "p99": at(0.99),
        "faults": found.faults,
        "fault": found.fault,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(json.loads(sys.argv[1])))), flush=True)
