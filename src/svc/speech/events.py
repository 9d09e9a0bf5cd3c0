"""A transcript as server-sent events while it is made: OpenAI's `transcript.text.delta`, then `transcript.text.done`.

A transcript that fails after its first event ends with an `error` event and has no `done`. One that fails before has
the status of the error. https://platform.openai.com/docs/api-reference/audio/transcript-text-delta-event
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from svc.errors import SvcError
from svc.speech import transcripts
from svc.speech.upload import Entry, Upload, disconnected

WRITE_TIMEOUT = 60.0
"""Seconds in which a client must take something."""
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class TranscriptStream:
    """An ASGI application that answers one upload: `start` it first, and give it what it is to close in the end."""

    def __init__(self, upload: Upload, entry: Entry, resources: AsyncExitStack) -> None:
        self._upload, self._entry = upload, entry
        self.resources = resources
        self._changed = asyncio.Event()
        self._sent = ""
        self._over = False

    async def start(self, receive: Receive) -> None:
        """Waits for the first event. Raises SvcError, ClientDisconnect."""
        self._upload.on_text = self._changed.set
        self._working = asyncio.create_task(self._upload.run(), name="upload")
        self._leaving = asyncio.create_task(disconnected(receive), name="upload-client")
        self.resources.push_async_callback(self._stop)
        for task in (self._working, self._leaving):
            task.add_done_callback(lambda _: self._changed.set())
        self._first = await self._next()

    async def _stop(self) -> None:
        for task in (self._working, self._leaving):
            task.cancel()
        await asyncio.gather(self._working, self._leaving, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        async with self.resources:
            try:
                await self._begin(send)
                event = self._first
                while not self._over:
                    await _write(send, event)
                    event = await self._next()
                self._entry.succeed()
            except SvcError as error:
                self._entry.fail(error, begun=True)
                event = transcripts.failure(error)
            except (ClientDisconnect, TimeoutError):
                self._entry.leave()
                return
            except BaseException:
                self._entry.leave()
                raise
            with suppress(TimeoutError):
                await _write(send, event, more=False)

    async def _begin(self, send: Send) -> None:
        headers = {**HEADERS, **self._entry.headers}
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _next(self) -> bytes:
        """The next events; `_over` if they are the last. Raises SvcError, ClientDisconnect."""
        while True:
            self._changed.clear()
            if self._leaving.done():
                raise ClientDisconnect
            if len(self._upload.text) > len(self._sent):
                return self._delta(self._upload.text)
            if self._working.done():
                done = self._working.result()
                rest = self._delta(done.text) if len(done.text) > len(self._sent) else b""
                self._over = True
                return rest + transcripts.done(done.text, self._upload.warning)
            await self._changed.wait()  # the upload has a limit of its own for each of its steps

    def _delta(self, text: str) -> bytes:
        """The text that is new; what was sent is a prefix of what follows."""
        delta, self._sent = text[len(self._sent) :], text
        return transcripts.delta(delta)


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT):
        await send({"type": "http.response.body", "body": data, "more_body": more})
