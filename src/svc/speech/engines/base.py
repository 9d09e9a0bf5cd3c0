"""What every engine offers. An engine is a module of this package with one function:

def load(model: Model) -> Engine        # raises whatever the library raises; it runs in a worker process
"""

from __future__ import annotations

from typing import Protocol

from svc.speech.ipc import DecodingDetails
from svc.speech.resample import Samples


class SegmentDecoder(Protocol):
    """One segment of speech. `samples` is always the whole segment so far, floats at 16 kHz."""

    details: DecodingDetails
    """Of the last `final`."""

    def decode_partial(self, samples: Samples) -> str:
        """What has been said so far."""

    def decode_final(self, samples: Samples) -> str:
        """What was said; nothing comes after it."""


class RecognitionEngine(Protocol):
    """A loaded model. Two threads use it, and may at once ask the same Hearing, unless it is incremental."""

    is_incremental: bool
    """A Hearing remembers what it had, so that a hypothesis costs only what is new, and all are made by one thread."""

    def begin_segment(self, language: str | None) -> SegmentDecoder:
        """A new segment; None is the model's own choice of a language."""
