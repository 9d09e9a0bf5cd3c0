"""A transcript in the shapes that OpenAI's clients ask for: json, text, verbose_json, srt, vtt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from svc.speech.link import Done, Segment

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
                "language": language,
                "duration": round(seconds, 3),
                "text": done.text,
                "segments": [_segment(number, each) for number, each in enumerate(done.segments)],
            }
        case _:
            body = {"text": done.text, "usage": {"type": "duration", "seconds": round(seconds)}}
    return Response(msgspec.json.encode(body), media_type="application/json")


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {"id": number, "start": segment.start / 1000, "end": segment.end / 1000, "text": segment.text}


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
