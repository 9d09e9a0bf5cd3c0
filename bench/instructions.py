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
                counter.count(f"chunk, {name}", CHUNKS, partial(replay.send_chunk, chunks[1]))
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
        batch_of_nothing = self._count_batch(1, partial(time.sleep, REST_SECONDS))
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

    def _measure_batch(self, number: int, once: Callable[[], None]) -> int:
        """Return the instructions of a batch. The busier the machine, the more of the work at rest falls into it."""
        start = time.monotonic()
        counted = self._count_batch(number, once)
        return round(counted - self._instructions_per_second_at_rest * (time.monotonic() - start))

    def _count_batch(self, number: int, once: Callable[[], None]) -> int:
        _tell(self._pid, "--zero")
        for _ in range(number):
            once()
        _tell(self._pid, "--dump")
        counted = []
        for path in self._folder.glob("callgrind.*"):
            if path.name.endswith("-01"):  # the first thread serves
                profile = path.read_text()
                totals = re.findall(r"^totals: (\d+)", profile, flags=re.M)
                counted += [int(total) - _timer_instructions(profile) for total in totals]
            path.unlink()
        if not counted:
            raise RuntimeError("callgrind wrote nothing for the serving thread")
        return counted[-1]


def _timer_instructions(profile: str) -> int:
    """Return the instructions of timers in a profile of callgrind: the busier the machine, the more of them fire.

    A call is three lines: the called function, the number of calls, and a position with the instructions below it
    (https://valgrind.org/docs/manual/cl-format.html).
    """
    timers = re.search(r"^c?fn=(\(\d+\)) uv__run_timers$", profile, flags=re.M)
    if timers is None:
        return 0
    calls = re.findall(rf"^cfn={re.escape(timers[1])}.*\ncalls=.*\n\S+ (\d+)$", profile, flags=re.M)
    return sum(map(int, calls))


def _tell(pid: int, what: str) -> None:
    command = ["callgrind_control", what, str(pid)]
    subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
