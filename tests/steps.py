"""Runs the steps of `make test`, and prints the duration of each: `python -m tests.steps`.

With `--slow`, it runs those of `make test-slow`: the tests that have the mark `slow`, which `make test` leaves out. The
first failing step ends the run with its exit status. Up to MAX_REPEATED failed tests run once more, alone: many
tests wait for real servers, and several run at the same time. The run names them, since a race in a test or in the
product is a defect also when it passes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

TESTS_FAILED: Final = 1
"""The exit status of pytest if tests failed and nothing else is wrong."""
MAX_REPEATED: Final = 10
"""With more failures than this, the tests are not repeated."""
LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")
PYTEST: Final = (sys.executable, "-m", "pytest")

COMPILE: Final = (sys.executable, "native/compile.py")
"""Runs beside the steps before the tests, since it uses one core for minutes."""
COLLECT: Final = (*PYTEST, "--collect-only", "-p", "no:cacheprovider")
"""Leaves the bytecode of all tests. Each of the processes with tests would else compile all of them."""
# Five processes on two cores: tests often wait. The tests of a file share servers, so one process runs them all.
PARALLEL: Final = ("--cache-clear", "-n", "5", "--dist", "loadfile", "--no-loadscope-reorder")
COMPILE_STEP: Final = ("compile the hot path, if it has changed; started first", COMPILE)
STEPS: Final = (
    ("lint: ruff, mypy, imports, prose, documentation site", ("make", "--no-print-directory", "lint")),
    ("console: build, ESLint, TypeScript", (sys.executable, "console/build.py", "--lint")),
    (
        "TypeScript SDK: types, ESLint, build, size, tests without a gateway",
        (sys.executable, "-m", "tests.typescript_sdk.quick"),
    ),
    ("collect the tests", COLLECT),
    COMPILE_STEP,
    ("tests, but for those of `make test-slow`", (*PYTEST, *PARALLEL, "-m", "not slow")),
)
SLOW_MARK: Final = "mark.slow"
Steps = Sequence[tuple[str, tuple[str, ...]]]


def slow_steps() -> Steps:
    """Return the steps of `make test-slow`. Only files with slow tests are collected, which saves a minute."""
    files = (str(path) for path in sorted(Path("tests").rglob("test_*.py")) if SLOW_MARK in path.read_text("utf-8"))
    return (COMPILE_STEP, ("slow tests", (*PYTEST, *PARALLEL, "-m", "slow", *files)))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Compilation:
    """A compilation in the background. `output` keeps what it prints until it is waited for."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output
        self._process = subprocess.Popen(COMPILE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self) -> int:
        """Print the output, and return the exit status."""
        status = self._process.wait()
        self._output.seek(0)
        say(self._output.read().decode(errors="replace").rstrip())
        return status

    def stop(self) -> None:
        """End it, with the C compiler, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()


def repeat_failed_tests() -> tuple[int, list[str]]:
    """Run failed tests once more, alone. Return the exit status and what failed at first."""
    failed = list(json.loads(LAST_FAILED.read_bytes())) if LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MAX_REPEATED:
        return TESTS_FAILED, failed
    say(f"\n== {len(failed)} of the tests failed beside others; running them alone: {', '.join(failed)}")
    command = (*PYTEST, "--last-failed", "--last-failed-no-failures", "none")
    return subprocess.run(command, check=False).returncode, failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the steps of `make test`.")
    parser.add_argument("--slow", action="store_true", help="run the steps of `make test-slow` instead")
    steps = slow_steps() if parser.parse_args().slow else STEPS
    with tempfile.TemporaryFile() as output:
        compilation = Compilation(output)
        try:
            return run_steps(compilation, steps)
        finally:
            compilation.stop()


def run_steps(compilation: Compilation, steps: Steps) -> int:
    durations: list[str] = []
    repeated: list[str] = []
    for number, (name, command) in enumerate(steps, 1):
        say(f"\n== step {number} of {len(steps)}: {name}")
        start = time.monotonic()
        if command is COLLECT:
            status = 0  # the step with the tests reports errors
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        else:
            status = compilation.wait() if command is COMPILE else subprocess.run(command, check=False).returncode
        if command[: len(PYTEST)] == PYTEST and status == TESTS_FAILED:
            status, repeated = repeat_failed_tests()
        durations.append(f"{name.partition(':')[0].partition(',')[0]} {time.monotonic() - start:.0f} s")
        if status:
            say(f"\n== failed in step {number} of {len(steps)} ({name}), exit status {status}: {', '.join(durations)}")
            return status
    say(f"\n== passed: {', '.join(durations)}")
    if repeated:
        say(f"== passed only alone, which is a defect to find: {', '.join(repeated)}")
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode that no process can reuse costs a minute
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
