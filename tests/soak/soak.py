"""Load with faults of every kind, and what is left of it: memory, descriptors, answers that nobody accounted for.

    python -m tests.soak --seconds 600 --rate 300        # the long form; the short one is tests/soak/test_soak.py

One request in twenty goes to a provider that fails in one of the ways of tests/faults/catalogue.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.harness import Gateway
from tests.fakes.provider import FakeProvider
from tests.faults.catalogue import DIALECTS, FAULTS, WHOLE, Letter
from tests.faults.test_matrix import model_of, read

FAULTY = 0.05
CLIENTS = 96
WARM_UP = 0.2
"""The share of the time after which memory is looked at for the first time."""
KINDS = [fault for fault in FAULTS if fault.address in ("fake", "closed")]


@dataclass
class Report:
    """`wrong` are outcomes that are not what the catalogue says."""

    sent: int = 0
    faulty: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    rss: list[int] = field(default_factory=list)
    """Bytes: after the warm-up, and at the end."""
    descriptors: list[int] = field(default_factory=list)
    """Before and after, without connections to providers that are kept for the next request."""
    threads: list[int] = field(default_factory=list)
    unaccounted: int = 0
    """Answers without exactly one line in the access log."""
    seconds: float = 0.0

    def __str__(self) -> str:
        grown = 100 * (self.rss[1] / self.rss[0] - 1)
        return (
            f"{self.sent} requests in {self.seconds:.0f} s ({self.sent / self.seconds:.0f}/s), {self.faulty} to faulty "
            f"providers; wrong: {dict(self.wrong)}; memory {self.rss[0] >> 20} MiB, {grown:+.1f} %; "
            f"descriptors {self.descriptors}; threads {self.threads}; unaccounted {self.unaccounted}"
        )


class Soak:
    """`run` sends `rate` requests per second for `seconds`, on schedule as far as CLIENTS threads can."""

    def __init__(self, gateway: Gateway, fakes: dict[Letter, FakeProvider]) -> None:
        self._gateway = gateway
        self._fakes = fakes
        self._process = Path(f"/proc/{gateway.process.pid}")
        self._lock = threading.Lock()
        self._ids: list[str] = []
        self.report = Report()

    def run(self, seconds: float, rate: float) -> Report:
        report = self.report
        self._one(0)  # what is made once is made now
        report.descriptors.append(self._descriptors())
        report.threads.append(self._count("task"))
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            for number in range(int(seconds * rate)):
                due = began + number / rate
                time.sleep(max(0.0, due - time.monotonic()))
                if not report.rss and number >= WARM_UP * seconds * rate:
                    report.rss.append(self._rss())
                pool.submit(self._one, number)
        report.seconds = time.monotonic() - began
        time.sleep(2)
        report.rss.append(self._rss())
        report.descriptors.append(self._descriptors())
        report.threads.append(self._count("task"))
        logged = Counter(line.partition('"request_id":"')[2][:28] for line in self._lines())
        report.unaccounted = sum(logged[one[:28]] != 1 for one in self._ids)
        return report

    def _one(self, number: int) -> None:
        letter: Letter = random.choice(list(DIALECTS))
        stream = random.random() < 0.5
        fault = random.choice(KINDS) if number and random.random() < FAULTY else None
        model = model_of(letter, fault, stream, False) if fault else f"spare/{letter}"
        expected = fault.sees(stream, False) if fault else WHOLE
        try:
            got = self._gateway.chat(model, stream=stream)
            outcome, _ = read(got, stream)
            request_id = got.headers["x-request-id"]
        except Exception as error:
            outcome, request_id = f"client: {error!r}", ""
        with self._lock:
            self.report.sent += 1
            self.report.faulty += fault is not None
            self._ids.append(request_id)
            if outcome != expected:
                self.report.wrong[f"{fault.name if fault else 'healthy'}: {outcome[:200]}"] += 1

    def _lines(self) -> list[str]:
        return [line for line in self._gateway.log.splitlines() if '"attempts":' in line]

    def _rss(self) -> int:
        fields = (self._process / "statm").read_text().split()
        return int(fields[1]) * 4096

    def _descriptors(self) -> int:
        return self._count("fd") - sum(len(fake.connections) for fake in self._fakes.values())

    def _count(self, what: str) -> int:
        return len(list((self._process / what).iterdir()))
