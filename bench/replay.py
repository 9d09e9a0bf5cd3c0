"""Repeats a few requests in lock-step. One process is both client and provider, so nothing depends on time."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.varied import Traffic

KEY = "ratchet-key"
GPT, CLAUDE = "gpt-4o-mini", "claude-3-5-sonnet-20241022"
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o-mini","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Fine."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"total_tokens":11}}'
)
PIECE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[{"index":0,'
    b'"delta":{%b},"logprobs":null,"finish_reason":%b}],"usage":null}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[],"usage":'
    b'{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
OPENAI = (
    PIECE % (b'"role":"assistant","content":""', b"null"),
    PIECE % (b'"content":" word"', b"null"),
    PIECE % (b"", b'"stop"') + USAGE + b"data: [DONE]\n\n",
)
ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"model":"c","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}\n\n',
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\nevent: message_delta\ndata: '
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)


SEED = 1
VARIED = 40
"""Number of the varied requests, which repeat after that."""
VARIED_CHUNKS = 20
"""Text chunks of a varied stream."""


class Replay:
    """One client connection and one provider connection, both in this process."""

    def __init__(self, listener: socket.socket, port: int, seconds: float = 10) -> None:
        """`seconds` is the timeout of each step."""
        self._listener = listener
        self._seconds = seconds
        self._client = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._provider: socket.socket | None = None
        self._turn = 0
        traffic = Traffic(SEED, GPT)
        self._varied = [
            (traffic.headers(1), traffic.body(), traffic.body(stream=True), traffic.response("mark "))
            for _ in range(VARIED)
        ]
        self._varied_events = [varied_events(traffic) for _ in range(VARIED)]

    def close(self) -> None:
        self._client.close()
        if self._provider is not None:
            self._provider.close()

    def json(self) -> None:
        self._ask(GPT, b"")
        self._respond(ANSWER)

    def varied_json(self) -> None:
        headers, body, _, response = self._next_varied()
        self._request(headers, body)
        self._respond(response)

    def _respond(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._say(head % len(body) + body)
        self._read(body[-20:])

    def varied_stream(self) -> None:
        events = self._varied_events[self._turn % VARIED]
        headers, _, body, _ = self._next_varied()
        self._request(headers, body)
        self._say(STREAM_HEAD + chunk(events[0]))
        self._read(events[0][-20:])
        for event in events[1:-1]:
            self._say(chunk(event))
            self._read(event[-20:])
        self.end(events[-1])

    def _next_varied(self) -> tuple[str, bytes, bytes, bytes]:
        """Return header lines, a body, a body that requests a stream, and a response."""
        self._turn += 1
        return self._varied[(self._turn - 1) % VARIED]

    def stream(self) -> None:
        self.begin(GPT, OPENAI[0])
        self.send_chunk(OPENAI[1])
        self.end(OPENAI[2])

    def begin(self, model: str, first: bytes) -> None:
        self._ask(model, b',"stream":true')
        self._say(STREAM_HEAD + chunk(first))
        self._read(b'"role"')

    def send_chunk(self, data: bytes) -> None:
        self._say(chunk(data))
        self._read(b" word")

    def end(self, last: bytes) -> None:
        self._say(chunk(last) + b"0\r\n\r\n")
        self._read(b"0\r\n\r\n")

    def _ask(self, model: str, more: bytes) -> None:
        body = b'{"model":"%b","messages":[{"role":"user","content":"Hello there, how are you?"}]%b}' % (
            model.encode(),
            more,
        )
        self._request("accept: */*\r\n", body)

    def _request(self, headers: str, body: bytes) -> None:
        """Send a request as the client and read it as the provider."""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{headers}"
        self._client.sendall(
            f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        if self._provider is None:
            self._listener.settimeout(self._seconds)
            self._provider, _ = self._listener.accept()
            self._provider.settimeout(self._seconds)
        found, size = b"", 0
        while not size or len(found) < size:
            data = self._provider.recv(65536)
            if not data:
                raise ConnectionError("the gateway closed its connection to the provider")
            found += data
            if not size and (length := CONTENT_LENGTH.search(found)) and b"\r\n\r\n" in found:
                size = found.index(b"\r\n\r\n") + 4 + int(length[1])

    def _say(self, data: bytes) -> None:
        assert self._provider is not None
        self._provider.sendall(data)

    def _read(self, mark: bytes) -> None:
        """Read as the client until `mark` is received."""
        found = b""
        while mark not in found:
            data = self._client.recv(65536)
            if not data:
                raise ConnectionError(f"the gateway closed after {found!r}")
            found += data


def varied_events(traffic: Traffic) -> list[bytes]:
    """Return the events of a varied stream. The last one has the usage and the end mark."""
    chunks = traffic.chunks(VARIED_CHUNKS)
    return [chunks.first(), *[chunks.text() for _ in range(VARIED_CHUNKS)], chunks.last(usage=True)]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextmanager
def gateway(
    folder: Path, provider: socket.socket, command: list[str], source: Path | None = None, seconds: float = 30
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the `svc` command in front of `provider`. Yields its process and port."""
    address = f"http://127.0.0.1:{provider.getsockname()[1]}"
    env = {
        "PATH": os.environ["PATH"],
        "SVC_HOME": str(folder / "home"),
        "SVC_API_KEYS": KEY,
        "PROVIDER_A_BASE_URL": f"{address}/v1",
        "PROVIDER_A_API_KEY": "a",
        "PROVIDER_B_BASE_URL": address,
        "PROVIDER_B_API_KEY": "b",
        "PYTHONHASHSEED": "0",
    }
    if source is not None:
        env["PYTHONPATH"] = str(source)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process, port_of(process, folder / "log", seconds)
        finally:
            process.terminate()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def port_of(process: subprocess.Popen[bytes], log: Path, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while not (said := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the gateway did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
    return int(said.group(1))
