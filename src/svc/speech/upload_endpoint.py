"""`POST /v1/audio/transcriptions`: an audio file in, a transcript out, as one response or as events."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from importlib.util import find_spec

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from svc.distribution import install_command
from svc.errors import InsufficientStorage, InvalidRequest, SpeechFailed, SvcError
from svc.speech import transcript_formats
from svc.speech.accounting import UPLOAD_TRANSCRIPTION_PATH
from svc.speech.events import TranscriptEventStream
from svc.speech.service import SpeechService
from svc.speech.upload import UploadRecorder, UploadTranscription, wait_for_disconnect
from svc.speech.upload_form import TranscriptionRequest, parse_upload_form
from svc.wire.key import ApiKey
from svc.wire.request_identity import SCOPE_IDENTITY

log = logging.getLogger("svc.speech")


async def transcribe_upload(service: SpeechService, key: ApiKey, request: Request) -> Response | TranscriptEventStream:
    """Transcribe an upload. Raises InsufficientStorage, InvalidRequest, ModelNotFound, RateLimited, SpeechFailed.

    The request is counted before its form is parsed, so malformed requests count for the key's limits.
    """
    if find_spec("python_multipart") is None:
        raise SpeechFailed(f"Speech is not installed. Install it with: {install_command('speech')}.")
    identity = request.scope[SCOPE_IDENTITY]
    tracked_request = await service.request_tracker.track(key, UPLOAD_TRANSCRIPTION_PATH, identity)
    recorder = UploadRecorder(service, tracked_request)
    try:
        async with AsyncExitStack() as resources:
            transcription_request = await read_form(request, resources)
            recorder.upload = upload = UploadTranscription(service, key, transcription_request, identity.request_id)
            service.metrics.record_request("upload")
            if transcription_request.stream:
                stream = TranscriptEventStream(
                    upload, recorder, resources, keep_alive_seconds=service.stream_keep_alive
                )
                await stream.start(request.receive)
                stream.resources = resources.pop_all()
                return stream
            return await _respond_whole(upload, recorder, request, transcription_request)
    except SvcError as error:
        recorder.record_failure(error)
        raise
    except ClientDisconnect:
        recorder.record_disconnect()
        return Response(status_code=499)
    except BaseException:
        recorder.record_disconnect()
        raise


async def read_form(request: Request, resources: AsyncExitStack) -> TranscriptionRequest:
    """Parse the form. Its files stay open as long as `resources`. Raises InsufficientStorage and InvalidRequest."""
    try:
        form = await resources.enter_async_context(request.form(max_files=1, max_fields=32))
        transcription_request = parse_upload_form(form)
        await asyncio.to_thread(transcription_request.file.file.rollover)  # type: ignore[attr-defined]
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from None
    except OSError as error:  # such as a full disk, or a read-only one
        log.error("an upload cannot be stored in the temporary folder: %s", error.strerror or error)
        raise InsufficientStorage("The server cannot store the upload in its temporary folder.") from None
    return transcription_request


async def _respond_whole(
    upload: UploadTranscription, recorder: UploadRecorder, request: Request, form: TranscriptionRequest
) -> Response:
    """Return the complete transcript. If the client disconnects, cancel the work and raise ClientDisconnect."""
    transcription_task = asyncio.create_task(upload.run(), name="upload")
    disconnect_task = asyncio.create_task(wait_for_disconnect(request.receive), name="upload-client")
    try:
        await asyncio.wait((transcription_task, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
        if not transcription_task.done():
            raise ClientDisconnect
        transcript = transcription_task.result()
    finally:
        for task in (transcription_task, disconnect_task):
            task.cancel()
        await asyncio.gather(transcription_task, disconnect_task, return_exceptions=True)
    recorder.record_success()
    response = transcript_formats.build_response(
        form.response_format, transcript, upload.seconds, upload.language, form.granularities
    )
    response.headers.update(recorder.headers)
    if form.dropped_fields:
        response.headers["x-svc-dropped"] = ",".join(form.dropped_fields)
    if upload.warning:
        response.headers["x-svc-warning"] = upload.warning
    return response
