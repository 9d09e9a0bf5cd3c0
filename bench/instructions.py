"""Instructions that the compiled gateway executes for a request and for a piece, in the thread that serves; by valgrind.

Nothing else tells what compiled code costs on a shared machine. The kernel's part is not in these figures.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.replay import ANTHROPIC, CLAUDE, GPT, OPENAI, Replay, gateway

SOURCE = Path(__file__).parent.parent / "src"
PLATFORM = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
"""Another one has figures of its own."""
BATCHES, WARM = 6, 30
REQUESTS, PIECES = 40, 200
"""In a batch."""
SECONDS = 90.0
"""For its start, and for any step: twenty to fifty times as long as without valgrind, on a machine that may be busy."""


def possible() -> bool:
    """There is a callgrind, and there are compiled modules."""
    tools = all(shutil.which(name) for name in ("valgrind", "callgrind_control"))
    return tools and next(SOURCE.glob("*__mypyc*.so"), None) is not None


def instructions(folder: Path) -> dict[str, float]:
    """For each request and each piece, by what it is and for which platform."""
    command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={folder / 'callgrind'}"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = [*command, sys.executable, "-m", "svc", "gateway", "--port", "0"]
        with gateway(folder, listener, own, seconds=SECONDS) as (process, port):
            replay = Replay(listener, port, SECONDS)
            count = partial(_least, process.pid, folder)
            found = {"request": count(REQUESTS, replay.json)}
            for name, model, pieces in (("same dialect", GPT, OPENAI), ("Anthropic to OpenAI", CLAUDE, ANTHROPIC)):
                replay.begin(model, pieces[0])
                found[f"piece, {name}"] = count(PIECES, partial(replay.piece, pieces[1]))
                replay.end(pieces[2])
            found["stream of three pieces"] = count(REQUESTS, replay.stream)
            replay.close()
    return {f"instructions per {what} ({PLATFORM})": number for what, number in found.items()}


def _least(pid: int, folder: Path, number: int, once: Callable[[], None]) -> int:
    """Of several batches, instructions for each; the gateway's own clock is in the others."""
    for _ in range(WARM):
        once()
    return min(_batch(pid, folder, number, once) for _ in range(BATCHES)) // number


def _batch(pid: int, folder: Path, number: int, once: Callable[[], None]) -> int:
    _tell(pid, "--zero")
    for _ in range(number):
        once()
    _tell(pid, "--dump")
    counted = []
    for path in folder.glob("callgrind.*"):
        if path.name.endswith("-01"):  # the first thread serves
            counted += re.findall(r"^totals: (\d+)", path.read_text(), flags=re.M)
        path.unlink()
    if not counted:
        raise RuntimeError("callgrind has written nothing for the thread that serves")
    return int(counted[-1])


def _tell(pid: int, what: str) -> None:
    command = ["callgrind_control", what, str(pid)]
    subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
