"""Draws mutants with a fixed seed, runs the tests that cover each, and fails if too many survive.

mutmut generates the mutants and selects the tests (`[tool.mutmut]` in pyproject.toml names the modules and the tests).
This module draws the sample, so that a run takes minutes and two runs of one commit draw the same mutants.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path("mutants")
SMALLEST_MODULE = "svc.gateway.routing.sliding_window.*"
"""A mutant that runs first. mutmut generates all mutants and measures coverage before it runs any."""
KILLED = ("killed", "timeout", "segfault", "caught by type check")
SAMPLE, SEED, LEAST_PERCENT = 500, 20261123, 85.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=SAMPLE, help="number of mutants to draw (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the sample (%(default)s)")
    parser.add_argument(
        "--at-least", type=float, default=LEAST_PERCENT, help="percentage that must be killed (%(default)s)"
    )
    parser.add_argument("--module", default="", help="only modules with this prefix, for example svc.dialects")
    parser.add_argument("--keep", action="store_true", help="reuse the mutants and test times of the previous run")
    options = parser.parse_args()
    if not options.keep:
        shutil.rmtree(FOLDER, ignore_errors=True)
    if not FOLDER.exists():
        _mutmut("run", SMALLEST_MODULE)
    names = sorted(name for name in _results() if name.startswith(options.module))
    drawn = random.Random(options.seed).sample(names, min(options.mutants, len(names)))
    _mutmut("run", *drawn)
    results = _results()
    return _report({name: results[name] for name in drawn}, len(names), options)


def _report(results: dict[str, str], total: int, options: argparse.Namespace) -> int:
    for name, status in sorted(results.items()):
        if status not in KILLED:
            print(f"{status}: {name}")
    counts = Counter("killed" if status in KILLED else status for status in results.values())
    percent = 100 * counts["killed"] / len(results)
    others = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()) if status != "killed")
    print(f"{counts['killed']} of {len(results)} mutants killed ({percent:.1f} %), {others or 'none left'};")
    print(f"drawn from {total} with seed {options.seed}. See one with: mutmut show NAME")
    if percent < options.at_least:
        print(f"At least {options.at_least:g} % are required: read the survivors, add tests or remove the code.")
        return 1
    return 0


def _results() -> dict[str, str]:
    """Return every mutant with its status, as mutmut names it."""
    listed = subprocess.run([_command(), "results", "--all", "true"], check=True, capture_output=True, text=True)
    return dict(line.strip().rsplit(": ", 1) for line in listed.stdout.splitlines() if ": " in line)


def _mutmut(*arguments: str) -> None:
    done = subprocess.run([_command(), *arguments], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.stdout.write(done.stdout.decode(errors="replace")[-4000:])
        raise SystemExit(f"mutmut exited with status {done.returncode}; its last output is above.")


def _command() -> str:
    return str(Path(sys.executable).with_name("mutmut"))


if __name__ == "__main__":
    sys.exit(main())
