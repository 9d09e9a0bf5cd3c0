"""All features enabled (hedges, retries, fallbacks, accounts, resuming, cache), with upstreams that fail at random.

A response is either complete or reported as truncated, and each request has one line in the access log.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.e2e.harness import HI, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.http_client import request_bytes
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider, Recorded
from tests.fakes.script import Script, answer, body, end, head, pause, reset, sse, stall
from tests.faults.test_matrix import gauge

TEXT = " ".join(f"word{number}" for number in range(12))
REQUESTS, AT_ONCE = 300, 24
CONFIG = """
[gateway]
first_byte_timeout = 1
idle_timeout = 1
total_timeout = 5
[routing]
retries = 1
hedge_after = 0.1
resume = true
[cache]
enabled = true
[routing.fallbacks]
ma = ["mb", "mc"]
mb = ["mc", "ma"]
[[providers]]
name = "a"
base_url = "{a}/v1"
api_key_env = "FAULTY_KEY"
models = [{{ id = "ma" }}]
accounts = [{{ api_key_env = "FAULTY_KEY", weight = 2 }}]
[[providers]]
name = "b"
dialect = "anthropic"
base_url = "{b}"
api_key_env = "FAULTY_KEY"
models = [{{ id = "mb" }}]
[[providers]]
name = "c"
base_url = "{c}/v1"
api_key_env = "FAULTY_KEY"
models = [{{ id = "mc" }}]
"""


class RandomFaultWire:
    """Responds with TEXT, continuing a prefilled message. About one response in three fails."""

    def __init__(self, wire: OpenAIWire | AnthropicWire, seed: int) -> None:
        self._wire = wire
        self._anthropic = isinstance(wire, AnthropicWire)
        self._random = random.Random(seed)

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        return self._wire.refusal(seen, key)

    def usual(self, seen: Recorded) -> Script:
        request_body, rng = seen.json, self._random
        late = pause(rng.choice([0.0, 0.0, 0.0, 0.15]))
        if rng.random() < 0.12:
            status = rng.choice([429, 500, 503, 529])
            error = anthropic_wire.error() if self._anthropic else openai_wire.error()
            return late + rng.choice([answer(status, error), reset(), stall()])
        breaks = rng.random() < 0.25
        if not request_body.get("stream"):
            whole = anthropic_wire.message(TEXT) if self._anthropic else openai_wire.chat(TEXT)
            half = head(framing="length", length=5000) + body(b'{"id": "x"') + rng.choice([reset(), stall()])
            return late + (half if breaks else answer(200, whole))
        rest = TEXT.removeprefix(prefill_text(request_body))
        events = anthropic_wire.stream(rest) if self._anthropic else openai_wire.stream(rest)
        if breaks:
            cut = rng.randrange(len(events))
            return late + sse(events[:cut], end=rng.choice([reset(), end(), stall(), body(b"data: {") + end()]))
        return late + sse(events, every=rng.choice([0.0, 0.0, 0.01]))


def prefill_text(request_body: dict[str, Any]) -> str:
    """Return the text of the prefilled assistant message."""
    last = request_body["messages"][-1]
    if last["role"] != "assistant":
        return ""
    content = last["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def send_request(gateway: Gateway, number: int) -> str:
    """Send one request, check the response, and return its outcome."""
    model, stream = ("ma", "mb", "mc")[number % 3], number % 5 > 1
    seed = number if number % 10 else 0  # some requests repeat, for the cache
    if number % 13 == 0:
        request_body = {"model": model, "messages": HI, "stream": stream, "seed": number}
        with gateway.raw() as client:
            client.send(request_bytes("POST", "/v1/chat/completions", request_body, key=gateway.key))
            client.socket.recv(1)
        return "left"
    response = gateway.chat(model, stream=stream, seed=seed)
    if response.status != 200:
        assert response.code in ("provider_error", "rate_limit_exceeded")
        assert response.headers["x-should-retry"] == "false"
        return "refused"
    if not stream:
        assert response.json["choices"][0]["message"]["content"] == TEXT
    elif b"[DONE]" in response.body:
        assert text_of(complete_chunks(response.body)) == TEXT
    else:
        chunks, error = broken_stream(response.body)
        assert (TEXT.startswith(text_of(chunks)), error["code"]) == (True, "provider_error")
        return "cut"
    return "resumed" if b": resumed" in response.body else "whole"


def test_gateway_all_features_with_random_faults_reports_every_outcome_truthfully(tmp_path: Path) -> None:
    wires = [OpenAIWire(), AnthropicWire(), OpenAIWire()]
    a, b, c = (FakeProvider(RandomFaultWire(wire, seed)) for seed, wire in enumerate(wires))
    with a, b, c:
        config = CONFIG.format(a=a.address, b=b.address, c=c.address)
        gateway = Gateway(tmp_path, env={"FAULTY_KEY": "sk-fake"}, config=config, is_forked=True).start()
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                seen = Counter(pool.map(lambda number: send_request(gateway, number), range(REQUESTS)))
            for fake in (a, b, c):
                fake.until(lambda fake=fake: not any(one.busy for one in fake.connections), 20)
            page = gateway.request("GET", "/metrics").body.decode()
        finally:
            status = gateway.stop()
    assert status == 0, gateway.log
    assert not [text for fake in (a, b, c) for text in fake.complaints]
    assert seen["whole"] > REQUESTS / 2
    assert min(seen[each] for each in ("left", "refused", "cut", "resumed")) > 0, seen
    assert gauge(page, "svc_open_requests") == gauge(page, "svc_open_streams") == 0
    lines = [json.loads(line) for line in gateway.log.splitlines() if '"/v1/chat/completions"' in line]
    assert len({line["request_id"] for line in lines}) == len(lines) == REQUESTS
    assert sum(line["attempts"] for line in lines) >= sum(len(fake.requests) for fake in (a, b, c))
    assert "internal_error" not in gateway.log
    assert "Traceback" not in gateway.log
