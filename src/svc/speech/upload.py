"""An upload in progress: sends a whole file to a speech worker and writes its ledger entry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive

from svc.errors import InvalidRequest, SpeechFailed, SvcError
from svc.speech import ipc
from svc.speech.accounting import SpeechRequestStatus, TrackedSpeechRequest
from svc.speech.audio_files import AudioSource, open_audio
from svc.speech.pool import WorkerSlot
from svc.speech.service import SpeechService
from svc.speech.upload_form import TranscriptionRequest
from svc.wire.key import ApiKey

WORKER_PROGRESS_TIMEOUT_SECONDS = 600.0
"""Seconds without progress of the worker until it is killed."""


class UploadRecorder:
    """Writes the ledger entry of an upload. Only the first end counts."""

    def __init__(self, service: SpeechService, tracked_request: TrackedSpeechRequest) -> None:
        self._service, self._tracked_request = service, tracked_request
        self.upload: UploadTranscription | None = None
        """None until the form is parsed."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers with the remaining limits of the key."""
        return self._tracked_request.headers

    def record_success(self) -> None:
        """Record success. Call it before the last byte is sent."""
        self._record_end("ok", 200)

    def record_failure(self, error: SvcError, *, is_partially_sent: bool = False) -> None:
        """Record an error. `is_partially_sent`: a part of the transcript was sent."""
        self._service.metrics.record_error(error.code)
        if is_partially_sent:
            self._record_end("cut", 200, error.code)
        else:
            self._record_end("error", error.status, error.code)

    def record_disconnect(self) -> None:
        """Record that the client disconnected."""
        self._record_end("client_closed", 499)

    def _record_end(self, status: SpeechRequestStatus, http_status: int, code: str | None = None) -> None:
        upload = self.upload
        requested, model = (upload.requested_model, upload.model) if upload is not None else (None, None)
        self._tracked_request.finish(status, http_status, requested_model=requested, model=model, code=code)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


class UploadTranscription:
    """Sends a file to a worker slot and waits for the final transcript."""

    def __init__(self, service: SpeechService, key: ApiKey, request: TranscriptionRequest, request_id: str) -> None:
        self._service, self._key, self._request, self._request_id = service, key, request, request_id
        self._result: asyncio.Future[ipc.FinalTranscript] = asyncio.get_running_loop().create_future()
        self._progress = asyncio.Event()
        self._slot: WorkerSlot | None = None
        self.requested_model = request.config.model or service.settings.default_model
        self.model: str | None = None
        """The model that serves the request."""
        self.language: str | None = None
        self.seconds = 0.0
        self.warning = ""
        self.stable_text = ""
        """The stable text so far, a prefix of the transcript."""
        self.on_stable_text: Callable[[], None] = _ignore_text
        """Called when `stable_text` has grown."""

    async def run(self) -> ipc.FinalTranscript:
        """Transcribe the file. Raises InvalidRequest, ModelNotFound, RateLimited and SpeechFailed."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._service.pool.reserve_session())
            source = await stack.enter_async_context(
                open_audio(self._request.file.file, self._service.settings.max_upload_seconds)
            )
            self._slot, self.model, self.language = await self._service.acquire_slot(
                self._key,
                self._request.config,
                self,
                format_=source.format,
                live=False,
                with_words=self._requires_words,
                request_id=self._request_id,
            )
            stack.callback(self._slot.release)
            stack.callback(self._result.cancel)
            if self._requires_words and not self._slot.has_word_times:
                raise self._no_word_times_error()
            await self._send_audio(self._slot, source)
            self.seconds, self.warning = source.seconds, source.warning
            self._service.metrics.audio_seconds += source.seconds
            transcript: ipc.FinalTranscript = await self._wait_with_timeout(asyncio.shield(self._result))
            if self._requires_words and transcript.words is None:
                raise self._no_word_times_error()
            return transcript

    @property
    def _requires_words(self) -> bool:
        return "word" in self._request.granularities

    def _no_word_times_error(self) -> InvalidRequest:
        return InvalidRequest(
            f"The model {self.model!r} has no word timestamps. Use 'segment'.", param="timestamp_granularities"
        )

    async def _send_audio(self, slot: WorkerSlot, source: AudioSource) -> None:
        async for chunk in source.chunks():
            while slot.is_full and not self._result.done():
                self._progress.clear()
                await self._wait_with_timeout(self._progress.wait())
            if self._result.done():  # the recognition failed
                return
            slot.send_audio(chunk)
        slot.flush()

    async def _wait_with_timeout(self, awaitable: Any) -> Any:
        try:
            async with asyncio.timeout(WORKER_PROGRESS_TIMEOUT_SECONDS):
                return await awaitable
        except TimeoutError:
            if self._slot is not None:
                self._slot.kill_worker()
            raise SpeechFailed("The speech worker timed out.") from None

    def on_audio_processed(self, byte_count: int) -> None:
        if self._slot is not None:
            self._slot.unprocessed_bytes -= byte_count
        self._progress.set()

    def on_hypothesis(self, message: ipc.RecognitionHypothesis) -> None:
        if message.is_stable:
            self.stable_text = message.text
            self.on_stable_text()

    def on_final(self, message: ipc.FinalTranscript) -> None:
        if not self._result.done():
            self._result.set_result(message)

    def on_recognition_failed(self, message: str) -> None:
        self._fail(message)

    def on_worker_lost(self, message: str) -> None:
        self._fail("The speech worker died. Try again.")

    def _fail(self, message: str) -> None:
        if not self._result.done():
            self._result.set_exception(SpeechFailed(message))
        self._progress.set()


def _ignore_text() -> None:
    """Ignore the text: the request does not stream."""
