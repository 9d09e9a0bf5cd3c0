"""Measures the CPU time of the gateway's own work on large request bodies: `python -m bench.large_bodies`.

It reads the routing information, estimates the tokens, and encodes the body for an upstream with another name of the
model. Sockets are not included.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import time
from typing import Any

from bench.varied import Traffic

from svc.dialects.base import ModelProfile, RequestBody
from svc.dialects.openai.routing_info import decode_routing_info
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.token_estimate import estimate_body_tokens

TRAFFIC = Traffic(seed=62, model="m")
PROFILE = ModelProfile("other-name")
MEASURED_BYTES = 50_000_000
"""The bytes that are processed for each body in all its repetitions."""
MIN_REPETITIONS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.large_bodies", description=(__doc__ or "").split("\n")[0])
    parser.parse_args()
    print(f"{'body':<32} {'kB':>7} {'µs':>7} {'ns/byte':>8}")
    for name, messages, fields in (
        ("conversation of an agent", agent_messages(25), {"tools": [tool(number) for number in range(60)]}),
        ("long conversation of an agent", agent_messages(100), {"tools": [tool(number) for number in range(60)]}),
        ("document", [user_message(TRAFFIC.text(1_000_000, 1_000_000))], {}),
        ("screenshot", [user_message(image_parts(110_000))], {}),
        ("photograph", [user_message(image_parts(1_100_000))], {}),
        ("agent with ten screenshots", agent_messages(25) + [user_message(image_parts(110_000))] * 10, {}),
    ):
        raw = json.dumps({"model": "m", "max_tokens": 100, **fields, "messages": messages}).encode()
        seconds = measure(raw)
        print(f"{name:<32} {len(raw) / 1e3:>7.0f} {seconds * 1e6:>7.0f} {seconds * 1e9 / len(raw):>8.2f}")
    return 0


def measure(raw: bytes) -> float:
    """Return the shortest CPU time of a body, in seconds."""
    shortest = float("inf")
    for _ in range(max(MIN_REPETITIONS, MEASURED_BYTES // len(raw))):
        start = time.process_time()
        body = RequestBody(raw)
        routing_info = decode_routing_info(body)
        estimate_body_tokens(body)
        pass_through_request(body, routing_info, PROFILE, ask_usage=False)
        shortest = min(shortest, time.process_time() - start)
    return shortest


def user_message(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def agent_messages(turns: int) -> list[dict[str, Any]]:
    """Return tool calls with their results of up to 20,000 characters."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": TRAFFIC.text(12_000, 12_000)}]
    for number in range(turns):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "tool_1", "arguments": '{"path":"a"}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": TRAFFIC.text(500, 20_000)})
    return messages


def tool(number: int) -> dict[str, Any]:
    properties = {f"option_{index}": {"type": "string", "description": TRAFFIC.text(40, 120)} for index in range(5)}
    parameters = {"type": "object", "properties": properties, "required": ["option_0"]}
    function = {"name": f"tool_{number}", "description": TRAFFIC.text(100, 900), "parameters": parameters}
    return {"type": "function", "function": function}


def image_parts(size: int) -> list[dict[str, Any]]:
    """Return a question and an image of `size` bytes."""
    data = base64.b64encode(random.Random(size).randbytes(size)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return [{"type": "text", "text": "What does it show?"}, image]


if __name__ == "__main__":
    sys.exit(main())
