"""Measures the dialects: µs per streamed event and per request. `python -m bench.dialects`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.codecs import create_stream_transform, decode_routing_info, pass_through_request

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect, ModelProfile
from svc.dialects.stream_transform import StreamTransform

EVENTS = 2000
READ = 64 * 1024


def openai_events() -> tuple[bytes, list[bytes]]:
    def chunk(delta: dict[str, Any]) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "gpt-4o-mini"}
        return b"data: " + json.dumps({**frame, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"

    return chunk({"role": "assistant", "content": ""}) + chunk({"content": "a"}), [
        chunk({"content": f" word{number}"}) for number in range(EVENTS)
    ]


def anthropic_events() -> tuple[bytes, list[bytes]]:
    def event(kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
        return f"event: {kind}\ndata: {data}\n\n".encode()

    def text(word: str) -> bytes:
        return event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})

    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    start = event("message_start", message={**message, "usage": {"input_tokens": 3, "output_tokens": 1}})
    start += event("content_block_start", index=0, content_block={"type": "text", "text": ""}) + text("a")
    return start, [text(f" word{number}") for number in range(EVENTS)]


def best(act: Callable[[], object], times: int = 7) -> float:
    """Return the seconds of the fastest run."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def stream(upstream: Dialect, client: Dialect, *, usage: bool) -> tuple[float, float]:
    """Return µs per event, fed one by one and in reads of 64 KiB."""
    first, events = openai_events() if upstream.name == "openai" else anthropic_events()
    joined = b"".join(events)
    reads = [joined[place : place + READ] for place in range(0, len(joined), READ)]

    def run(parts: list[bytes]) -> None:
        pipe: StreamTransform = create_stream_transform(upstream, client, include_usage=usage)
        pipe.feed(first)
        for part in parts:
            pipe.feed(part)

    return best(lambda: run(events)) / EVENTS * 1e6, best(lambda: run(reads)) / EVENTS * 1e6


def request(size: int) -> bytes:
    words = "The quick brown fox jumps over the lazy dog. " * (size // 45)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": words}], "stream": True}).encode()


def main() -> None:
    print(f"{'µs per event':<36}{'single':>8}{'64 KiB':>8}")
    both = (openai.dialect, anthropic.dialect)
    for upstream in both:
        for client in both:
            for usage in (False, True) if client.name == "openai" else (True,):
                single, coalesced = stream(upstream, client, usage=usage)
                name = f"{upstream.name} -> {client.name}{', with usage' if usage else ''}"
                print(f"{name:<36}{single:>8.2f}{coalesced:>8.2f}")
    print(f"\n{'µs per request':<36}{'1 kB':>8}{'1 MB':>8}")
    acts: dict[str, Callable[[bytes], object]] = {
        "head": partial(decode_routing_info, openai.dialect),
        "pass_request": lambda raw: pass_through_request(openai.dialect, raw, ModelProfile("m")),
        "openai -> anthropic": lambda raw: anthropic.dialect.encode_request(
            openai.dialect.decode_request(raw), ModelProfile("m")
        ),
    }
    bodies = [request(size) for size in (1_000, 1_000_000)]
    for name, act in acts.items():
        taken = [best(partial(act, raw), 50) * 1e6 for raw in bodies]
        print(f"{name:<36}{taken[0]:>8.1f}{taken[1]:>8.1f}")


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m bench.dialects", description=__doc__).parse_args()
    main()
