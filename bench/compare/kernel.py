"""Reads the CPU time and the memory of processes from `/proc`."""

from __future__ import annotations

import os
import platform
from pathlib import Path

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in path.read_text().split()]
            except OSError:  # the process has just ended
                continue
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, all threads."""
    total = 0
    for one in family(pid):
        for path in Path(f"/proc/{one}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except (OSError, IndexError):
                continue
    return total / 1e9


def memory_mb(pid: int) -> float:
    """Resident memory of a process and its descendants. Shared pages count for each of them."""
    total = 0
    for one in family(pid):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * PAGE / 1e6


def busy_seconds(cpu: int) -> float:
    """Time that the processor was busy, stolen time included."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{cpu}":
            values = [int(field) for field in fields[:8]]
            return (sum(values) - values[3] - values[4]) / TICKS
    raise RuntimeError(f"there is no processor {cpu}")


def machine() -> str:
    """Processors and kernel of this machine."""
    text = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "?")
    return f"{os.cpu_count()} × {model}, Linux {platform.release().split('-')[0]}"
