"""Finds the Chromium that tests drive."""

from __future__ import annotations

import shutil
from typing import Final

CHROMIUM: Final = "chromium"
HEADLESS_SHELL: Final = "chromium-headless-shell"
"""The same engine without a window, for a little more than half of the CPU time. It cannot block a microphone."""


def find_chromium(*programs: str) -> str:
    """Return the path of the first of these programs that is installed. Raises FileNotFoundError."""
    for program in programs:
        if path := shutil.which(program):
            return path
    raise FileNotFoundError(f"the test needs Chromium; install it, for example with: apt-get install {programs[0]}")
