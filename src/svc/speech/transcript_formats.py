"""The transcript formats of the OpenAI API: json, text, verbose_json, srt, vtt. No I/O.

https://platform.openai.com/docs/api-reference/audio/createTranscription
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import compress

import msgspec
from starlette.responses import Response

from svc.errors import SvcError
from svc.speech.ipc import FinalTranscript, TranscriptSegment
from svc.wire.error import encode_error_body

TRANSCRIPT_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")


def build_response(
    response_format: str,
    transcript: FinalTranscript,
    seconds: float,
    language: str | None,
    granularities: Sequence[str] = ("segment",),
) -> Response:
    """Build the response to an upload of `seconds` seconds of audio. `granularities` selects parts of verbose_json."""
    match response_format:
        case "text":
            return Response(transcript.text + "\n", media_type="text/plain")
        case "srt":
            return Response(_format_subtitles(transcript.segments, ","), media_type="text/plain")
        case "vtt":
            return Response(
                "WEBVTT\n\n" + _format_subtitles(transcript.segments, ".", is_numbered=False), media_type="text/vtt"
            )
        case "verbose_json":
            body: dict[str, Any] = {
                "task": "transcribe",
                "language": language or _detected_language(transcript.segments),
                "duration": round(seconds, 3),
                "text": transcript.text,
                "usage": _usage_object(seconds),
            }
            if "segment" in granularities:
                body["segments"] = [
                    _segment_object(number, segment) for number, segment in enumerate(transcript.segments)
                ]
            if "word" in granularities:
                body["words"] = [
                    {"word": word.word, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
                    for word in transcript.words or ()
                ]
        case _:
            body = {"text": transcript.text, "usage": _usage_object(seconds)}
    return Response(msgspec.json.encode(body), media_type="application/json")


def _detected_language(segments: Sequence[TranscriptSegment]) -> str:
    """Return the first language that the engine detected, else "und" (ISO 639-2: undetermined)."""
    return next((segment.details.language for segment in segments if segment.details.language), "und")


def encode_delta_event(text: str) -> bytes:
    """Encode the event for new text."""
    return _encode_event({"type": "transcript.text.delta", "delta": text})


def encode_done_event(text: str, seconds: float, warning: str) -> bytes:
    """Encode the last event, with the whole text and the audio's duration. `warning` describes a damaged file."""
    body = {"type": "transcript.text.done", "text": text, "usage": _usage_object(seconds)}
    return _encode_event(body | ({"warning": warning} if warning else {}))


def encode_error_event(error: SvcError) -> bytes:
    """Encode the event for a transcript that is incomplete: the body of an error response."""
    return b"data: " + encode_error_body(error) + b"\n\n"


def _encode_event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage_object(seconds: float) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(seconds)}


def _segment_object(number: int, segment: TranscriptSegment) -> dict[str, Any]:
    """Return a segment in Whisper's form: `seek` in frames of 10 ms, `compression_ratio` as of zlib."""
    data = segment.text.encode()
    return {
        "id": number,
        "seek": segment.start_ms // 10,
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "tokens": segment.details.tokens,
        "temperature": segment.details.temperature,
        "avg_logprob": segment.details.avg_logprob,
        "compression_ratio": len(data) / len(compress(data)),
        "no_speech_prob": segment.details.no_speech_prob,
    }


def _format_subtitles(segments: Sequence[TranscriptSegment], decimal_mark: str, *, is_numbered: bool = True) -> str:
    blocks = []
    for number, segment in enumerate(segments, 1):
        head = f"{number}\n" if is_numbered else ""
        blocks.append(
            f"{head}{_format_timestamp(segment.start_ms, decimal_mark)} --> "
            f"{_format_timestamp(segment.end_ms, decimal_mark)}\n{segment.text}\n"
        )
    return "\n".join(blocks)


def _format_timestamp(milliseconds: int, decimal_mark: str) -> str:
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{decimal_mark}{milliseconds:03}"
