"""Clients disconnect at random points of streams. The gateway closes the upstream and bills the tokens.

python -m tests.soak.disconnects --streams 1000
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.harness import GPT
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import Recorded
from tests.fakes.script import sse
from tests.soak.cluster import Cluster, running
from tests.soak.cpu_wait import CpuWait, measure_cpu_wait

WORDS = 30
EVERY = 0.01
LATE = 100.0
"""Milliseconds."""
EVENTS = openai_wire.stream(" ".join(["word"] * WORDS), usage=False)
CONTENT = re.compile(rb'"content": ?"[^"]')


@dataclass
class Report:
    streams: int
    cut: int = 0
    """Streams whose client disconnected during the response."""
    unasked: int = 0
    """Streams whose client disconnected before the upstream request."""
    closed_ms: list[float] = field(default_factory=list)
    """Milliseconds from the client's disconnect until the upstream request was closed."""
    late: int = 0
    """Upstream requests closed later than 100 ms, or never."""
    starved: int = 0
    """Late ones for which the gateway or this test waited for a processor for the time above 100 ms."""
    entries: int = 0
    unaccounted: int = 0
    """Upstream requests without exactly one entry."""
    wrong_tokens: list[tuple[int, int, int]] = field(default_factory=list)
    """Per truncated response: words at the client, tokens in the entry, words that the upstream sent. 2 may differ."""

    def __str__(self) -> str:
        ordered = sorted(self.closed_ms)
        half, most = ordered[len(ordered) // 2], ordered[-1]
        return (
            f"{self.streams} streams, {self.cut} disconnected in mid-response, {self.unasked} before the upstream; "
            f"upstream closed after {half:.1f} ms (median), {most:.1f} ms (maximum), {self.late} later than 100 ms, "
            f"{self.starved} of these waited for a processor; "
            f"{self.entries} entries, requests without exactly one: {self.unaccounted}, with wrong tokens: "
            f"{len(self.wrong_tokens)} {self.wrong_tokens[:5]}"
        )


@dataclass
class Left:
    """The result of one client."""

    when: float
    words: int
    """Number of words that the client has read."""
    whole: bool


def disconnect(cluster: Cluster, *, streams: int, at_once: int) -> Report:
    """Open streams on one node and disconnect each at a random point."""
    made = cluster.key("leaver", "--concurrency", str(at_once * 4))
    cluster.fake.always_plays(sse(EVENTS, every=EVERY))
    left: dict[int, Left] = {}
    guard = threading.Lock()

    def one(number: int) -> None:
        found = _leave(cluster.ports[0], made["key"], number)
        with guard:
            left[number] = found

    with measure_cpu_wait([os.getpid(), *cluster.workers()]) as cpu_wait:
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, range(streams)))
        time.sleep(2)  # an entry may take this long to reach the database
    return _compare(cluster, made["id"], left, cpu_wait)


def _leave(port: int, key: str, number: int) -> Left:
    body = {"model": GPT, "messages": [{"role": "user", "content": f"{number}"}], "stream": True}
    data = b""
    with RawClient(port) as raw:
        headers = {"content-type": "application/json", "x-request-id": str(number)}
        raw.send(request_bytes("POST", "/v1/chat/completions", body, key=key, headers=headers))
        deadline = time.monotonic() + random.uniform(0.0, WORDS * EVERY * 1.6)
        while (rest := deadline - time.monotonic()) > 0 and b"[DONE]" not in data:
            raw.socket.settimeout(rest)
            try:
                data += raw.socket.recv(65536)
            except TimeoutError:
                break
        when = time.monotonic()
        if random.random() < 0.5:
            raw.reset()
    return Left(when, len(CONTENT.findall(data)), b"[DONE]" in data)


def _compare(cluster: Cluster, key_id: str, left: dict[int, Left], cpu_wait: CpuWait) -> Report:
    report = Report(streams=len(left))
    request_by_number: dict[int, Recorded] = {
        int(seen.json["messages"][0]["content"]): seen for seen in cluster.fake.requests
    }
    report.unasked = len(left) - len(request_by_number)
    entries = cluster.entries(key_id)
    report.entries = len(entries)
    counted = Counter(int(entry.client_request_id or -1) for entry in entries)
    report.unaccounted = len(request_by_number.keys() - counted.keys()) + sum(count - 1 for count in counted.values())
    entry_by_number = {int(entry.client_request_id or -1): entry for entry in entries}
    for number, seen in request_by_number.items():
        if left[number].whole or seen.played or number not in entry_by_number:
            continue
        report.cut += 1
        took = math.inf if seen.left is None else (seen.left - left[number].when) * 1000
        report.closed_ms.append(took)
        if took > LATE:
            report.late += 1
            when = left[number].when
            report.starved += took - 1000 * cpu_wait.waited(when, when + took / 1000) <= LATE
        entry = entry_by_number[number]
        tokens = entry.completion_tokens or 0
        if entry.status != "client_closed" or not left[number].words - 2 <= tokens <= _sent(seen) + 2:
            report.wrong_tokens.append((left[number].words, tokens, _sent(seen)))
    return report


def _sent(seen: Recorded) -> int:
    """Return the number of words that the upstream sent."""
    size = words = 0
    for event in EVENTS:
        size += len(event) + len(f"{len(event):x}") + 4
        if size > seen.sent:
            break
        words += bool(CONTENT.search(event))
    return words


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=20)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), nodes=1, workers=2, redis=False, postgres=False) as cluster,
    ):
        report = disconnect(cluster, streams=args.streams, at_once=args.at_once)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
