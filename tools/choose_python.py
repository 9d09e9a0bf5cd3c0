"""Prints the interpreter for the environment of `make run` and `make test`: python3, or a much faster system Python.

    python3 tools/choose_python.py

pyenv and others build CPython without profile-guided optimisation unless told otherwise. Such a build needs up to half
again the CPU for the same work. How an interpreter was built cannot be read off reliably (Debian's configuration does
not name its optimisations), so each candidate runs the same loop, and the fastest of several repetitions counts.
A candidate must be able to create environments, and to compile the hot path if the first one is. If no candidate is
usable, the first one is printed, and the Makefile says what is missing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

CANDIDATES = ("python3", "/usr/bin/python3")
"""The user's own, which wins unless another one is much faster, and the system's."""
MUCH_FASTER = 0.85
"""Another interpreter must need less than this share of the first one's time."""
TIMEOUT_S = 20

PROBE = """
import importlib.util as find, os, sys, sysconfig, time

class Counter:
    __slots__ = ("total",)
    def add(self, number):
        self.total += number

def work():
    counter, seen = Counter(), {}
    counter.total = 0
    for number in range(20_000):
        counter.add(number)
        seen[number & 255] = (number, b"%d" % number)
    return len(seen)

def seconds():
    start = time.process_time()
    work()
    return time.process_time() - start

print(
    sys.executable,
    "%d.%d.%d" % sys.version_info[:3],
    int(sys.version_info >= (3, 11) and bool(find.find_spec("venv") and find.find_spec("ensurepip"))),
    int(os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))),
    min(seconds() for _ in range(15)),
    sep="\\t",
)
"""
"""Prints path, version, whether it creates environments, whether it has C headers, and the seconds of the loop."""


class Interpreter(NamedTuple):
    """One candidate, measured."""

    path: str
    version: str
    is_usable: bool
    has_headers: bool
    seconds: float


def measure(candidate: str) -> Interpreter | None:
    """Return None for a candidate that does not exist or does not run."""
    try:
        run = subprocess.run(
            [candidate, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        path, version, is_usable, has_headers, seconds = run.stdout.strip().split("\t")
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(path, version, is_usable == "1", has_headers == "1", float(seconds))


def choose(interpreters: Sequence[Interpreter]) -> Interpreter | None:
    """Return the first usable interpreter, or a much faster one that can do the same. None if none is usable."""
    usable = [interpreter for interpreter in interpreters if interpreter.is_usable]
    if not usable:
        return None
    first = usable[0]
    others = [other for other in usable if other.has_headers or not first.has_headers]
    fastest = min(others, key=lambda other: other.seconds)
    return fastest if fastest.seconds < MUCH_FASTER * first.seconds else first


def main() -> None:
    """Print the path, and to standard error the reason if it is not the first one's."""
    interpreters = [found for found in map(measure, CANDIDATES) if found is not None]
    chosen = choose(interpreters)
    if chosen is None:
        print(CANDIDATES[0])
        return
    first = interpreters[0]
    if chosen != first:
        reason = (
            f"it needs {chosen.seconds / first.seconds:.0%} of the CPU time of {first.path} ({first.version})"
            if first.is_usable
            else f"{first.path} ({first.version}) is too old, or has no venv"
        )
        print(f"using {chosen.path} ({chosen.version}): {reason}", file=sys.stderr)
        print("to use another one, delete .venv and set PYTHON, for example: make PYTHON=python3 run", file=sys.stderr)
    print(chosen.path)


if __name__ == "__main__":
    main()
