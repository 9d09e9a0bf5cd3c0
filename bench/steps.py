"""Measures each step of a request in µs of CPU, in this process and without sockets: `make bench-steps`.

Compare the figures of one step with another, or of one version with the next, on the same machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.codecs import create_stream_transform

from svc import settings, telemetry
from svc.dialects import anthropic, openai
from svc.dialects.base import RequestBody
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.accounting.price import Price
from svc.gateway.endpoints import chat_completions, load_endpoints
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.observability.metrics import RequestMetrics
from svc.gateway.observability.request_log import RequestLog
from svc.gateway.proxy.context import GatewayContext, create_context
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.providers import build_providers
from svc.gateway.routing.router import Router
from svc.gateway.server import response
from svc.gateway.server.connection import ClientConnection
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.upstream.pool import UpstreamPool
from svc.security import Keyring
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.database.factory import open_database
from svc.stores.database.thread import DatabaseThread
from svc.wire.key import ApiKey

ROUNDS = 20_000
CHUNK = (
    b'data: {"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion.chunk","created":1741569952,'
    b'"model":"gpt-4o-mini-2024-07-18","service_tier":"default","system_fingerprint":"fp_44709d6fcb",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
FIRST = CHUNK.replace(b'"content":" word"', b'"role":"assistant","content":""')
BODY = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Hello there, how are you today?"}]%b}'
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o-mini","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Fine."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"total_tokens":11}}'
)


class Wire(asyncio.Transport):
    """A transport that discards its data."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write(self, data: Any) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: there is no buffer."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Ignored: the protocol is called directly."""

    def abort(self) -> None:
        """Ignored: there is no connection."""


class State:
    """Stands in for uvicorn's server state."""

    def __init__(self) -> None:
        self.connections: set[object] = set()


def cost(step: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return µs of CPU for one call, the best of five runs."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(rounds):
            step()
        best = min(best, time.process_time() - began)
    return best / rounds * 1e6


def show(name: str, value: float) -> None:
    print(f"{name:<58}{value:7.2f} µs")


async def main() -> None:
    """Print the table. Bound to one processor, since on two the log thread would disturb this one."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    logging.disable()
    found = settings.load(
        {"PROVIDER_A_API_KEY": "k", "PROVIDER_A_BASE_URL": "http://127.0.0.1:9/v1", "SVC_API_KEYS": "key"}
    )
    offers = [offer for provider in build_providers(found) for offer in build_backends(provider)]
    upstream = UpstreamPool(connect_timeout=5)
    home = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    ledger = Ledger(home, found.ledger, open_database(f"sqlite:///{home / 'svc.db'}"), offers)
    ledger.journal.start_new_file()  # the ingester is left out, because it has its own thread
    ledger.prices.add_fetched_prices(ledger.prices.price_lookups, {("openai", "gpt-4o-mini"): Price(0.15, 0.6)})
    database_thread = DatabaseThread(open_database(f"sqlite:///{home / 'svc.db'}"))
    counters = InProcessCounters()
    limiter = RateLimiter(found.limits, counters, ledger.prices, database_thread)
    lines = telemetry.LineWriter(os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb"))
    metrics, request_log = RequestMetrics(), RequestLog(lines, is_enabled=found.gateway.access_log)
    context = create_context(
        found,
        Router(offers, {}),
        Keyring(["key"]),
        upstream,
        ledger,
        limiter,
        metrics,
        request_log,
        observers=(ledger, metrics, request_log),
    )
    upstream_wire = Wire()
    client = ClientConnection(context, EndpointTable(load_endpoints()), server_state=State())
    client.connection_made(Wire())
    connect(upstream, offers[0].origin, upstream_wire)
    steps(found, context)
    whole = cost(exchange(upstream, client, False), 5000)
    recording = recorded(context, upstream, client)
    under = limited(context, counters, upstream, client)
    show("a request: read, route, send, respond, record", whole)
    show("  of which is recording: entry, price, journal, metrics, log", recording)
    show("  with limits of requests, tokens, concurrency, budget", under)
    show(
        "  so key, accounting and limits add",
        cost(lambda: context.keyring.lookup_cached("key")) + recording + under - whole,
    )
    stream(upstream, client)
    await context.close()
    lines.close()
    shutil.rmtree(home)


def connect(upstream: UpstreamPool, origin: Any, wire: Wire) -> None:
    """Put an idle connection into the pool, as if it had been opened."""
    from svc.gateway.upstream.connection import UpstreamConnection

    connection = UpstreamConnection(upstream, origin)
    connection.connection_made(wire)
    upstream.release(connection)


def steps(found: settings.Settings, context: GatewayContext) -> None:
    """Measure single steps."""
    raw = BODY % b""
    endpoint, body = chat_completions.endpoint, RequestBody(raw)
    codec, routing_info = endpoint.codecs[openai.dialect], endpoint.decode_routing_info(body)
    show("msgspec: decode the whole body", cost(lambda: msgspec.json.decode(raw)))
    show("decode_routing_info", cost(lambda: endpoint.decode_routing_info(RequestBody(raw))))
    target = context.router.route("gpt-4o-mini")[0].profile
    show("encode_request", cost(lambda: codec.encode_request(body, routing_info, target, lambda: None)))
    show("decode_response", cost(lambda: codec.decode_response(ANSWER)))
    show("key lookup", cost(lambda: context.keyring.lookup_cached("key")))
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=False)
    transform.feed(FIRST)
    transform.feed(CHUNK)
    show("stream transform: one chunk, same dialect", cost(lambda: transform.feed(CHUNK)))
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}\n\n'
    other = create_stream_transform(anthropic.dialect, openai.dialect, include_usage=False)
    other.feed(
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
        b'"model":"c","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    )
    show("stream transform: one chunk, Anthropic to OpenAI", cost(lambda: other.feed(delta)))
    show("encode_http_chunk", cost(lambda: response.encode_http_chunk(b"", CHUNK, False)))


def halves(
    upstream: UpstreamPool, client: ClientConnection, stream: bool
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a request, and the head of its response or all of it."""
    body = BODY % (b',"stream":true' if stream else b"")
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\naccept: */*\r\nauthorization: Bearer key\r\n"
    request += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    if stream:
        answered = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        answered += response.encode_http_chunk(b"", FIRST, False) + response.encode_http_chunk(b"", CHUNK, False)
    else:
        answered = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
        )
    (connection,) = upstream._connections

    def ask() -> None:
        client.data_received(request)

    def answer() -> None:
        connection.data_received(answered)

    return ask, answer


def exchange(upstream: UpstreamPool, client: ClientConnection, stream: bool) -> Callable[[], None]:
    ask, answer = halves(upstream, client, stream)

    def run() -> None:
        ask()
        answer()

    return run


def recorded(context: GatewayContext, upstream: UpstreamPool, client: ClientConnection) -> float:
    """Record the request: make the entry, price it, append it to the journal, count it for `/metrics`, log it."""
    ask, answer = halves(upstream, client, False)
    ask()
    (running,) = context.exchanges
    usage = chat_completions.endpoint.codecs[openai.dialect].decode_response(ANSWER).usage
    recording = cost(lambda: running._record_outcome("ok", 200, usage), 5000)
    answer()
    return recording


def limited(
    context: GatewayContext, counters: InProcessCounters, upstream: UpstreamPool, client: ClientConnection
) -> float:
    """Measure the same for a key with every kind of limit."""
    keys = context.keyring._keys
    ((digest, key),) = keys.items()
    keys[digest] = ApiKey(
        key.id, key.name, key.scopes, models=key.models, rpm=10**9, tpm=2 * 10**9, concurrency=1000, budget_usd=1e6
    )
    counters.set_spent(KeyLimits(key_id=key.id, budget_nano_usd=1), 0)
    under = cost(exchange(upstream, client, False), 5000)
    keys[digest] = key
    return under


def stream(upstream: UpstreamPool, client: ClientConnection) -> None:
    """Forward a chunk from one socket to the other."""
    exchange(upstream, client, True)()
    (connection,) = upstream._connections
    chunk = response.encode_http_chunk(b"", CHUNK, False)
    show("a chunk: parse, inspect, frame, forward", cost(lambda: connection.data_received(chunk)))


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__).parse_args()
    asyncio.run(main())
