"""Runs the steps of `make test`, and prints the duration of each: `python -m tests.steps`.

The first failing step ends the run with its exit status.
"""

from __future__ import annotations

import subprocess
import sys
import time

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
    ("tests", (sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")),
)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    durations: list[str] = []
    for number, (name, command) in enumerate(STEPS, 1):
        say(f"\n== step {number} of {len(STEPS)}: {name}")
        start = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        durations.append(f"{name.partition(':')[0].partition(',')[0]} {time.monotonic() - start:.0f} s")
        if status:
            say(f"\n== failed in step {number} of {len(STEPS)} ({name}), exit status {status}: {', '.join(durations)}")
            return status
    say(f"\n== passed: {', '.join(durations)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
