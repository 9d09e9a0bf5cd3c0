"""The upload form that OpenAI's clients use: a whole file in, a transcript out, on the same workers as the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import Any

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from svc.distribution import install_command
from svc.errors import InvalidRequest, SpeechFailed, SvcError
from svc.speech import link, transcripts
from svc.speech.books import UPLOAD_PATH
from svc.speech.files import Sound, opened
from svc.speech.pool import Seat
from svc.speech.service import Service
from svc.wire.key import Key
from svc.wire.speech import MAX_NAME, Config

PATIENCE = 600.0
"""Seconds without any progress of the worker."""


class Wanted(msgspec.Struct, frozen=True):
    """What the form says."""

    file: UploadFile
    config: Config
    shape: str


async def transcribe(service: Service, key: Key, request: Request) -> Response:
    """Answers the form. Raises InvalidRequest, ModelNotFound, RateLimited, SpeechFailed."""
    if find_spec("python_multipart") is None:
        raise SpeechFailed(f"Speech is not installed here: {install_command('speech')}.")
    try:
        async with request.form(max_files=1, max_fields=32) as form:
            wanted = _wanted(form)
            await asyncio.to_thread(wanted.file.file.rollover)  # type: ignore[attr-defined]
            return await _heard(service, key, request, wanted)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody hears it
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from None


def _wanted(form: FormData) -> Wanted:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("There is no 'file' in the form (multipart/form-data).", param="file")
    shape = _text(form, "response_format") or "json"
    if shape not in transcripts.SHAPES:
        raise InvalidRequest(
            f"'response_format' is not one of {', '.join(transcripts.SHAPES)}.", param="response_format"
        )
    if (_text(form, "stream") or "false").lower() not in ("false", "0"):
        raise InvalidRequest("'stream' is not offered here; the WebSocket beside it streams.", param="stream")
    return Wanted(file, Config(model=_text(form, "model"), language=_text(form, "language")), shape)


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise InvalidRequest(f"{name!r} is not a short text.", param=name)
    return value


async def _heard(service: Service, key: Key, request: Request, wanted: Wanted) -> Response:
    """The transcript, and the books."""
    visit = await service.visits.enter(key, UPLOAD_PATH, request.scope["request_ids"])
    asked = wanted.config.model or service.settings.default_model
    upload = _Upload(service, key, wanted)
    service.counts.began("upload")
    try:
        done = await _unless_gone(request.receive, upload.run())
    except SvcError as error:
        service.counts.failed(error.code)
        visit.end("error", error.status, asked=asked, model=upload.model, code=error.code)
        raise
    except BaseException:
        visit.end("client_closed", 499, asked=asked, model=upload.model)
        raise
    visit.end("ok", 200, asked=asked, model=upload.model)
    answer = transcripts.answer(wanted.shape, done, upload.seconds, upload.language)
    answer.headers.update(visit.headers)
    if upload.warning:
        answer.headers["x-svc-warning"] = upload.warning
    return answer


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, link.Done]) -> link.Done:
    """Does the work; lets go of it when the client leaves. Raises ClientDisconnect then."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Upload:
    """Feeds a seat, and waits for its one answer."""

    def __init__(self, service: Service, key: Key, wanted: Wanted) -> None:
        self._service, self._key, self._wanted = service, key, wanted
        self._answer: asyncio.Future[link.Done] = asyncio.get_running_loop().create_future()
        self._moved = asyncio.Event()
        self._seat: Seat | None = None
        self.model: str | None = None
        """The one that was reached."""
        self.language: str | None = None
        self.seconds = 0.0
        self.warning = ""

    async def run(self) -> link.Done:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._service.pool.admit())
            sound = await stack.enter_async_context(
                opened(self._wanted.file.file, self._service.settings.max_upload_seconds)
            )
            self._seat, self.model, self.language = await self._service.attach(
                self._key, self._wanted.config, self, format_=sound.format, live=False
            )
            stack.callback(self._seat.release)
            stack.callback(self._answer.cancel)
            await self._feed(self._seat, sound)
            self.seconds, self.warning = sound.seconds, sound.warning
            self._service.counts.seconds += sound.seconds
            answer: link.Done = await self._wait(asyncio.shield(self._answer))
            return answer

    async def _feed(self, seat: Seat, sound: Sound) -> None:
        async for piece in sound.pieces():
            while seat.full and not self._answer.done():
                self._moved.clear()
                await self._wait(self._moved.wait())
            if self._answer.done():  # it failed
                return
            seat.feed(piece)
        seat.flush()

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
