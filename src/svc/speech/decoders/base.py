"""The interface of a decoder module: one function.

def decode(file: BinaryIO, kind: str) -> DecodedAudio      # raises the library's exceptions
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class DecodedAudio(NamedTuple):
    """An open audio file."""

    rate: int
    """Samples per second."""
    seconds: float | None
    """The duration that the file states. None if it states none, or only an estimate is possible."""
    chunks: Iterator[bytes]
    """16-bit mono samples."""
