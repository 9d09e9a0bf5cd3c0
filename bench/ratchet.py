"""Holds what is stable about the gateway's cost to `ratchet.json`: `make ratchet` measures, and writes the file anew.

Timings on a shared machine say little, so calls are counted: of Python functions and of C functions, in the thread that
serves, for one request and for one piece of a stream; and instructions, where there is valgrind. The least of several
batches leaves the gateway's own clock out. `tests/test_ratchet.py` fails when a figure is a tenth above the file's.
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
from collections.abc import Callable
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
    """Every figure that any machine has, by its name in the file."""
    with tempfile.TemporaryDirectory(prefix="svc-ratchet-") as folder:
        return {**calls(Path(folder)), **at_rest(Path(folder))}


def measure_compiled() -> dict[str, float]:
    """Figures of this platform alone; none where they cannot be taken: valgrind may be kept from what it needs."""
    if not possible():
        return {}
    with tempfile.TemporaryDirectory(prefix="svc-ratchet-") as folder:
        try:
            return instructions(Path(folder))
        except (subprocess.SubprocessError, RuntimeError, OSError) as error:
            print(f"instructions cannot be counted here: {error}")
            return {}


def calls(folder: Path) -> dict[str, float]:
    """Calls per request and per piece."""
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
    """Counted while a replay runs."""

    def __init__(self, replay: Replay, counts: memoryview) -> None:
        self._replay = replay
        self._counts = counts

    def figures(self) -> dict[str, float]:
        for _ in range(3):
            self._replay.json()
        found: dict[str, float] = {**self._least("request", self._replay.json), **self._entered()}
        for name, model, pieces in (("same dialect", GPT, OPENAI), ("Anthropic to OpenAI", CLAUDE, ANTHROPIC)):
            self._replay.begin(model, pieces[0])
            found |= self._least(f"piece, {name}", partial(self._replay.piece, pieces[1]))
            self._replay.end(pieces[2])
        found |= self._least("stream of three pieces", self._replay.stream)
        return found

    def _least(self, what: str, once: Callable[[], None]) -> dict[str, float]:
        """Of several batches, calls for each."""
        least = [float("inf"), float("inf")]
        for _ in range(BATCHES):
            before = self._counts[0], self._counts[1]
            for _ in range(PER_BATCH):
                once()
            self._settle()
            least = [min(least[at], (self._counts[at] - before[at]) / PER_BATCH) for at in (0, 1)]
        return {f"Python calls per {what}": round(least[0], 1), f"C calls per {what}": round(least[1], 1)}

    def _entered(self) -> dict[str, float]:
        """Functions and files of svc that a request enters, and the lines that it runs; the least of several."""
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
        """What follows an answer in the same turn of the loop has ended when nothing is counted any more."""
        while True:
            before = self._counts[0]
            time.sleep(0.005)
            if self._counts[0] == before:
                return


def at_rest(folder: Path) -> dict[str, float]:
    """What `svc gateway` has imported, and its memory, when it is ready and nobody has come. Not compiled: imports of
    compiled modules are not told."""
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
    """A copy of the source without its compiled modules, in which calls can be counted."""
    package = Path(__file__).parent.parent / "src" / "svc"
    shutil.copytree(package, folder / "source" / "svc", ignore=_LEFT_OUT, dirs_exist_ok=True)
    return folder / "source"


def worse(found: dict[str, float], limits: dict[str, float]) -> list[str]:
    """A line for each figure that is more than a tenth above its limit, or has none."""
    return [
        f"{name}: {value:g}, at most {limits.get(name, 0) * MARGIN:.1f} ({limits.get(name, 0):g} and a tenth)"
        for name, value in found.items()
        if value > limits.get(name, 0) * MARGIN
    ]


def main() -> None:
    """Writes the file, and says what has changed."""
    before: dict[str, float] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    others = {name: value for name, value in before.items() if name.startswith(PER_PLATFORM)}
    found = {**measure(), **others, **measure_compiled()}
    for name, value in found.items():
        print(f"{name:<64}{before.get(name, 0):>9g} -> {value:g}")
    LIMITS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m bench.ratchet", description="Measures, and writes bench/ratchet.json."
    ).parse_args()
    main()
