"""The console's routes with a large ledger: the time of each, and the cost of chats beside 20 open tabs.

python -m bench.console --folder DIR [--entries 10000000] [--days 30] [--database postgresql://…]
                        [--only fill|routes|tabs] [--tabs 20] [--rounds 5] [--seconds 10] [--realtime]

DIR is created, takes about 0.4 GB for 10 million entries, and is not removed. A second run reuses its data. With
`--database`, the entries are in PostgreSQL, and DIR has only the state of the gateway.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from bench.console_tabs import Bench, Client, measure_tabs
from tests.e2e.harness import provider_environment
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider

from svc.gateway.endpoints.overview import OVERVIEW_SHARED_SECONDS
from svc.keys.lifecycle import NewKey, create_key
from svc.stores.database import journal_lines
from svc.stores.database.factory import database_url, open_database
from svc.stores.database.sql import SqlDatabase

KEYS = 50
"""Keys with entries, each with the same number."""
SEGMENT_ENTRIES = 2000
MODELS = (("gpt-4o-mini", "openai"), ("claude-3-haiku-20240307", "anthropic"), ("llama-3.1-8b-instant", "groq"))
RARE_MODEL_EVERY, ERROR_EVERY = 20_000, 50
LINE = (
    '{"time":"%s","request_id":"req_00000000000000%02x%08x","client_request_id":"client-%d","key_id":"key_%04d",'
    '"key_name":"key %d","tags":{"team":"t%d"},"endpoint":"/v1/chat/completions","model_asked":"%s","model":"%s",'
    '"provider":"%s","attempts":1,"status":"%s","http_status":%d,"prompt_tokens":%d,"cached_tokens":0,'
    '"completion_tokens":%d,"reasoning_tokens":0,"cost_usd":0.%09d,"latency_ms":%d.125,"ttfb_ms":%d.5,'
    '"cache_write_tokens":0,"estimated":false,"from_cache":false,"resumed":0,"code":%s,"attempts_detail":null,'
    '"ephemeral_id":null,"upstream_request_id":null}\n'
)


REQUEST_FILTERS = (
    *("status=error", "status=cut", "model=gpt-4o-mini", "model=rare-model", "provider=groq", "key=key_0007"),
    *("code=provider_error", "code=no_such_code", "http_status=502", "endpoint=/v1/chat/completions", "tag=team:t2"),
    *("status=error&key=key_0007", "status=ok&model=gpt-4o-mini&provider=openai"),
)
USAGE_FILTERS = (
    *("status=error", "status=ok", "status=ok&by=model", "status=client_closed", "model=gpt-4o-mini", "provider=groq"),
    *("key=key_0007", "tag=team:t2", "code=provider_error", "http_status=502"),
)


def fill(database: SqlDatabase, count: int, days: float) -> None:
    """Add entries in the order of time until there are `count`."""
    found = int(database._run_statement("SELECT COALESCE(SUM(count), 0) FROM batches").fetchall()[0][0])
    chance, until = random.Random(1), time.time()
    place, began = database.committed_offset("a-b-bench"), time.monotonic()
    for start in range(found, count, SEGMENT_ENTRIES):
        lines = []
        for number in range(start, min(count, start + SEGMENT_ENTRIES)):
            moment = datetime.fromtimestamp(until - days * 86_400 * (1 - number / count), UTC)
            when = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
            key = number // (SEGMENT_ENTRIES // 4) % KEYS  # a batch has entries of one key
            model, provider = ("rare-model", "openai") if number % RARE_MODEL_EVERY == 7 else MODELS[number % 3]
            failed = number % ERROR_EVERY == 3
            status, http_status, code = ("error", 502, '"provider_error"') if failed else ("ok", 200, "null")
            tokens, latency = chance.randrange(20, 4000), chance.randrange(100, 9000)
            lines.append(
                LINE
                % (
                    *(when, 1, number, number, key, key, key % 5, model, model, provider, status, http_status),
                    *(tokens, tokens // 4, tokens * 700, latency, latency // 3, code),
                )
            )
        data = "".join(lines).encode()
        assert database.ingest("a-b-bench", place, place + len(data), journal_lines.parse_segment(data))
        place += len(data)
        if start // SEGMENT_ENTRIES % 100 == 0:
            rate = (start - found) / (time.monotonic() - began)
            print(f"  {start:>10} entries, {rate:.0f} a second", file=sys.stderr, flush=True)


def measure_routes(client: Client, count: int) -> None:
    """Print the median and the greatest time of each route."""
    newest = json.loads(client.request("GET", "/v1/requests?limit=1"))["data"][0]["request_id"]
    paths = (
        *("/v1/overview", "/v1/requests", "/v1/requests?limit=500", "/v1/requests?since=7d"),
        *(f"/v1/requests?{filter}" for filter in REQUEST_FILTERS),
        *(f"/v1/requests?request=client-{count - 1000}", f"/v1/requests/{newest}"),
        *("/v1/usage/series?by=model", "/v1/usage/series?by=key", "/v1/usage/series?by=tag:team"),
        *("/v1/usage/series?interval=day&since=30d&by=model", "/v1/usage/series?interval=minute&since=59m"),
        *(f"/v1/usage/series?{filter}" for filter in USAGE_FILTERS),
        *("/v1/usage/series?by=model&format=csv", "/v1/usage/series?interval=day&since=30d&status=ok"),
    )
    for path in paths:
        times = []
        for _ in range(7):
            time.sleep(OVERVIEW_SHARED_SECONDS if path == "/v1/overview" else 0)  # not a shared response
            began = time.perf_counter()
            body = client.request("GET", path)
            times.append((time.perf_counter() - began) * 1000)
        found = json.loads(body) if body.startswith(b"{") else {}
        more = "" if not found.get("next_cursor") or found["data"] else f", searched until {found['searched_until']}"
        print(f"{path:55} median {sorted(times)[3]:7.1f} ms, greatest {max(times):7.1f} ms{more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--database", default="")
    parser.add_argument("--only", choices=["fill", "routes", "tabs"])
    parser.add_argument("--tabs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="the time of chats without or with tabs in a round")
    parser.add_argument("--realtime", action="store_true", help="keep other programs from delaying chats; needs root")
    args = parser.parse_args()
    environ = {**os.environ, "SVC_HOME": str(args.folder)}
    if args.database:
        environ["SVC_DATABASE_URL"] = args.database
    args.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = open_database(database_url(environ, args.folder))
    assert isinstance(database, SqlDatabase)
    database.migrate()
    fill(database, args.entries, args.days)
    key = create_key(database, NewKey(name="bench", scopes=("chat", "admin"))).key
    database.close()
    if args.only == "fill":
        return
    with ExitStack() as stack:
        fake = stack.enter_context(FakeProvider(OpenAIWire(), key="sk-upstream-a-secret"))
        # Its connections inherit this. Otherwise the body of a response waits 40 ms for a delayed acknowledgement.
        fake._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ |= provider_environment({"A": fake})
        command = [sys.executable, "-m", "svc", "gateway", "--port", "0"]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        assert process.stdout is not None
        address = process.stdout.readline().split()[1].removesuffix("/v1")
        client = Client(address, key)
        if args.only != "tabs":
            measure_routes(client, args.entries)
        if args.only != "routes":
            bench = Bench(client, Client(fake.address, fake.key), process.pid, args.seconds, is_realtime=args.realtime)
            measure_tabs(bench, address, key, args.tabs, args.rounds)


if __name__ == "__main__":
    main()
