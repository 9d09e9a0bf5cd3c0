"""Define the distribution name of this program, and the command that installs its extras."""

from __future__ import annotations

from typing import Final

DISTRIBUTION_NAME: Final = "svc-gateway"
"""Differs from the command and import name `svc`, which is another package on the public index."""
INSTALL_COMMAND: Final = f"pip install {DISTRIBUTION_NAME}"
"""The shell command that installs the program with all packages that it needs."""


def install_command(*extras: str) -> str:
    """Return the shell command that installs extras, for messages."""
    return f"pip install '{DISTRIBUTION_NAME}[{','.join(extras)}]'"
