"""A transcript in the shapes that OpenAI's clients ask for: json, text, verbose_json, srt, vtt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import compress

import msgspec
from starlette.responses import Response

from svc.errors import SvcError
from svc.speech.link import Done, Segment
from svc.wire.problem import encode_problem

SHAPES = ("json", "text", "verbose_json", "srt", "vtt")


def answer(shape: str, done: Done, seconds: float, language: str | None) -> Response:
    """The answer to an upload of so many seconds."""
    match shape:
        case "text":
            return Response(done.text + "\n", media_type="text/plain")
        case "srt":
            return Response(_subtitles(done.segments, ","), media_type="text/plain")
        case "vtt":
            return Response("WEBVTT\n\n" + _subtitles(done.segments, ".", numbers=False), media_type="text/vtt")
        case "verbose_json":
            body: dict[str, Any] = {
                "task": "transcribe",
                "language": language or _language(done.segments),
                "duration": round(seconds, 3),
                "text": done.text,
                "usage": _usage(seconds),
                "segments": [_segment(number, each) for number, each in enumerate(done.segments)],
            }
        case _:
            body = {"text": done.text, "usage": _usage(seconds)}
    return Response(msgspec.json.encode(body), media_type="application/json")


def _language(segments: Sequence[Segment]) -> str:
    """The first that the engine found out, else "und", ISO 639-2's code for one that is not determined."""
    return next((each.details.language for each in segments if each.details.language), "und")


def delta(text: str) -> bytes:
    """The event for more text."""
    return _event({"type": "transcript.text.delta", "delta": text})


def done(text: str, warning: str) -> bytes:
    """The event for the end, with the whole text; `warning` is what is wrong with the file, if anything."""
    return _event({"type": "transcript.text.done", "text": text} | ({"warning": warning} if warning else {}))


def failure(error: SvcError) -> bytes:
    """The event for a transcript that ends before it is whole: the body of an error answer."""
    return b"data: " + encode_problem(error) + b"\n\n"


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage(seconds: float) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(seconds)}


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    """As Whisper describes one: `seek` is in frames of 10 ms, `compression_ratio` is that of zlib."""
    data = segment.text.encode()
    return {
        "id": number,
        "seek": segment.start // 10,
        "start": segment.start / 1000,
        "end": segment.end / 1000,
        "text": segment.text,
        "tokens": segment.details.tokens,
        "temperature": segment.details.temperature,
        "avg_logprob": segment.details.avg_logprob,
        "compression_ratio": len(data) / len(compress(data)),
        "no_speech_prob": segment.details.no_speech_prob,
    }


def _subtitles(segments: Sequence[Segment], point: str, *, numbers: bool = True) -> str:
    blocks = []
    for number, segment in enumerate(segments, 1):
        head = f"{number}\n" if numbers else ""
        blocks.append(f"{head}{_clock(segment.start, point)} --> {_clock(segment.end, point)}\n{segment.text}\n")
    return "\n".join(blocks)


def _clock(milliseconds: int, point: str) -> str:
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}"
