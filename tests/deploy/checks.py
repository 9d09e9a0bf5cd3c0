"""What all checks of `tests.deploy` use."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

STEP_SECONDS = 600


class CheckFailed(Exception):
    """A check of the files in `deploy/` failed, or cannot run here."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return the standard output of a command. Raises CheckFailed if it fails."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=STEP_SECONDS, check=False)
    if done.returncode:
        raise CheckFailed(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout
