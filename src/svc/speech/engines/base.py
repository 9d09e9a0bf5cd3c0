"""The interface of an engine. An engine module has one function:

def load(model: RecognitionModel) -> RecognitionEngine   # in a worker process; raises the library's exceptions
"""

from __future__ import annotations

from typing import Protocol

from svc.speech.ipc import Hypothesis
from svc.speech.resample import Samples


class SegmentDecoder(Protocol):
    """Decodes one segment of speech. `samples` is always the whole segment so far: mono floats at 16 kHz."""

    def decode_partial(self, samples: Samples) -> Hypothesis:
        """Return a hypothesis for the segment so far."""

    def decode_final(self, samples: Samples) -> Hypothesis:
        """Return the transcript of the complete segment."""


class RecognitionEngine(Protocol):
    """A loaded model. Two threads may use one segment decoder at a time, unless the engine is incremental."""

    is_incremental: bool
    """Whether a segment decoder keeps its state, so that a hypothesis costs only the new audio. It has one thread."""

    has_word_times: bool
    """Whether the model may report the times of words. False rejects a request for them before its audio is decoded."""

    def begin_segment(self, language: str | None, *, with_words: bool = False) -> SegmentDecoder:
        """Return a decoder for a new segment. Without a language the model chooses.

        `with_words`: `decode_final` must return the times of words, if the model can find them at extra cost.
        """
