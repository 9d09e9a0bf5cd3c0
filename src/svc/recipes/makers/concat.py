"""Concatenates the parts of a file that is too large for one package."""

from __future__ import annotations


def make(*parts: bytes) -> bytes:
    """Return the concatenated parts."""
    return b"".join(parts)
