"""The name of this program on a package index, and the command that installs one of its extras."""

from __future__ import annotations

from typing import Final

DISTRIBUTION_NAME: Final = "svc-gateway"
"""Not `svc`, the name of the command and of the import: on the public index that is a stranger's package."""


def install_command(*extras: str) -> str:
    """The shell command that installs this program with some of its extras, for messages."""
    return f"pip install '{DISTRIBUTION_NAME}[{','.join(extras)}]'"
