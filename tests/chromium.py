"""Finds the Chromium that tests drive."""

from __future__ import annotations

import shutil
from typing import Final

PROGRAMS: Final = ("chromium-headless-shell", "chromium")
"""The same engine. The first has no window, and takes a little more than half of the CPU time in the tests."""


def find_chromium() -> str:
    """Return the path of Chromium. Raises FileNotFoundError."""
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    raise FileNotFoundError(f"the test needs Chromium; install it, for example with: apt-get install {PROGRAMS[0]}")
