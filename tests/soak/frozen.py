"""Redis, PostgreSQL or a provider is frozen by SIGSTOP under load and continued: it accepts bytes and does not respond.

python -m tests.soak.frozen                  # each of the four scenarios, frozen for 30 s

redis       limits and a budget on the key: each machine counts locally while Redis does not respond
postgres    keys from the cache, the ledger in its journal
provider    no other provider: requests wait for it, within their timeouts
fallback    a second provider: requests go there after `first_byte_timeout`, at once when the breaker is open
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.harness import GPT, LLAMA, Gateway
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.soak.clients import Answer, Clients, pretty
from tests.soak.cluster import PROVIDER_KEY, Cluster, running
from tests.soak.provider_process import ProviderProcess

SCENARIOS = ("redis", "postgres", "provider", "fallback")
LIMITS = ("--rpm", "1000000", "--tpm", "1000000000", "--budget-usd", "1000", "--concurrency", "1000")
FIRST_BYTE_TIMEOUT = 1.0
"""First byte timeout in seconds, with a fallback. Without one the default (60) applies."""


@dataclass
class Report:
    name: str
    seconds: float
    before: Sequence[Answer]
    during: Sequence[Answer]
    """Responses to requests that were sent while it was frozen."""
    after: Sequence[Answer]
    lost: int
    degraded: list[list[str]]
    """Degraded parts that each node reported, just before it was continued."""
    well_after: float
    """Seconds until no node reported a degraded part."""
    missing: int
    doubled: int
    by_provider: Counter[str]

    def __str__(self) -> str:
        parts = [
            f"{when} {pretty(Counter(answer.status for answer in found))} {_times(found)}"
            for when, found in (("before", self.before), ("frozen", self.during), ("after", self.after))
        ]
        return (
            f"{self.name}, {self.seconds:g} s: {'; '.join(parts)}; connections lost {self.lost}; "
            f"degraded {json.dumps(self.degraded)}, recovered after {self.well_after:.1f} s; "
            f"without an entry {self.missing}, with two {self.doubled}; by provider {dict(self.by_provider)}"
        )


def _times(found: Sequence[Answer]) -> str:
    """Median and maximum, in milliseconds."""
    taken = sorted(1000 * (answer.got - answer.sent) for answer in found)
    return f"(p50 {taken[len(taken) // 2]:.0f} ms, max {taken[-1]:.0f} ms)" if taken else ""


def freeze(
    cluster: Cluster, name: str, *, stop: Callable[[], object], go: Callable[[], object], seconds: float, clients: int
) -> Report:
    """Send load to all nodes: one second before, `seconds` while frozen, and two seconds after recovery."""
    made = cluster.key("steady", *LIMITS)
    with Clients(cluster.ports, made["key"], clients, streams=0.3, pause=0.05, max_tokens=20) as many:
        time.sleep(1)
        stopped = time.monotonic()
        stop()
        try:
            time.sleep(seconds)
            degraded = cluster.degraded()
        finally:
            go()
        continued = time.monotonic()
        while any(cluster.degraded()) and time.monotonic() < continued + 30:
            time.sleep(0.05)
        well = time.monotonic()
        time.sleep(2)
    complete = {answer.id for answer in many.let_through()}
    entries = cluster.settled(made["id"], complete)
    noted = [entry.request_id for entry in entries]
    return Report(
        name=name,
        seconds=seconds,
        before=[answer for answer in many.answers if answer.got < stopped],
        during=[answer for answer in many.answers if stopped <= answer.sent < continued],
        after=[answer for answer in many.answers if answer.sent >= well],
        lost=many.lost,
        degraded=degraded,
        well_after=well - continued,
        missing=len(complete - set(noted)),
        doubled=len(noted) - len(set(noted)),
        by_provider=Counter(entry.provider or "" for entry in entries),
    )


def frozen_redis(folder: Path, *, seconds: float, clients: int) -> Report:
    with running(folder, nodes=2, workers=1, postgres=False) as cluster:
        assert cluster.redis is not None
        return freeze(
            cluster, "redis", stop=cluster.redis.freeze, go=cluster.redis.thaw, seconds=seconds, clients=clients
        )


def frozen_postgres(folder: Path, *, seconds: float, clients: int) -> Report:
    with running(folder, nodes=2, workers=1, redis=False) as cluster, contextlib.ExitStack() as stack:
        stopped = stopped_postgres(cluster)
        return freeze(
            cluster,
            "postgres",
            stop=lambda: stack.enter_context(stopped),
            go=stack.close,
            seconds=seconds,
            clients=clients,
        )


@contextlib.contextmanager
def stopped_postgres(cluster: Cluster) -> Iterator[None]:
    """Freeze the whole server with SIGSTOP for the duration of the context."""
    pids = _with_children(_postmaster(cluster.postgres))
    _tell(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _tell(pids, signal.SIGCONT)


def _tell(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a server process whose connection has ended
            os.kill(pid, number)


def _postmaster(server: Any) -> int:
    """Return the process id of the server's postmaster."""
    return int((Path(server.pgdata) / "postmaster.pid").read_text().split()[0])


def _with_children(pid: int) -> list[int]:
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def frozen_provider(folder: Path, *, seconds: float, clients: int, fallback: bool) -> Report:
    with _behind_a_process(folder, fallback=fallback) as (cluster, provider):
        name = "fallback" if fallback else "provider"
        return freeze(cluster, name, stop=provider.freeze, go=provider.thaw, seconds=seconds, clients=clients)


@contextlib.contextmanager
def _behind_a_process(folder: Path, *, fallback: bool) -> Iterator[tuple[Cluster, ProviderProcess]]:
    """Run one node whose provider A can be frozen. With `fallback`, provider C also serves the model."""
    config = "[gateway]\nworkers = 1\ndrain_timeout = 5\n"
    if fallback:
        config += f'first_byte_timeout = {FIRST_BYTE_TIMEOUT}\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n'
    url = f"sqlite:///{folder / 'svc.db'}"
    with ProviderProcess(PROVIDER_KEY) as provider, FakeProvider(OpenAIWire(), key=PROVIDER_KEY) as other:
        env = {
            "PROVIDER_A_BASE_URL": f"{provider.address}/v1",
            "PROVIDER_A_API_KEY": PROVIDER_KEY,
            "PROVIDER_C_BASE_URL": f"{other.address}/v1",
            "PROVIDER_C_API_KEY": PROVIDER_KEY if fallback else "",
            "SVC_DATABASE_URL": url,
        }
        home = folder / "node0"
        home.mkdir()
        node = Gateway(home, env=env, config=config).start()
        try:
            yield Cluster(folder, other, [node], None, None, url), provider
        finally:
            assert node.stop(20) == 0, node.log[-3000:]


def run(name: str, folder: Path, *, seconds: float, clients: int) -> Report:
    """Run one of `SCENARIOS`."""
    if name == "redis":
        return frozen_redis(folder, seconds=seconds, clients=clients)
    if name == "postgres":
        return frozen_postgres(folder, seconds=seconds, clients=clients)
    return frozen_provider(folder, seconds=seconds, clients=clients, fallback=name == "fallback")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.frozen", description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=20)
    args = parser.parse_args()
    for name in args.scenarios:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario {name!r}; choose of {', '.join(SCENARIOS)}")
        with tempfile.TemporaryDirectory() as folder:
            report = run(name, Path(folder), seconds=args.seconds, clients=args.clients)
        sys.stdout.write(f"{report}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
