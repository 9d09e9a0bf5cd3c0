"""An upload at work: a whole file goes to the same workers as live speech, and has an entry in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive

from svc.errors import SpeechFailed, SvcError
from svc.speech import link
from svc.speech.books import Status, Visit
from svc.speech.files import Sound, opened
from svc.speech.form import Wanted
from svc.speech.pool import Seat
from svc.speech.service import Service
from svc.wire.key import Key

PATIENCE = 600.0
"""Seconds without any progress of the worker."""


class Entry:
    """The ledger's entry of an upload. The first end counts."""

    def __init__(self, service: Service, visit: Visit) -> None:
        self._service, self._visit = service, visit
        self.upload: Upload | None = None
        """None while its form is read."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers with the remaining limits of the key."""
        return self._visit.headers

    def succeed(self) -> None:
        """Call it before the last byte leaves."""
        self._end("ok", 200)

    def fail(self, error: SvcError, *, begun: bool = False) -> None:
        """`begun`: a part of the transcript was sent."""
        self._service.counts.failed(error.code)
        if begun:
            self._end("cut", 200, error.code)
        else:
            self._end("error", error.status, error.code)

    def leave(self) -> None:
        """The client has gone."""
        self._end("client_closed", 499)

    def _end(self, status: Status, http_status: int, code: str | None = None) -> None:
        upload = self.upload
        requested, model = (upload.requested, upload.model) if upload is not None else (None, None)
        self._visit.end(status, http_status, asked=requested, model=model, code=code)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Upload:
    """Feeds a seat, and waits for its one answer."""

    def __init__(self, service: Service, key: Key, wanted: Wanted) -> None:
        self._service, self._key, self._wanted = service, key, wanted
        self._answer: asyncio.Future[link.Done] = asyncio.get_running_loop().create_future()
        self._moved = asyncio.Event()
        self._seat: Seat | None = None
        self.requested = wanted.config.model or service.settings.default_model
        self.model: str | None = None
        """The one that was reached."""
        self.language: str | None = None
        self.seconds = 0.0
        self.warning = ""
        self.text = ""
        """The stable text so far: a prefix of the transcript."""
        self.on_text: Callable[[], None] = _nothing
        """Called when there is more of `text`."""

    async def run(self) -> link.Done:
        """Raises InvalidRequest, ModelNotFound, RateLimited, SpeechFailed."""
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
        if message.stable:
            self.text = message.text
            self.on_text()

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


def _nothing() -> None:
    """Nobody waits for parts of the transcript."""
