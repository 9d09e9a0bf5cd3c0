"""Costs of a million keys and ten million entries: start, lookup, memory, `svc usage`, retention, size on disk.

python bench/accounts.py --folder DIR [--keys 1000000] [--entries 10000000] [--database postgresql://…]

DIR is created, takes some gigabytes, and is not removed. A second run reuses its data and only measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from svc.keys.cache import IssuedKeyCache
from svc.stores.database import journal_lines
from svc.stores.database.base import LedgerEntry, StoredKey
from svc.stores.database.factory import database_url, open_database
from svc.stores.database.sql import SqlDatabase
from svc.wire.key import ApiKey

SPENDERS = 1000
"""Number of keys with entries. The first ones have the most."""
DAYS = 90
BATCH_ENTRIES = 490
"""Entries per batch, as in an ingestion with a backlog."""
MODELS = (("gpt-4o-mini", "openai"), ("claude-3-haiku-20240307", "anthropic"), ("llama-3.1-8b-instant", "groq"))


def digest(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4


def make_keys(database: SqlDatabase, count: int) -> None:
    found = count_of(database, "COUNT(*)", "keys")
    for start in range(found, count, 20_000):
        with database._transaction():
            for number in range(start, min(count, start + 20_000)):
                key = StoredKey(
                    id=f"key_{number:016x}",
                    name=f"key {number}",
                    prefix="svc_sk_abcde",
                    digest=digest(number),
                    created=1.0,
                )
                database._put_with_revision(key, database._increment_revision())


def entries(first: int, count: int, whole: int, until: float) -> Iterator[LedgerEntry]:
    """Insert entries in the order of time, over DAYS days. A few keys have most of them."""
    chance = random.Random(first)
    for number in range(first, first + count):
        spender = int(SPENDERS ** chance.random()) - 1
        model, provider = MODELS[spender % 3]
        when = datetime.fromtimestamp(until - DAYS * 86400 * (1 - number / whole), UTC)
        yield LedgerEntry(
            time=when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            request_id=f"req_{number:024x}",
            key_id=f"key_{spender:016x}",
            key_name=f"key {spender}",
            tags={"team": f"t{spender % 20}"},
            endpoint="/v1/chat/completions",
            model_asked=model,
            model=model,
            provider=provider,
            attempts=1,
            status="ok",
            http_status=200,
            prompt_tokens=chance.randrange(20, 4000),
            cached_tokens=0,
            completion_tokens=chance.randrange(1, 900),
            reasoning_tokens=0,
            cost_usd=round(chance.random() / 100, 9),
            latency_ms=round(chance.random() * 9000, 3),
            ttfb_ms=round(chance.random() * 900, 3),
        )


def make_entries(database: SqlDatabase, count: int) -> None:
    found = count_of(database, "COALESCE(SUM(count), 0)", "batches")
    place = database.committed_offset("bench")
    until = time.time()
    began, at = time.monotonic(), found
    while at < count:
        data = b"".join(
            msgspec.json.encode(entry) + b"\n" for entry in entries(at, min(BATCH_ENTRIES, count - at), count, until)
        )
        assert database.ingest("bench", place, place + len(data), journal_lines.parse_segment(data))
        place += len(data)
        at += BATCH_ENTRIES
        if at % 98_000 < BATCH_ENTRIES:
            rate = (at - found) / (time.monotonic() - began)
            print(f"  {at:>10} entries, {rate:.0f} a second", file=sys.stderr, flush=True)


def count_of(database: SqlDatabase, what: str, table: str) -> int:
    return int(database._run_statement(f"SELECT {what} FROM {table}").fetchall()[0][0])


def timed(work: Callable[[], Any], times: int = 5) -> float:
    """Return the median in milliseconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return sorted(found)[times // 2]


def resident(pid: int | str = "self") -> float:
    """Return the resident memory in MiB."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def start(environ: dict[str, str]) -> tuple[float, float]:
    """Return the seconds until `svc gateway` responds, and its MiB two seconds later."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "svc", "gateway", "--port", "0"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[1].removesuffix("/v1")
        urllib.request.urlopen(f"{address}/health", timeout=10).close()
        seconds = time.monotonic() - began
        time.sleep(2)
        return seconds, resident(process.pid)
    finally:
        process.terminate()
        process.wait(60)


async def look_up(url: str, count: int) -> None:
    """Look up 100,000 different keys in sequence, through the path of a request."""
    issued = IssuedKeyCache(open_database(url))
    await issued.start()
    await asyncio.sleep(2)  # the first keys are read in the background
    wanted = [bytes.fromhex(digest(number)) for number in random.Random(7).sample(range(count), min(count, 100_000))]
    before = resident()
    began = time.perf_counter()
    for number in range(0, len(wanted), 200):
        waiting = asyncio.Semaphore(0)
        some = [each for each in wanted[number : number + 200] if issued.get(each) is True]
        for each in some:
            issued.load(each, waiting.release)
        for _ in some:
            await waiting.acquire()
    cold = (time.perf_counter() - began) / len(wanted) * 1e6
    known = next(each for each in reversed(wanted) if isinstance(issued.get(each), ApiKey))
    hot = timed(lambda: [issued.get(known) for _ in range(10_000)]) / 10
    print(f"first use of a key, 200 at a time   {cold:8.1f} µs")
    print(f"cached key                          {hot:8.2f} µs")
    print(f"memory after 100,000 lookups        {resident() - before:8.1f} MiB (50,000 are kept)")
    await issued.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--database", default="")
    args = parser.parse_args()
    environ = {**os.environ, "SVC_HOME": str(args.folder), "SVC_API_KEYS": "bench"}
    if args.database:
        environ["SVC_DATABASE_URL"] = args.database
    args.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = database_url(environ, args.folder)
    database = open_database(url)
    assert isinstance(database, SqlDatabase)
    database.migrate()
    empty = {**environ, "SVC_HOME": str(args.folder / "empty"), "SVC_DATABASE_URL": f"sqlite:///{args.folder}/empty.db"}
    plain = start(empty)
    make_keys(database, args.keys)
    make_entries(database, args.entries)
    full = start(environ)
    print(f"start without keys                 {plain[0]:8.2f} s, {plain[1]:.0f} MiB")
    print(f"start with {args.keys:>9} keys          {full[0]:8.2f} s, {full[1]:.0f} MiB")
    asyncio.run(look_up(url, args.keys))
    week = time.time() - 7 * 86400
    for name, work in {
        "sums by key, all time": lambda: database.aggregate_usage("key"),
        "sums by key, last 7 days": lambda: database.aggregate_usage("key", since=week),
        "sums by model, all time": lambda: database.aggregate_usage("model"),
        "sums by tag, all time": lambda: database.aggregate_usage("tag", tag="team"),
        "sums by day of one key": lambda: database.aggregate_usage("day", key_id=f"key_{0:016x}"),
        "newest 1,000 entries": lambda: database.list_entries(limit=1000),
        "newest 1,000 entries of one key": lambda: database.list_entries(limit=1000, key_id=f"key_{400:016x}"),
        "a page of 1,000 keys with their spending": lambda: database.get_spent_usd(
            {k.id: 0.0 for k in database.list_keys()}
        ),
    }.items():
        print(f"{name:<42} {timed(work):8.1f} ms")
    command = [sys.executable, "-m", "svc", "usage", "--by", "key", "--json"]
    took = timed(lambda: subprocess.run(command, env=environ, check=True, capture_output=True))
    print(f"`svc usage --by key`, the whole command    {took:8.1f} ms")
    oldest = count_of(database, "MIN(last)", "batches") / 1000
    took = timed(lambda: database.prune_entries(oldest + 86400, limit=10_000), 3)
    print(f"forgetting 10,000 entries                  {took:8.1f} ms")
    print(json.dumps(sizes(database, url)))


def sizes(database: SqlDatabase, url: str) -> dict[str, Any]:
    """Return the rows of each table, and the total size in MiB."""
    found: dict[str, Any] = {
        table: count_of(database, "COUNT(*)", table) for table in ("keys", "batches", "hours", "days")
    }
    found["entries"] = count_of(database, "SUM(count)", "batches")
    if url.startswith("sqlite"):
        found["MiB"] = round(
            sum(path.stat().st_size for path in Path(url.removeprefix("sqlite:///")).parent.glob("svc.db*")) / 2**20
        )
    else:
        found["MiB"] = round(
            database._run_statement("SELECT pg_database_size(current_database())").fetchall()[0][0] / 2**20
        )
    return found


if __name__ == "__main__":
    main()
