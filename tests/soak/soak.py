"""Load with faults of every kind, then a check of memory, descriptors, tasks and missing ledger entries.

    python -m tests.soak --seconds 600 --rate 300        # the long run; the short one is tests/soak/test_soak.py

One request in twenty goes to a provider that fails in one of the ways of tests/faults/catalogue.py.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from svc.stores.database.factory import open_database
from tests.e2e.harness import Gateway
from tests.fakes.provider import FakeProvider
from tests.faults.catalogue import CUT, FAULTS, WHOLE, Letter
from tests.faults.test_matrix import PAIRS, READERS, model_of, send

FAULTY = 0.05
CLIENTS = 96
WARM_UP = 0.2
"""The share of the run after which the first memory reading counts."""
KINDS = [fault for fault in FAULTS if fault.address in ("fake", "always new", "closed")]
LEDGER_SECONDS = 20.0
"""Seconds after the end within which the last entries must be in the database."""


@dataclass
class Report:
    """`wrong` has the outcomes that differ from the catalogue."""

    sent: int = 0
    faulty: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    rss: list[int] = field(default_factory=list)
    """Resident memory in bytes, once a second."""
    descriptors: list[int] = field(default_factory=list)
    """Open descriptors before and after, without idle connections to providers."""
    threads: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    unaccounted: int = 0
    """Responses without a ledger entry, or with a different status there."""
    entries: int = 0
    seconds: float = 0.0

    @property
    def resident(self) -> list[float]:
        """MiB: the median of each tenth of the run after the warm-up."""
        seen = self.rss[int(len(self.rss) * WARM_UP) :]
        size = max(1, len(seen) // 10)
        return [statistics.median(seen[at : at + size]) / 2**20 for at in range(0, size * 10, size) if seen[at:]]

    @property
    def grown(self) -> float:
        """Growth in percent, from the first tenth after the warm-up to the last."""
        return 100 * (self.resident[-1] / self.resident[0] - 1)

    def __str__(self) -> str:
        memory = ", ".join(f"{each:.1f}" for each in self.resident)
        return (
            f"{self.sent} requests in {self.seconds:.0f} s ({self.sent / self.seconds:.0f}/s), {self.faulty} to faulty "
            f"providers; wrong: {dict(self.wrong)}; memory {memory} MiB, {self.grown:+.1f} %; "
            f"descriptors {self.descriptors}; threads {self.threads}; tasks {self.tasks}; "
            f"entries {self.entries}, unaccounted {self.unaccounted}"
        )


class Soak:
    """`run` sends `rate` requests per second for `seconds`, on schedule as far as CLIENTS threads can."""

    def __init__(self, gateway: Gateway, fakes: dict[Letter, FakeProvider]) -> None:
        self._gateway = gateway
        self._fakes = fakes
        self._process = Path(f"/proc/{gateway.process.pid}")
        self._lock = threading.Lock()
        self._seen: dict[str, str] = {}
        """Request ids with the expected final status."""
        self.report = Report()

    def run(self, seconds: float, rate: float) -> Report:
        report = self.report
        self._one(0)  # allocate what the first request allocates
        self._count_open()
        began = time.monotonic()
        with self._watched(), ThreadPoolExecutor(CLIENTS) as pool:
            for number in range(int(seconds * rate)):
                due = began + number / rate
                time.sleep(max(0.0, due - time.monotonic()))
                pool.submit(self._one, number)
        report.seconds = time.monotonic() - began
        time.sleep(2)
        self._count_open()
        self._account()
        return report

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Record the memory each second."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(1.0):
                self.report.rss.append(self._rss())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _one(self, number: int) -> None:
        client, letter = random.choice(PAIRS)
        stream = random.random() < 0.5
        fault = random.choice(KINDS) if number and random.random() < FAULTY else None
        model = model_of(client, letter, fault, stream, False) if fault else f"spare/{letter}"
        expected = fault.sees(stream, False) if fault else WHOLE
        try:
            got = send(self._gateway, client, model, stream)
            outcome, _ = READERS[client](got, stream)
            request_id = got.headers["x-request-id"]
        except Exception as error:
            outcome, request_id = f"client: {error!r}", f"none {number}"
        with self._lock:
            self.report.sent += 1
            self.report.faulty += fault is not None
            self._seen[request_id] = {WHOLE: "ok", CUT: "cut"}.get(outcome, "error")
            if outcome != expected:
                self.report.wrong[f"{fault.name if fault else 'healthy'}: {outcome[:200]}"] += 1

    def _account(self) -> None:
        """Compare the clients' results with the ledger, once it has all entries."""
        deadline = time.monotonic() + LEDGER_SECONDS
        entries = self._entries()
        while len(entries) < len(self._seen) and time.monotonic() < deadline:
            time.sleep(0.5)
            entries = self._entries()
        self.report.entries = len(entries)
        self.report.unaccounted = sum(entries.get(one) != status for one, status in self._seen.items())

    def _entries(self) -> dict[str, str]:
        """Return the request ids in the ledger with the final status of each."""
        database = open_database(f"sqlite:///{self._gateway.home / 'svc' / 'svc.db'}")
        found: dict[str, str] = {}
        before = None
        with contextlib.closing(database):
            while page := database.list_entries(before=before, limit=10_000):
                found.update((entry.request_id, entry.status) for entry in page)
                before = page[-1].request_id
        return found

    def _count_open(self) -> None:
        report = self.report
        report.descriptors.append(self._count("fd") - sum(len(fake.connections) for fake in self._fakes.values()))
        report.threads.append(self._count("task"))
        page = self._gateway.request("GET", "/metrics").body.decode()
        report.tasks.append(int(page.partition("\nsvc_tasks ")[2].partition("\n")[0]))

    def _rss(self) -> int:
        fields = (self._process / "statm").read_text().split()
        return int(fields[1]) * 4096

    def _count(self, what: str) -> int:
        return len(list((self._process / what).iterdir()))
