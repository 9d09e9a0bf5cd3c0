"""The interface of a decoder. Each module of this package has one function.

def decode(file: BinaryIO, kind: str) -> Decoded      # raises whatever the library raises
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class DecodedAudio(NamedTuple):
    """A sound file that is open."""

    rate: int
    """Samples per second."""
    seconds: float | None
    """The duration that the file states. None if it states none, or only an estimate is possible."""
    chunks: Iterator[bytes]
    """16-bit mono samples."""
