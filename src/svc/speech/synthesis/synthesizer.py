"""Turns a text into encoded audio, part by part. Blocking: a thread or a command runs it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from svc.errors import InvalidRequest
from svc.speech.audio import AudioFormat
from svc.speech.resample import Resampler, Samples, to_mono_floats
from svc.speech.synthesis.encoders import SPEECH_SAMPLE_RATE_HZ, create_encoder
from svc.speech.synthesis.sentences import split_for_streaming
from svc.speech.synthesis.voice import VoiceEngine
from svc.wire.synthesis import SPEECH_CONTENT_TYPES, SpeechRequest

MAX_HOLD_SECONDS = 0.25
"""Speech that is made within this time is sent at once if its header can then state the length."""
SENTENCE_PAUSE_SECONDS, PART_PAUSE_SECONDS = 0.25, 0.0
"""Silence after a sentence, and after another part, at the speed 1."""
_SENTENCE_ENDS = tuple(".!?…。！？\"'”’)]")


def synthesize(engine: VoiceEngine, request: SpeechRequest) -> Iterator[bytes]:
    """Yield the audio as it is made. Raises InvalidRequest before the first chunk if there is nothing to say.

    Raises PipelineFailed if the engine fails, also after the first chunk.
    """
    parts = split_for_streaming(request.input)
    if not parts:
        raise InvalidRequest("`input` has nothing to say: no letter and no digit.", param="input")
    encoder = create_encoder(request.format)
    spoken = _speak_parts(engine, request, parts)
    if encoder.has_length_field:
        spoken = _hold_short_speech(spoken, parts)
    for samples, is_last in spoken:
        for start in range(0, max(1, len(samples)), encoder.block_samples):
            end = start + encoder.block_samples
            if encoded := encoder.encode(samples[start:end], is_last=is_last and end >= len(samples)):
                yield encoded


def _speak_parts(engine: VoiceEngine, request: SpeechRequest, parts: list[str]) -> Iterator[tuple[Samples, bool]]:
    """Yield the samples of each part, and whether it is the last one."""
    speed = 1.0 if request.speed is None else request.speed
    resampler: Resampler | None = None
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        rate, data = engine.say(part, speed, request.voice_name)
        resampler = resampler or Resampler(rate, SPEECH_SAMPLE_RATE_HZ)
        samples = resampler.push(_with_pause(data, rate, 0.0 if is_last else _pause_after(part) / speed))
        yield (np.concatenate((samples, resampler.finish())) if is_last else samples), is_last


def _hold_short_speech(spoken: Iterator[tuple[Samples, bool]], parts: list[str]) -> Iterator[tuple[Samples, bool]]:
    """Join the parts if, at the pace of the first ones, all are spoken within MAX_HOLD_SECONDS.

    A header can then state the length.
    """
    total_characters = sum(map(len, parts))
    started_at, spoken_characters = time.monotonic(), 0
    held: list[Samples] = []
    for part in parts:
        samples, is_last = next(spoken)
        held.append(samples)
        spoken_characters += len(part)
        expected_seconds = (time.monotonic() - started_at) * total_characters / spoken_characters
        if is_last or expected_seconds > MAX_HOLD_SECONDS:
            yield np.concatenate(held), is_last
            break
    yield from spoken


def check_supported(request: SpeechRequest) -> None:
    """Raise InvalidRequest that names a field whose value no voice of this machine supports."""
    if request.format not in SPEECH_CONTENT_TYPES:
        *others, last = SPEECH_CONTENT_TYPES
        raise InvalidRequest(
            f"`response_format` {request.format} cannot be made on this machine. Use {', '.join(others)} or {last}.",
            param="response_format",
        )
    if request.stream_format == "sse":
        raise InvalidRequest("`stream_format` sse is not supported by voices of this machine.", param="stream_format")


def _with_pause(data: bytes, rate: int, seconds: float) -> Samples:
    return to_mono_floats(data + bytes(2 * int(rate * seconds)), AudioFormat(rate))


def _pause_after(part: str) -> float:
    return SENTENCE_PAUSE_SECONDS if part.endswith(_SENTENCE_ENDS) else PART_PAUSE_SECONDS
