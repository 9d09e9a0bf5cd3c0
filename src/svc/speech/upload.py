"""The upload form that OpenAI's clients use: a whole file in, a transcript out, on the same workers as the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import msgspec
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from svc.errors import InvalidRequest, SpeechFailed
from svc.security import Key
from svc.speech import link
from svc.speech.audio import Format, read_wav
from svc.speech.pool import SLICE, Seat
from svc.speech.service import Service
from svc.wire.speech import MAX_NAME, Config

FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
MAX_FILE = 512 << 20
"""Bytes; the gateway's own limit on a body comes first."""
PATIENCE = 600.0
"""Seconds without any progress of the worker."""


async def transcribe(service: Service, key: Key, request: Request) -> Response:
    """Answers the form. Raises InvalidRequest, ModelNotFound, RateLimited, SpeechFailed."""
    if find_spec("python_multipart") is None:
        raise SpeechFailed("Speech is not installed here: pip install 'svc[speech]'.")
    try:
        async with request.form(max_files=1, max_fields=32) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise InvalidRequest("There is no 'file' in the form (multipart/form-data).", param="file")
            config = Config(model=_text(form, "model"), language=_text(form, "language"))
            shape = _text(form, "response_format") or "json"
            if shape not in FORMATS:
                raise InvalidRequest(f"'response_format' is not one of {', '.join(FORMATS)}.", param="response_format")
            if (_text(form, "stream") or "false").lower() not in ("false", "0"):
                raise InvalidRequest("'stream' is not offered here; the WebSocket beside it streams.", param="stream")
            data = await file.read(MAX_FILE)
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from None
    wav = read_wav(data)
    leave = service.pool.admit()
    try:
        done, language = await _Upload(wav.format, wav.samples).run(service, key, config)
    finally:
        leave()
    answer = _answer(shape, done, wav.seconds, language)
    if wav.lacks:
        answer.headers["x-svc-warning"] = wav.lacks
    return answer


def _text(form: Any, name: str) -> str | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise InvalidRequest(f"{name!r} is not a short text.", param=name)
    return value


class _Upload:
    """Feeds a seat, and waits for its one answer."""

    def __init__(self, format_: Format, samples: memoryview) -> None:
        self._format, self._samples = format_, samples
        self._answer: asyncio.Future[link.Done] = asyncio.get_running_loop().create_future()
        self._moved = asyncio.Event()
        self._seat: Seat | None = None

    async def run(self, service: Service, key: Key, config: Config) -> tuple[link.Done, str | None]:
        self._seat, _, language = await service.attach(key, config, self, format_=self._format, live=False)
        try:
            step = SLICE - SLICE % self._format.frame
            for place in range(0, len(self._samples), step):
                while self._seat.full and not self._answer.done():
                    self._moved.clear()
                    await self._wait(self._moved.wait())
                self._seat.feed(bytes(self._samples[place : place + step]))
            self._seat.flush()
            return await self._wait(asyncio.shield(self._answer)), language
        finally:
            self._seat.release()
            self._answer.cancel()

    async def _wait(self, what: Any) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await what
        except TimeoutError:
            if self._seat is not None:
                self._seat.abandon()
            raise SpeechFailed("The speech worker took too long.") from None

    def took(self, size: int) -> None:
        if self._seat is not None:
            self._seat.ahead -= size
        self._moved.set()

    def heard(self, message: link.Heard) -> None:
        """Partials are not wanted, and not made."""

    def done(self, message: link.Done) -> None:
        if not self._answer.done():
            self._answer.set_result(message)

    def faulted(self, message: str) -> None:
        self._fail(message)

    def lost(self, message: str) -> None:
        self._fail("The speech worker died; try again.")

    def _fail(self, message: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(SpeechFailed(message))
        self._moved.set()


def _answer(shape: str, done: link.Done, seconds: float, language: str | None) -> Response:
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


def _segment(number: int, segment: link.Segment) -> dict[str, Any]:
    return {"id": number, "start": segment.start / 1000, "end": segment.end / 1000, "text": segment.text}


def _subtitles(segments: Sequence[link.Segment], point: str, *, numbers: bool = True) -> str:
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
