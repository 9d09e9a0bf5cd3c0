"""Measures how long threads waited for a processor on a busy machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

EVERY = 0.02


class CpuWait:
    """Periodic readings of the kernel's scheduling statistics for all threads of some processes."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._seen: list[tuple[float, dict[str, int]]] = []

    def waited(self, start: float, end: float) -> float:
        """Return the longest wait of a thread for a processor between two `time.monotonic()` values, in seconds."""
        before = [waits for when, waits in self._seen if when <= start]
        after = [waits for when, waits in self._seen if when >= end]
        if not before or not after:
            return 0.0
        first = before[-1]
        return max((waits - first.get(thread, waits) for thread, waits in after[0].items()), default=0) / 1e9

    def look(self) -> None:
        waits: dict[str, int] = {}
        for pid in self._pids:
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # it has ended
                    waits[path.parent.name] = int(path.read_text().split()[1])
        self._seen.append((time.monotonic(), waits))


@contextlib.contextmanager
def measure_cpu_wait(pids: list[int]) -> Iterator[CpuWait]:
    """Read the statistics from now on, and once more at the end."""
    found, over = CpuWait(pids), threading.Event()

    def run() -> None:
        while not over.wait(EVERY):
            found.look()

    found.look()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found.look()
