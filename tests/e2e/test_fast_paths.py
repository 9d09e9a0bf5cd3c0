"""Clients, providers and the ledger get the same data with and without SVC_FASTPATH=0.

The bytes are equal too, except for escapes in translated streams: a template keeps those of the provider.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.fast_path_traffic import CONNECTIONS, READ_GAP_SECONDS, Reply, Step, Traffic
from tests.e2e.harness import Gateway, provider_environment
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.http_client import Got, RawClient
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider

STEPS = 50
CONFIG = "[routing]\nretries = 0\nbreaker = false\n"
GENERATED = re.compile(rb'req_[0-9a-f]+|call_[0-9a-f]{32}|(?<="created":)(?:17[1-9]|1[89]|2)[0-9]{7,9}')
"""Generated request ids, tool call ids, and `created` times of translated responses (providers send 170…)."""
ESCAPED_LETTERS = re.compile(rb"(?<!\\)((?:\\\\)*)((?:\\u(?!00[0-7])[0-9a-fA-F]{4}|\\/)+)")
"""Letters outside ASCII and slashes that JSON need not escape."""
CHANGING_HEADERS = ("date", "x-request-id", "request-id", "content-length")
CHANGING_FIELDS = ("time", "request_id", "latency_ms", "ttfb_ms")


@dataclass
class Seen:
    """The observed output of one gateway for the steps of a seed."""

    responses: list[tuple[int, list[tuple[str, str]], bytes, bool]] = field(default_factory=list)
    requests: dict[str, list[tuple[str, str, list[tuple[str, str]], bytes]]] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)


class Side:
    """A gateway with its providers and clients."""

    def __init__(self, gateway: Gateway, fakes: dict[str, FakeProvider]) -> None:
        self.gateway = gateway
        self._fakes = fakes
        self._clients: dict[int, RawClient] = {}
        self._entry_count = 0

    def play(self, steps: list[Step]) -> Seen:
        seen = Seen()
        for fake in self._fakes.values():
            fake.forget()
        for step in steps:
            for reply in step.replies:
                if reply is not None:
                    self._fakes[reply.provider].plays(reply.script)
            seen.responses += [comparable(got) for got in self._send(step)]
        for connection in range(CONNECTIONS):
            self._drop(connection)
        for letter, fake in self._fakes.items():
            seen.requests[letter] = [
                (one.method, one.path, [line for line in one.header_list if line[0] != "host"], one.body)
                for one in fake.requests
            ]
        seen.entries = self._new_entries()
        return seen

    def check_sums(self) -> None:
        """Check that the sums in the database match the entries."""
        rows = self.gateway.request("GET", "/v1/usage?limit=10000", key=self.gateway.key).json["data"]
        sums = self.gateway.request("GET", "/v1/usage?by=model", key=self.gateway.key).json["data"]
        for name in ("prompt_tokens", "completion_tokens", "cost_usd"):
            assert sum(one[name] or 0 for one in sums) == pytest.approx(sum(row[name] or 0 for row in rows))
        assert sum(one["requests"] for one in sums) == len(rows)

    def _send(self, step: Step) -> list[Got]:
        client = self._clients.get(step.connection)
        if client is None:
            client = self._clients[step.connection] = self.gateway.raw()
        for number, data in enumerate(step.writes):
            if number:
                time.sleep(READ_GAP_SECONDS)
            client.send(data)
        if step.disconnect_at:
            got = client.read_until(step.disconnect_at)
            self._drop(step.connection)
            self._wait_left(step.replies[0])
            return [got]
        found: list[Got] = []
        for reply in step.replies:
            if reply is not None and reply.gate is not None:
                client.read_until(b"\n")
                reply.gate.open()
            found.append(client.read())
            if not found[-1].whole or found[-1].headers.get("connection") == "close":
                self._drop(step.connection)
                break
        return found

    def _wait_left(self, reply: Reply | None) -> None:
        """Wait until the gateway has closed the provider's connection."""
        assert reply is not None
        self._fakes[reply.provider].requests[-1].wait_left()

    def _drop(self, connection: int) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            client.socket.close()

    def _new_entries(self) -> list[dict[str, Any]]:
        """Wait for the entry of a final request and return the new entries in request order."""
        last = self.gateway.chat().headers["x-request-id"]
        deadline = time.monotonic() + 10
        while True:
            rows = self.gateway.request("GET", "/v1/usage?limit=10000", key=self.gateway.key).json["data"]
            if any(row["request_id"] == last for row in rows):
                rows.sort(key=lambda row: row["request_id"])
                new, self._entry_count = rows[self._entry_count :], len(rows)
                for attempt in (detail for row in new for detail in row["attempts_detail"] or []):
                    del attempt["ms"], attempt["connect_ms"]
                return [{name: value for name, value in row.items() if name not in CHANGING_FIELDS} for row in new]
            assert time.monotonic() < deadline
            time.sleep(0.05)


def comparable(got: Got) -> tuple[int, list[tuple[str, str]], bytes, bool]:
    headers = [(name, value) for name, value in got.header_list if name not in CHANGING_HEADERS]
    return got.status, headers, GENERATED.sub(b"", ESCAPED_LETTERS.sub(unescape, got.body)), got.whole


def unescape(match: re.Match[bytes]) -> bytes:
    return match[1] + str(json.loads(b'"%b"' % match[2])).encode(errors="surrogatepass")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    """Gateways by the value of SVC_FASTPATH. Each keeps its caches from seed to seed."""
    with ExitStack() as stack:
        found = {}
        for switch in ("0", "1"):
            fakes = {
                "A": stack.enter_context(FakeProvider(OpenAIWire(), key="sk-upstream-a-secret")),
                "B": stack.enter_context(FakeProvider(AnthropicWire(), key="sk-ant-upstream-b-secret")),
            }
            home = tmp_path_factory.mktemp(f"fastpath{switch}")
            env = {**provider_environment(fakes), "SVC_FASTPATH": switch}
            gateway = Gateway(home, env=env, config=CONFIG, is_forked=True).start()
            stack.callback(gateway.stop)
            found[switch] = Side(gateway, fakes)
        yield found
        for side in found.values():
            assert side.gateway.stop() == 0
            assert "Traceback" not in side.gateway.log


SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10)]


@pytest.mark.parametrize("seed", [*range(3), *SLOW_SEEDS])
def test_gateway_random_traffic_same_with_fast_paths_and_without(sides: dict[str, Side], seed: int) -> None:
    with ThreadPoolExecutor() as pool:
        general, fast = pool.map(lambda switch: sides[switch].play(Traffic(seed).steps(STEPS)), ("0", "1"))
    for number, (got, wanted) in enumerate(zip(fast.responses, general.responses, strict=True)):
        assert got == wanted, f"response {number}: {wanted[2][-300:]!r}"
    for letter, got_requests in fast.requests.items():
        for number, (sent, wanted_sent) in enumerate(zip(got_requests, general.requests[letter], strict=True)):
            assert sent == wanted_sent, f"request {number} to {letter}"
    assert len(fast.entries) == len(general.entries)
    for entry, wanted_entry in zip(fast.entries, general.entries, strict=True):
        assert_same_entry(entry, wanted_entry)
    for side in sides.values():
        side.check_sums()


def assert_same_entry(entry: dict[str, Any], wanted: dict[str, Any]) -> None:
    if entry["estimated"] or wanted["estimated"]:
        # For an interrupted stream, the splice counts the tokens that it forwards, and the general path takes a sample.
        for one in (entry, wanted):
            del one["estimated"], one["completion_tokens"], one["cost_usd"]
    assert entry == wanted
