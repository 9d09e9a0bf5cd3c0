"""`POST /v1/audio/transcriptions`: a whole file in; a transcript out, whole or as events."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib.util import find_spec

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from svc.distribution import install_command
from svc.errors import InvalidRequest, SpeechFailed, SvcError
from svc.speech import transcripts
from svc.speech.books import UPLOAD_PATH
from svc.speech.events import TranscriptStream
from svc.speech.form import Wanted, wanted_of
from svc.speech.service import Service
from svc.speech.upload import Entry, Upload, disconnected
from svc.wire.key import Key


async def transcribe(service: Service, key: Key, request: Request) -> Response | TranscriptStream:
    """Answers the form. Raises InvalidRequest, ModelNotFound, RateLimited, SpeechFailed.

    The request is counted before its form is read, so that malformed ones count for the key's limits.
    """
    if find_spec("python_multipart") is None:
        raise SpeechFailed(f"Speech is not installed here: {install_command('speech')}.")
    visit = await service.visits.enter(key, UPLOAD_PATH, request.scope["request_ids"])
    entry = Entry(service, visit)
    try:
        async with AsyncExitStack() as resources:
            wanted = await _wanted(request, resources)
            entry.upload = upload = Upload(service, key, wanted)
            service.counts.began("upload")
            if wanted.stream:
                stream = TranscriptStream(upload, entry, resources)
                await stream.start(request.receive)
                stream.resources = resources.pop_all()
                return stream
            return await _whole(upload, entry, request, wanted.shape)
    except SvcError as error:
        entry.fail(error)
        raise
    except ClientDisconnect:
        entry.leave()
        return Response(status_code=499)  # the client has left
    except BaseException:
        entry.leave()
        raise


async def _wanted(request: Request, resources: AsyncExitStack) -> Wanted:
    """The form, which is open as long as `resources`."""
    try:
        form = await resources.enter_async_context(request.form(max_files=1, max_fields=32))
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from None
    wanted = wanted_of(form)
    await asyncio.to_thread(wanted.file.file.rollover)  # type: ignore[attr-defined]
    return wanted


async def _whole(upload: Upload, entry: Entry, request: Request, shape: str) -> Response:
    """The transcript when all of it is known. Lets go of the work when the client leaves: raises ClientDisconnect."""
    working = asyncio.create_task(upload.run(), name="upload")
    leaving = asyncio.create_task(disconnected(request.receive), name="upload-client")
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        done = working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    entry.succeed()
    answer = transcripts.answer(shape, done, upload.seconds, upload.language)
    answer.headers.update(entry.headers)
    if upload.warning:
        answer.headers["x-svc-warning"] = upload.warning
    return answer
