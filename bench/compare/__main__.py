"""Compares gateways on the same work and writes docs/explanation/compare.md with its chart and table: `make compare`.

    python -m bench.compare --targets nginx,svc --rounds 3          (writes nothing without --write)

One target at a time runs alone on processor 0. The load generator and the provider are one process on processor 1. The
kernel accounts the CPU time of the target. Needs Linux with two processors, and uses 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from bench.compare import kernel, report
from bench.compare.targets import CLIENT_KEY, ROOT, Target, free_port, target, version

NAMES = ("nginx", "svc", "portkey", "litellm")
PINNED = (0, 1)


@dataclass(frozen=True)
class Work:
    """The settings of the load generator, without addresses and duration."""

    name: str
    spec: dict[str, Any]


SEED = 11
WORKS = (
    Work("varied_json", {"test": "json", "connections": 32, "seed": SEED}),
    Work("varied_stream", {"test": "stream", "connections": 200, "seed": SEED}),
    Work("json", {"test": "json", "connections": 32}),
    Work("latency", {"test": "json", "connections": 64, "rate": 100}),
    Work("stream", {"test": "stream", "connections": 200}),
    Work("few", {"test": "stream", "connections": 10}),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--targets", default=",".join(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/explanation/compare.md, compare.svg and the table of docs/explanation/performance.md",
    )
    given = parser.parse_args()
    names = given.targets.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be more than 0")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # terminate the target's process, too
    rows = []
    for number in range(given.rounds):
        for name in names:
            row = {"target": name, "round": number, **run(name, given.seconds)}
            print(json.dumps(row), flush=True)
            rows.append(row)
    versions = {
        name: version(name) for name in names if any(row["target"] == name and "missing" not in row for row in rows)
    }
    text, chart = report.render(rows, versions, kernel.machine(), given.rounds, given.seconds)
    print(text)
    if given.write:
        (ROOT / "docs" / "explanation" / "compare.md").write_text(text, encoding="utf-8")
        (ROOT / "docs" / "explanation" / "compare.svg").write_text(chart, encoding="utf-8")
        page = ROOT / "docs" / "explanation" / "performance.md"
        page.write_text(report.insert_table(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


def run(name: str, seconds: float) -> dict[str, Any]:
    """Start the target and run all measurements."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"compare-{name}-")))
        port, provider = free_port(), free_port()
        try:
            one = target(name, folder, port, provider)
        except FileNotFoundError as error:
            return {"missing": str(error)}
        began = time.monotonic()
        process = stack.enter_context(running_target(one, folder))
        if not wait_until_healthy(port, one.health, process):
            return {"missing": f"it did not start: {(folder / 'log').read_text(errors='replace')[-300:]}"}
        found: dict[str, Any] = {"start_ms": round((time.monotonic() - began) * 1000)}
        time.sleep(one.settle)
        found["rest_mb"] = round(kernel.memory_mb(process.pid), 1)
        for work in WORKS:
            found[work.name] = measure(one, process.pid, port, provider, work, seconds)
        found["peak_mb"] = round(kernel.memory_mb(process.pid), 1)
        return found


class running_target:
    """The target's process on processor 0. It is terminated on exit."""

    def __init__(self, one: Target, folder: Path) -> None:
        self._log = (folder / "log").open("wb")
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            **one.env,
        }
        command = ["taskset", "-c", str(PINNED[0]), *one.command]
        self._process = subprocess.Popen(
            command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._log.close()


def wait_until_healthy(port: int, path: str, process: subprocess.Popen[bytes], seconds: float = 90) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status < 500:
                return True
        except (OSError, HTTPException):
            time.sleep(0.01)
        finally:
            connection.close()
    return False


def measure(one: Target, pid: int, port: int, provider: int, work: Work, seconds: float) -> dict[str, Any]:
    """The results of the load generator, and the CPU time in µs per response, or per chunk of a stream."""
    spec = {
        **work.spec,
        "port": port,
        "provider": provider,
        "seconds": seconds,
        "warm": 1.0,
        "headers": {"authorization": f"Bearer {CLIENT_KEY}", **one.headers},
    }
    command = ["taskset", "-c", str(PINNED[1]), sys.executable, "-m", "bench.compare.load", json.dumps(spec)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        if load.stdin is None or load.stdout is None or load.stdout.readline() != "begin\n":
            return {"faults": 1, "fault": "the load generator did not start"}
        cpu, busy, began = kernel.cpu_seconds(pid), kernel.busy_seconds(PINNED[0]), time.monotonic()
        load.stdin.write("go\n")
        load.stdin.flush()
        said = load.stdout.readline()
        cpu, busy = kernel.cpu_seconds(pid) - cpu, kernel.busy_seconds(PINNED[0]) - busy
        taken = time.monotonic() - began
    if not said:
        return {"faults": 1, "fault": "the load generator ended without a result"}
    found: dict[str, Any] = json.loads(said)
    count = found["chunks"] if work.spec["test"] == "stream" else found["answers"]
    if count:
        found["cpu_us"] = round(cpu / count * 1e6, 2)
    return {
        **found,
        "per_second": round(count / taken),
        "share": round(cpu / taken, 2),
        "others": round(max(0, busy - cpu) / taken, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
