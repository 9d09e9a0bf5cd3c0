"""Measures the client CPU of an SDK call and of a streamed chunk, over a connection that is reused.

    python bench/sdk_client.py [--calls N] [--chunks N] [--rounds N]

The server runs in its own process and sends one chunk per write, so that the client reads them one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time

import svc

STREAM_PAUSE_SECONDS = 0.0005
"""Between two chunks: the client waits for each of them."""


def _completion() -> bytes:
    message = {"role": "assistant", "content": "Hello, how can I help?"}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16},
    }
    encoded = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(encoded) + encoded


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(chunks: int) -> None:
    completion = _completion()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    text = _http_chunk(_event({"content": " word"}))
    end = _http_chunk(_event({}, "stop")) + _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request_head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            length = int(request_head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
            if b'"stream":true' not in await reader.readexactly(length):
                writer.write(completion)
                continue
            writer.write(head)
            for _ in range(chunks):
                writer.write(text)
                await asyncio.sleep(STREAM_PAUSE_SECONDS)
            writer.write(end)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _blocking_cpu(url: str, calls: int) -> tuple[float, float]:
    """Return the CPU seconds of the calls, and of one stream."""
    with svc.Client(gateway_url=url, api_key="k") as client:
        client.chat("Hi")
        list(client.chat("Hi", stream=True))
        began = time.process_time()
        for _ in range(calls):
            client.chat("Hi")
        called = time.process_time()
        for _ in client.chat("Hi", stream=True):
            pass
        return called - began, time.process_time() - called


async def _async_cpu(url: str, calls: int) -> tuple[float, float]:
    async with svc.AsyncClient(gateway_url=url, api_key="k") as client:
        await client.chat("Hi")
        began = time.process_time()
        for _ in range(calls):
            await client.chat("Hi")
        called = time.process_time()
        async for _ in await client.chat("Hi", stream=True):
            pass
        return called - began, time.process_time() - called


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--chunks", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(_serve(args.chunks))
        return
    command = [sys.executable, __file__, "--serve", "--chunks", str(args.chunks)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        for name, measure in (
            ("Client", lambda: _blocking_cpu(url, args.calls)),
            ("AsyncClient", lambda: asyncio.run(_async_cpu(url, args.calls))),
        ):
            rows = [measure() for _ in range(args.rounds)]
            call, chunk = ([row[i] / n * 1e6 for row in rows] for i, n in enumerate((args.calls, args.chunks)))
            print(
                f"{name}: {statistics.median(call):.0f} µs of CPU per call ({min(call):.0f}-{max(call):.0f}), "
                f"{statistics.median(chunk):.0f} µs per chunk ({min(chunk):.0f}-{max(chunk):.0f})"
            )
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
