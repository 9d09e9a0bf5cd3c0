"""Responses of a hostile provider: time and memory are bounded, and they end in an error and a ledger entry."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, pause, raw, stall

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
MIB = 1 << 20
HEADS: dict[str, Script] = {
    "a line of 65 KiB": raw(OK + b"x: " + b"a" * 65 * 1024 + b"\r\n\r\n"),
    "a line without an end": raw(OK + b"x: " + b"a" * 8 * MIB) + stall(),
    "a status line without an end": raw(b"HTTP/1.1 200 " + b"a" * 8 * MIB) + stall(),
    "10,000 headers": raw(OK + b"a: b\r\n" * 10_000 + b"content-length: 2\r\n\r\n{}"),
    "headers without an end": raw(OK + b"a: b\r\n" * MIB) + stall(),
    "informational responses without an end": raw(b"HTTP/1.1 100 Continue\r\n\r\n" * (MIB // 4)) + stall(),
    "informational responses with headers": raw(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * (MIB // 8))
    + stall(),
    "an extension without an end": raw(CHUNKED + b"\r\n5;" + b"a" * 8 * MIB) + stall(),
}


def entry_of(gateway: Gateway, request_id: str) -> dict[str, object]:
    """Wait for the ledger entry of a request and return it."""
    deadline = time.monotonic() + 10
    while True:
        for entry in gateway.request("GET", "/v1/usage").json["data"]:
            if entry["request_id"] == request_id:
                return dict(entry)
        assert time.monotonic() < deadline
        time.sleep(0.1)


def memory_of(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", HEADS)
def test_hostile_provider_head_returns_502_with_ledger_entry(
    gateway_without_retries: Gateway, provider_a: FakeProvider, what: str, stream: bool
) -> None:
    gateway = gateway_without_retries
    provider_a.plays(HEADS[what])
    before, began = memory_of(gateway.process.pid), time.monotonic()
    got = gateway.chat(stream=stream)
    assert (got.status, got.code) == (502, "provider_error")
    assert time.monotonic() - began < 10
    assert memory_of(gateway.process.pid) - before < 32 * MIB
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["http_status"], entry["provider"]) == ("error", 502, "openai")
    assert gateway.request("GET", "/health", key=None).status == 200
    assert gateway.chat().status == 200


@pytest.mark.parametrize(
    "end",
    [
        b"1;" + b"a" * 8 * MIB,
        b"0\r\n" + b"x: y\r\n" * MIB,
        b"0\r\nx: " + b"a" * 8 * MIB,
    ],
    ids=["extension", "trailers", "trailer"],
)
def test_hostile_provider_endless_framing_ends_stream_with_error(
    gateway_without_retries: Gateway, provider_a: FakeProvider, end: bytes
) -> None:
    events = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in openai_wire.stream()[:3])
    provider_a.plays(raw(CHUNKED + b"\r\n" + events) + pause(0.3) + raw(end) + stall())
    began = time.monotonic()
    got = gateway_without_retries.chat(stream=True)
    assert got.status == 200
    assert time.monotonic() - began < 10
    last = got.body.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "provider_error"
    assert entry_of(gateway_without_retries, got.headers["x-request-id"])["status"] == "cut"


def test_hostile_provider_large_chunk_extensions_are_accepted(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway()
    content = json.dumps(openai_wire.chat("Hi")).encode()
    chunks = b"".join(b"1;" + b"e" * 1000 + b"\r\n%c\r\n" % byte for byte in content)
    provider_a.plays(
        raw(OK + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    )
    assert gateway.chat().status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_compressed_response_is_an_error_with_its_reason(
    gateway_without_retries: Gateway, provider_a: FakeProvider, stream: bool
) -> None:
    provider_a.plays(answer(200, gzip.compress(b"{}"), headers={"content-encoding": "gzip"}))
    got = gateway_without_retries.chat(stream=stream)
    assert (got.status, got.code) == (502, "provider_error")
    assert "Content-Encoding 'gzip'" in got.json["error"]["message"]
