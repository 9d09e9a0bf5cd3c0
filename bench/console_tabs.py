"""The data plane beside open tabs of the console: latency and CPU of chats, alternating without and with tabs.

A tab listens to events, and reads the overview half a second after a change, and the providers at most every 10 s, as
the page does. The tabs run in a process of their own with a low priority, so that they do not delay the client that
measures: those of users run on other machines.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.e2e.harness import GPT, HI

RELOAD_DELAY_SECONDS = 0.5
"""The page Overview reads its data this long after an event."""
PROVIDERS_SECONDS = 10.0
TAB_NICENESS = 19
CONNECT_WAIT_SECONDS = 60.0
NANOSECONDS_PER_MILLISECOND = 1_000_000


class Client:
    """One connection to a server."""

    def __init__(self, address: str, key: str) -> None:
        self._authorization = {"authorization": f"Bearer {key}"}
        place = urllib.parse.urlsplit(address)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """Return the body of the response, which must be successful."""
        data = None if body is None else json.dumps(body)
        headers = {**self._authorization, "content-type": "application/json"}
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        found = response.read()
        assert response.status == 200, (path, found)
        return found

    def chat(self) -> float:
        """Return the milliseconds of a chat."""
        began = time.perf_counter_ns()
        self.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI})
        return (time.perf_counter_ns() - began) / NANOSECONDS_PER_MILLISECOND

    def listen(self) -> Iterator[bytes]:
        """Yield the lines of the events."""
        self._connection.request("GET", "/v1/events?only=stats", headers=self._authorization)
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        while line := response.readline():
            yield line


@dataclass(frozen=True)
class ChatCosts:
    """The cost of a series of chats, in milliseconds. `cpu` is that of the gateway for each chat."""

    p50: float
    p99: float
    added_p50: float
    added_p99: float
    cpu: float


class Bench:
    """Measures chats through a gateway and directly at its provider, one after the other for `seconds`."""

    def __init__(
        self, gateway: Client, provider: Client, pid: int, seconds: float, *, is_realtime: bool = False
    ) -> None:
        """With `is_realtime`, other programs of this machine do not delay the chats. Needs root."""
        self._gateway = gateway
        self._provider = provider
        self._pid = pid
        self._seconds = seconds
        self._is_realtime = is_realtime

    def measure(self) -> ChatCosts:
        """Return the latency that the gateway adds, and its CPU."""
        with _realtime_priority([self._pid, os.getpid()] if self._is_realtime else []):
            direct = _chat_for(self._provider, self._seconds / 4)
            cpu = read_cpu_seconds(self._pid)
            through = _chat_for(self._gateway, self._seconds)
            cpu = read_cpu_seconds(self._pid) - cpu
        p50, p99 = ([times[len(times) * share // 100] for times in (direct, through)] for share in (50, 99))
        return ChatCosts(p50[1], p99[1], p50[1] - p50[0], p99[1] - p99[0], cpu * 1000 / len(through))


@contextlib.contextmanager
def _realtime_priority(pids: list[int]) -> Iterator[None]:
    """Give the threads of processes real-time priority. Their later children do not inherit it."""
    threads = [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]
    for thread in threads:
        os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _chat_for(client: Client, seconds: float) -> list[float]:
    """Return the sorted times of chats, at least one."""
    until, times = time.monotonic() + seconds, [client.chat()]
    while time.monotonic() < until:
        times.append(client.chat())
    return sorted(times)


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def open_tabs(address: str, key: str, count: int) -> Iterator[None]:
    """Keep tabs open in another process."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Semaphore(0), context.Event()
    process = context.Process(target=run_tabs, args=(address, key, count, ready, stop), daemon=True)
    process.start()
    try:
        for _ in range(count):
            assert ready.acquire(timeout=CONNECT_WAIT_SECONDS), "the tabs do not get events"
        yield
    finally:
        stop.set()
        process.join(10)
        process.kill()
        process.join()


def run_tabs(address: str, key: str, count: int, ready: threading.Semaphore, stop: Event) -> None:
    """Run tabs in threads, until `stop`."""
    os.nice(TAB_NICENESS)
    for _ in range(count):
        threading.Thread(target=run_tab, args=(address, key, ready), daemon=True).start()
    stop.wait()


def run_tab(address: str, key: str, ready: threading.Semaphore) -> None:
    """Read events, and the overview after each that has other numbers than the last."""
    last_requests, providers_at, is_ready = None, 0.0, False
    reader = Client(address, key)
    for line in Client(address, key).listen():
        if not line.startswith(b'data: {"requests"'):
            continue
        requests = json.loads(line.removeprefix(b"data: "))["requests"]
        if not is_ready:
            is_ready = True
            ready.release()
        if requests != last_requests:
            last_requests = requests
            time.sleep(RELOAD_DELAY_SECONDS)
            reader.request("GET", "/v1/overview")
            if time.monotonic() - providers_at > PROVIDERS_SECONDS:
                providers_at = time.monotonic()
                reader.request("GET", "/v1/admin/providers")


def measure_tabs(bench: Bench, address: str, key: str, tabs: int, rounds: int) -> None:
    """Print the cost of chats without and with tabs, alternating, and the ratio of the medians."""
    found: dict[str, list[ChatCosts]] = {"without": [], "with": []}
    bench.measure()  # warm up
    for _ in range(rounds):
        found["without"].append(bench.measure())
        with open_tabs(address, key, tabs):
            found["with"].append(bench.measure())
    print(f"{f'chats, {rounds} rounds, median of the rounds':42} {'no tabs':>10} {f'{tabs} tabs':>10} {'ratio':>7}")
    names = {
        "p50": "p50",
        "p99": "p99",
        "added_p50": "p50 without that of the provider",
        "added_p99": "p99 without that of the provider",
        "cpu": "CPU of the gateway for each chat",
    }
    for attribute, name in names.items():
        without, with_tabs = (
            statistics.median(getattr(costs, attribute) for costs in found[kind]) for kind in ("without", "with")
        )
        print(f"{f'{name}, ms':42} {without:10.3f} {with_tabs:10.3f} {with_tabs / without:7.2f}", flush=True)
