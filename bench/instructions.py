"""Counts the instructions of the compiled gateway per request and per chunk in the serving thread, with valgrind.

Instruction counts are stable on a shared machine. They exclude the kernel.
"""

from __future__ import annotations

import math
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.replay import ANTHROPIC, CLAUDE, GPT, OPENAI, Replay, gateway

SOURCE = Path(__file__).parent.parent / "src"
PLATFORM = f"{sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag}, {platform.python_version()}"
"""Each platform has its own figures, and each release of Python, since builds with and without optimisations differ."""
BATCHES, WARM = 6, 30
REQUESTS, CHUNKS = 40, 200
"""Repetitions per batch."""
REST_SECONDS = 2.0
SECONDS = 90.0
"""Timeout of the start and of any step: valgrind is twenty to fifty times slower, and the machine may be busy."""


def possible() -> bool:
    """Whether callgrind and compiled modules are available."""
    tools = all(shutil.which(name) for name in ("valgrind", "callgrind_control"))
    return tools and next(SOURCE.glob("*__mypyc*.so"), None) is not None


def name_figure(what: str) -> str:
    """Return the name of a figure of this platform."""
    return f"instructions per {what} ({PLATFORM})"


def instructions(folder: Path, enough: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return instructions per request and per chunk, by name and platform, without those of the gateway at rest.

    A figure is the least of several batches. No batch follows one whose figure is at most that in `enough`.
    """
    output = f"--callgrind-out-file={folder / 'callgrind'}"
    # The start is not counted, and faster without instrumentation.
    command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", "--instr-atstart=no", output]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = [*command, sys.executable, "-m", "svc", "gateway", "--port", "0"]
        with gateway(folder, listener, own, seconds=SECONDS) as (process, port):
            _tell(process.pid, "--instr=on")
            replay = Replay(listener, port, SECONDS)
            counter = _Counter(process.pid, folder, enough or {})
            counter.count("request", REQUESTS, replay.json)
            for name, model, chunks in (("same dialect", GPT, OPENAI), ("Anthropic to OpenAI", CLAUDE, ANTHROPIC)):
                replay.begin(model, chunks[0])
                counter.count_reads(f"chunk, {name}", CHUNKS, partial(replay.send_chunk, chunks[1]))
                replay.end(chunks[2])
            counter.count("stream of three chunks", REQUESTS, replay.stream)
            counter.count("varied request", REQUESTS, replay.varied_json)
            counter.count("varied stream of 22 chunks", REQUESTS, replay.varied_stream)
            replay.close()
    return counter.figures


class _Counter:
    def __init__(self, pid: int, folder: Path, enough: Mapping[str, float]) -> None:
        self.figures: dict[str, float] = {}
        self._pid = pid
        self._folder = folder
        self._enough = enough
        batch_of_nothing = self._run_batch(1, partial(time.sleep, REST_SECONDS), _instructions_without_timers)
        self._instructions_per_second_at_rest = batch_of_nothing / REST_SECONDS

    def count(self, what: str, number: int, once: Callable[[], None]) -> None:
        """Add the instructions per repetition, of the batch with the fewest."""
        for _ in range(WARM):
            once()
        name, least = name_figure(what), math.inf
        for _ in range(BATCHES):
            least = min(least, self._measure_batch(number, once) // number)
            if least <= self._enough.get(name, 0):
                break
        self.figures[name] = least

    def count_reads(self, what: str, number: int, once: Callable[[], None]) -> None:
        """Add the instructions per repetition of the callbacks for readable sockets, without the rest of the loop.

        Work at rest takes as many instructions as a chunk in the same time, and differs from batch to batch.
        """
        for _ in range(WARM):
            once()
        self.figures[name_figure(what)] = self._run_batch(number, once, _read_instructions) // number

    def _measure_batch(self, number: int, once: Callable[[], None]) -> int:
        """Return the instructions of a batch. The busier the machine, the more of the work at rest falls into it."""
        start = time.monotonic()
        counted = self._run_batch(number, once, _instructions_without_timers)
        return round(counted - self._instructions_per_second_at_rest * (time.monotonic() - start))

    def _run_batch(self, number: int, once: Callable[[], None], count: Callable[[str], int]) -> int:
        """Return what `count` returns for the profile of a batch."""
        _tell(self._pid, "--zero")
        for _ in range(number):
            once()
        _tell(self._pid, "--dump")
        counted = []
        for path in self._folder.glob("callgrind.*"):
            if path.name.endswith("-01"):  # the first thread serves
                counted.append(count(path.read_text()))
            path.unlink()
        if not counted:
            raise RuntimeError("callgrind wrote nothing for the serving thread")
        return counted[-1]


def _instructions_without_timers(profile: str) -> int:
    """Return the instructions except those of timers: the busier the machine, the more of them fire."""
    (total,) = re.findall(r"^totals: (\d+)", profile, flags=re.M)
    return int(total) - _instructions_below("uv__run_timers", profile)


def _read_instructions(profile: str) -> int:
    return _instructions_below("uv__stream_io", profile) + _instructions_below("uv__poll_io", profile)


def _instructions_below(function: str, profile: str) -> int:
    """Return the instructions of the calls of a function in a profile of callgrind.

    A call is three lines: the called function, the number of calls, and a position with the instructions below it
    (https://valgrind.org/docs/manual/cl-format.html).
    """
    found = re.search(rf"^c?fn=(\(\d+\)) {function}$", profile, flags=re.M)
    if found is None:
        return 0
    calls = re.findall(rf"^cfn={re.escape(found[1])}.*\ncalls=.*\n\S+ (\d+)$", profile, flags=re.M)
    return sum(map(int, calls))


def _tell(pid: int, what: str) -> None:
    command = ["callgrind_control", what, str(pid)]
    subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
