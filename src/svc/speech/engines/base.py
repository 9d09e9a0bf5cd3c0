"""The interface of an engine. An engine module has one function:

def load(model: RecognitionModel) -> RecognitionEngine   # in a worker process; raises the library's exceptions
"""

from __future__ import annotations

from typing import Protocol

from svc.speech.ipc import DecodingDetails
from svc.speech.resample import Samples


class SegmentDecoder(Protocol):
    """Decodes one segment of speech. `samples` is always the whole segment so far: mono floats at 16 kHz."""

    details: DecodingDetails
    """The details of the last `decode_final`."""

    def decode_partial(self, samples: Samples) -> str:
        """Return a hypothesis for the segment so far."""

    def decode_final(self, samples: Samples) -> str:
        """Return the text of the complete segment."""


class RecognitionEngine(Protocol):
    """A loaded model. Two threads may use one segment decoder at a time, unless the engine is incremental."""

    is_incremental: bool
    """Whether a segment decoder keeps its state, so that a hypothesis costs only the new audio. It has one thread."""

    def begin_segment(self, language: str | None) -> SegmentDecoder:
        """Return a decoder for a new segment. Without a language the model chooses."""
