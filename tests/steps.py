"""Runs the steps of `make test`, and prints the duration of each: `python -m tests.steps`.

The first failing step ends the run with its exit status. Up to MAX_REPEATED failed tests run once more, alone: many
tests wait for real servers, and three run at the same time. The run names them, since a race in a test or in the
product is a defect also when it passes alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

TESTS_FAILED: Final = 1
"""The exit status of pytest if tests failed and nothing else is wrong."""
MAX_REPEATED: Final = 3
"""With more failures than this, the tests are not repeated."""
LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")
PYTEST: Final = (sys.executable, "-m", "pytest")

STEPS = (
    ("lint: ruff, mypy, imports, prose, documentation site", ("make", "--no-print-directory", "lint")),
    ("compile the hot path, if it has changed", (sys.executable, "native/compile.py")),
    ("console: build, ESLint, TypeScript", (sys.executable, "console/build.py", "--lint")),
    (
        "TypeScript SDK: types, ESLint, build, size, tests without a gateway",
        (sys.executable, "-m", "tests.typescript_sdk.quick"),
    ),
    # Three processes also on two cores: tests wait half of their time. The tests of a file share servers, so one
    # process runs them all.
    ("tests", (*PYTEST, "--cache-clear", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")),
)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def repeat_failed_tests() -> tuple[int, list[str]]:
    """Run failed tests once more, alone. Return the exit status and what failed at first."""
    failed = list(json.loads(LAST_FAILED.read_bytes())) if LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MAX_REPEATED:
        return TESTS_FAILED, failed
    say(f"\n== {len(failed)} of the tests failed beside others; running them alone: {', '.join(failed)}")
    command = (*PYTEST, "--last-failed", "--last-failed-no-failures", "none")
    return subprocess.run(command, check=False).returncode, failed


def main() -> int:
    durations: list[str] = []
    repeated: list[str] = []
    for number, (name, command) in enumerate(STEPS, 1):
        say(f"\n== step {number} of {len(STEPS)}: {name}")
        start = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        if command[: len(PYTEST)] == PYTEST and status == TESTS_FAILED:
            status, repeated = repeat_failed_tests()
        durations.append(f"{name.partition(':')[0].partition(',')[0]} {time.monotonic() - start:.0f} s")
        if status:
            say(f"\n== failed in step {number} of {len(STEPS)} ({name}), exit status {status}: {', '.join(durations)}")
            return status
    say(f"\n== passed: {', '.join(durations)}")
    if repeated:
        say(f"== passed only alone, which is a defect to find: {', '.join(repeated)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
