"""What a decoder gives: a module of this package has one function.

def decode(file: BinaryIO, kind: str) -> Decoded      # raises whatever the library raises
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Decoded(NamedTuple):
    """A sound file that is open."""

    rate: int
    """Samples per second."""
    seconds: float | None
    """How long the file says that it lasts; None if it does not say, or only an estimate would."""
    pieces: Iterator[bytes]
    """16-bit mono samples."""
