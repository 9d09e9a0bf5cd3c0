"""The supervisor dies at random moments of its start, under load. Every response of a client is in the ledger once.

    python -m tests.soak.starts --deaths 100

Half of the deaths are SIGKILL, half SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_database
from tests.e2e.harness import KEY, Gateway, run
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.soak.clients import Clients, pretty

SETTLE_SECONDS = 20.0


@dataclass
class Report:
    deaths: int
    ready: int = 0
    """Starts that were complete when the supervisor died."""
    served: int = 0
    """Rounds with at least one response of status 200."""
    statuses: Counter[int] = field(default_factory=Counter)
    missing: int = 0
    doubled: int = 0
    blamed_disk: int = 0
    """Rounds whose log reports a full disk."""
    tracebacks: int = 0

    def __str__(self) -> str:
        return (
            f"{self.deaths} deaths, {self.ready} of them after the start, {self.served} with responses before; "
            f"responses {pretty(self.statuses)}; without an entry {self.missing}, with two {self.doubled}; "
            f"logs that report a full disk {self.blamed_disk}, with a traceback {self.tracebacks}"
        )


def die(home: Path, *, deaths: int, workers: int, clients: int, seed: int = 0) -> Report:
    """Run the rounds one after the other, on one port and with one state folder."""
    draw = random.Random(seed)
    report = Report(deaths)
    with FakeProvider(OpenAIWire(), key="sk-upstream") as fake:
        env = {"PROVIDER_A_BASE_URL": f"{fake.address}/v1", "PROVIDER_A_API_KEY": "sk-upstream"}
        port = closed_port()
        config = f"[gateway]\nport = {port}\nworkers = {workers}\ndrain_timeout = 5\naccess_log = false\n"
        gateway = Gateway(home, env=env, config=config)
        gateway.use_port_of_config()
        first = _seconds_to_answer(gateway, port)
        with (
            Clients([port], KEY, clients, streams=0.3, keep=False) as many,
            Clients([port], KEY, clients, streams=0.3, keep=True) as kept,
        ):
            for _ in range(deaths):
                before = len(many.answers)
                gateway.launch()
                if draw.random() < 0.5:
                    time.sleep(draw.uniform(0.3, 1.0) * first)
                else:  # the first worker responds while the others start
                    _wait(lambda at=before: len(many.answers) > at or gateway.printed_port() > 0)
                    time.sleep(draw.uniform(0.0, 0.1))
                report.ready += bool(gateway.printed_port())
                _end(gateway, draw.choice((signal.SIGKILL, signal.SIGTERM)))
                report.served += any(answer.status == 200 for answer in many.answers[before:])
                report.blamed_disk += "disk" in gateway.log
                report.tracebacks += "Traceback" in gateway.log
        report.statuses = many.statuses() + kept.statuses()
    _compare(home, {answer.id for group in (many, kept) for answer in group.let_through()}, report)
    return report


def _seconds_to_answer(gateway: Gateway, port: int) -> float:
    """Draw the time of death, measured from the launch. The machine's load varies, so only half of the draws use it."""
    gateway.port = port
    began = time.monotonic()
    gateway.launch()
    _wait(lambda: _answers(gateway))
    took = time.monotonic() - began
    _end(gateway, signal.SIGTERM)
    return took


def _answers(gateway: Gateway) -> bool:
    with contextlib.suppress(OSError, EOFError):
        return gateway.request("GET", "/health").status == 200
    return False


def _wait(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the gateway did not respond"
        time.sleep(0.002)


def _end(gateway: Gateway, how: signal.Signals) -> None:
    """Signal the supervisor. Return when it and all of its workers have ended."""
    workers = [int(pid) for pid in _children(gateway.process.pid)]
    gateway.process.send_signal(how)
    try:
        gateway.process.wait(20)
    except subprocess.TimeoutExpired:
        left = [pid for pid in workers if _runs(int(pid))]
        gateway.process.kill()
        raise AssertionError(f"{how.name}: it is still running, with workers {left}: {gateway.log[-3000:]}") from None
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives its supervisor"
        time.sleep(0.01)


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _compare(home: Path, complete: set[str], report: Report) -> None:
    """Compare the clients' results with the ledger, once it has ingested every journal of the dead workers."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        assert run("usage", "--json", "--limit", "1", home=home).returncode == 0  # ingests the remaining journals
        noted = [entry.request_id for entry in _entries(home)]
        if not complete - set(noted) or time.monotonic() > deadline:
            break
        time.sleep(0.3)
    report.missing = len(complete - set(noted))
    report.doubled = len(noted) - len(set(noted))


def _entries(home: Path) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []
    with contextlib.closing(open_database(f"sqlite:///{home / 'svc' / 'svc.db'}")) as database:
        while page := database.list_entries(before=found[-1].request_id if found else None):
            found += page
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaths", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = die(Path(folder), deaths=args.deaths, workers=args.workers, clients=args.clients, seed=args.seed)
    sys.stdout.write(f"{report}\n")
    sys.exit(bool(report.missing or report.doubled or report.blamed_disk or report.tracebacks))


if __name__ == "__main__":
    main()
