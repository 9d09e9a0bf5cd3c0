"""A transcript as server-sent events: OpenAI's `transcript.text.delta`, then `transcript.text.done`.

If the transcription fails after the first event, the stream ends with an `error` event and has no `done`. If it fails
before, the response has the status of the error. A stream without events for a while gets a keep-alive, which counts
as its first event.
https://platform.openai.com/docs/api-reference/audio/transcript-text-delta-event
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from svc.errors import SvcError
from svc.speech import transcript_formats
from svc.speech.upload import UploadRecorder, UploadTranscription, wait_for_disconnect
from svc.wire.sse import KEEP_ALIVE_COMMENT

EVENT_WRITE_TIMEOUT_SECONDS = 60.0
"""Seconds until a client that does not read is disconnected."""
EVENT_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class TranscriptEventStream:
    """An ASGI application that sends the events of one upload. Await `start` first. It closes `resources`."""

    def __init__(
        self,
        upload: UploadTranscription,
        recorder: UploadRecorder,
        resources: AsyncExitStack,
        *,
        keep_alive_seconds: float,
    ) -> None:
        self._upload, self._recorder, self._keep_alive_seconds = upload, recorder, keep_alive_seconds
        self.resources = resources
        self._changed = asyncio.Event()
        self._sent_text = ""
        self._is_done = False

    async def start(self, receive: Receive) -> None:
        """Wait for the first event. Raises SvcError and ClientDisconnect."""
        self._upload.on_stable_text = self._changed.set
        self._transcription_task = asyncio.create_task(self._upload.run(), name="upload")
        self._disconnect_task = asyncio.create_task(wait_for_disconnect(receive), name="upload-client")
        self.resources.push_async_callback(self._cancel_tasks)
        for task in (self._transcription_task, self._disconnect_task):
            task.add_done_callback(lambda _: self._changed.set())
        self._first_event = await self._next_event()

    async def _cancel_tasks(self) -> None:
        for task in (self._transcription_task, self._disconnect_task):
            task.cancel()
        await asyncio.gather(self._transcription_task, self._disconnect_task, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self.resources:
            try:
                await self._send_headers(send)
                event = self._first_event
                while not self._is_done:
                    await _send_chunk(send, event)
                    event = await self._next_event()
                self._recorder.record_success()
            except SvcError as error:
                self._recorder.record_failure(error, is_partially_sent=True)
                event = transcript_formats.encode_error_event(error)
            except (ClientDisconnect, TimeoutError):
                self._recorder.record_disconnect()
                return
            except BaseException:
                self._recorder.record_disconnect()
                raise
            with suppress(TimeoutError):
                await _send_chunk(send, event, has_more=False)

    async def _send_headers(self, send: Send) -> None:
        headers = {**EVENT_STREAM_HEADERS, **self._recorder.headers}
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _next_event(self) -> bytes:
        """Return the next events, or a keep-alive. Sets `_is_done` with the last. Raises SvcError, ClientDisconnect."""
        while True:
            self._changed.clear()
            if self._disconnect_task.done():
                raise ClientDisconnect
            if len(self._upload.stable_text) > len(self._sent_text):
                return self._encode_delta(self._upload.stable_text)
            if self._transcription_task.done():
                transcript = self._transcription_task.result()
                remaining_event = (
                    self._encode_delta(transcript.text) if len(transcript.text) > len(self._sent_text) else b""
                )
                self._is_done = True
                return remaining_event + transcript_formats.encode_done_event(
                    transcript.text, self._upload.seconds, self._upload.warning
                )
            try:
                async with asyncio.timeout(self._keep_alive_seconds):
                    await self._changed.wait()
            except TimeoutError:
                return KEEP_ALIVE_COMMENT

    def _encode_delta(self, text: str) -> bytes:
        """Encode the new text. The text that was sent is a prefix of `text`."""
        delta, self._sent_text = text[len(self._sent_text) :], text
        return transcript_formats.encode_delta_event(delta)


async def _send_chunk(send: Send, data: bytes, *, has_more: bool = True) -> None:
    async with asyncio.timeout(EVENT_WRITE_TIMEOUT_SECONDS):
        await send({"type": "http.response.body", "body": data, "more_body": has_more})
