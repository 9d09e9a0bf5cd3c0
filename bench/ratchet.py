"""Compares the gateway's stable cost figures with `ratchet.json`: `make ratchet` measures and rewrites the file.

Timings on a shared machine are noisy. So this module counts the calls of Python and C functions in the serving thread,
per request and per chunk of a stream, and instructions where valgrind is available. The minimum of several batches
excludes the gateway's periodic work. `tests/test_ratchet.py` fails if a figure is more than 10 % above the file's.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.instructions import instructions, possible
from bench.replay import ANTHROPIC, CLAUDE, GPT, OPENAI, Replay, gateway

LIMITS = Path(__file__).with_name("ratchet.json")
MARGIN = 1.1
BATCHES, PER_BATCH = 5, 8
PER_PLATFORM = "instructions "
_LEFT_OUT = shutil.ignore_patterns("*.so", "__pycache__")
COUNTED = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
seen, lines, turn = set(), set(), 0
def begin_turn():
    global turn
    turn = counts[2]
    seen.clear()
    lines.clear()
def trace(frame, event, argument):
    if counts[2] != turn:
        begin_turn()
    if event == "line":
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        counts[5] = len(lines)
    return trace if turn and "/svc/" in frame.f_code.co_filename else None
def count(frame, event, argument):
    if event == "call":
        counts[0] += 1
        if counts[2] != turn:
            begin_turn()
        if turn and frame.f_code not in seen and "/svc/" in frame.f_code.co_filename:
            seen.add(frame.f_code)
            counts[3] = len(seen)
            counts[4] = len({code.co_filename for code in seen})
    elif event == "c_call":
        counts[1] += 1
from svc.cli import main
sys.argv = ["svc", "gateway", "--port", "0"]
sys.settrace(trace)
sys.setprofile(count)
sys.exit(main())
"""


def measure() -> dict[str, float]:
    """Return the figures that every machine has, by their name in the file."""
    with tempfile.TemporaryDirectory(prefix="svc-ratchet-") as folder:
        return {**calls(Path(folder)), **at_rest(Path(folder))}


def measure_compiled(limits: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the figures of this platform, or none where valgrind cannot run.

    With `limits`, a figure within its limit is that of the first batch within it, instead of the least of all batches.
    """
    if not possible():
        return {}
    with tempfile.TemporaryDirectory(prefix="svc-ratchet-") as folder:
        try:
            return instructions(Path(folder), {name: limit * MARGIN for name, limit in (limits or {}).items()})
        except (subprocess.SubprocessError, RuntimeError, OSError) as error:
            print(f"instructions cannot be counted here: {error}")
            return {}


def calls(folder: Path) -> dict[str, float]:
    """Return calls per request and per chunk."""
    shared = folder / "counts"
    shared.write_bytes(bytes(64))
    with shared.open("r+b") as file, socket.create_server(("127.0.0.1", 0)) as listener:
        counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        with gateway(folder, listener, [sys.executable, "-c", COUNTED, str(shared)], plain(folder)) as (_, port):
            replay = Replay(listener, port)
            found = Calls(replay, counts).figures()
            replay.close()
        counts.release()
    return found


class Calls:
    """Counts calls while a replay runs."""

    def __init__(self, replay: Replay, counts: memoryview) -> None:
        self._replay = replay
        self._counts = counts

    def figures(self) -> dict[str, float]:
        for _ in range(3):
            self._replay.json()
        found: dict[str, float] = {**self._least("request", self._replay.json), **self._entered()}
        for name, model, chunks in (("same dialect", GPT, OPENAI), ("Anthropic to OpenAI", CLAUDE, ANTHROPIC)):
            self._replay.begin(model, chunks[0])
            found |= self._least(f"chunk, {name}", partial(self._replay.send_chunk, chunks[1]))
            self._replay.end(chunks[2])
        found |= self._least("stream of three chunks", self._replay.stream)
        return found

    def _least(self, what: str, once: Callable[[], None]) -> dict[str, float]:
        """Return the calls per repetition, as the minimum of several batches."""
        least = [float("inf"), float("inf")]
        for _ in range(BATCHES):
            before = self._counts[0], self._counts[1]
            for _ in range(PER_BATCH):
                once()
            self._settle()
            least = [min(least[at], (self._counts[at] - before[at]) / PER_BATCH) for at in (0, 1)]
        return {f"Python calls per {what}": round(least[0], 1), f"C calls per {what}": round(least[1], 1)}

    def _entered(self) -> dict[str, float]:
        """Return functions, files and lines of svc that a request runs, as the minimum of several requests."""
        found = []
        for turn in range(1, 6):
            self._counts[2] = turn
            self._replay.json()
            self._settle()
            found.append((self._counts[3], self._counts[4], self._counts[5]))
        self._counts[2] = 0
        functions, files, lines = min(found)
        return {
            "functions entered by a request": functions,
            "files entered by a request": files,
            "lines run by a request": lines,
        }

    def _settle(self) -> None:
        """Wait until the work after a response has finished, which is when no more calls are counted."""
        while True:
            before = self._counts[0]
            time.sleep(0.005)
            if self._counts[0] == before:
                return


def at_rest(folder: Path) -> dict[str, float]:
    """Return the modules and the memory of an idle `svc gateway`. Uses the source, since `-X importtime` does not
    report imports of compiled modules."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-X", "importtime", "-m", "svc", "gateway", "--port", "0"]
        with gateway(folder, listener, command, plain(folder)) as (process, _):
            time.sleep(0.5)
            status = Path(f"/proc/{process.pid}/status")
            memory = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    imported = re.findall(r"^import time: .*\|\s*([\w.]+)$", (folder / "log").read_text(), flags=re.M)
    own = [name for name in imported if name.split(".")[0] == "svc"]
    found: dict[str, float] = {"modules imported": len(imported), "modules imported, of svc": len(own)}
    return {**found, "MB at rest": round(int(memory.group(1)) / 1024, 1)} if memory else found


def plain(folder: Path) -> Path:
    """Copy the source without its compiled modules, so that calls can be counted."""
    package = Path(__file__).parent.parent / "src" / "svc"
    shutil.copytree(package, folder / "source" / "svc", ignore=_LEFT_OUT, dirs_exist_ok=True)
    return folder / "source"


def worse(found: dict[str, float], limits: dict[str, float]) -> list[str]:
    """Return a line for each figure that is more than 10 % above its limit or has none."""
    return [
        f"{name}: {value:g}, at most {limits.get(name, 0) * MARGIN:.1f} ({limits.get(name, 0):g} and a tenth)"
        for name, value in found.items()
        if value > limits.get(name, 0) * MARGIN
    ]


def main() -> None:
    """Write the file and print the changes."""
    before: dict[str, float] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    others = {name: value for name, value in before.items() if name.startswith(PER_PLATFORM)}
    found = {**measure(), **others, **measure_compiled()}
    for name, value in found.items():
        print(f"{name:<64}{before.get(name, 0):>9g} -> {value:g}")
    LIMITS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m bench.ratchet", description="Measures the gateway and writes bench/ratchet.json."
    ).parse_args()
    main()
