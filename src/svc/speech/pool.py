"""Which worker serves whom: admission, one group of workers for each model that is in use, replacement of the dead.

A session holds a place from its first moment, and a seat (a voice on one worker) from its configuration on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from svc.errors import RateLimited, SpeechFailed
from svc.speech import link
from svc.speech.audio import LIVE, Format
from svc.speech.books import Counts
from svc.speech.model import Model
from svc.speech.process import Listener, Process

log = logging.getLogger("svc.speech")

MAX_MODELS = 4
"""Models that are loaded at a time; one that nobody uses makes room."""
AHEAD = 640 * 1024
"""Bytes of a voice that its worker has not worked through: 20 s at most."""
SLICE = 32 * 1024


class Seat:
    """A voice on a worker, for one session. `free` is called when more audio may be sent."""

    def __init__(self, process: Process, number: int) -> None:
        self._process = process
        self._number = number
        self.ahead = 0

    @property
    def full(self) -> bool:
        """Whether the worker has enough to do."""
        return self.ahead >= AHEAD

    def feed(self, data: bytes) -> None:
        """Whole samples."""
        self.ahead += len(data)
        self._process.send(link.Audio(self._number, data))

    def flush(self) -> None:
        """`done` answers."""
        self._process.send(link.Flush(self._number))

    def reset(self) -> None:
        """Drops the utterance."""
        self._process.send(link.Reset(self._number))

    def release(self) -> None:
        """Lets go; nothing is heard from it any more."""
        self._process.drop(self._number)

    def abandon(self) -> None:
        """The worker hangs."""
        log.error("a speech worker hangs and is ended")
        self._process.kill()


class _Group:
    """The workers of one model."""

    def __init__(self, model: Model, size: int, voices: int, counts: Counts) -> None:
        self.model = model
        self._counts = counts
        self._size, self._room = size, voices
        self._lock = asyncio.Lock()
        self._processes: list[Process] = []

    @property
    def busy(self) -> int:
        return sum(process.busy for process in self._processes)

    async def process(self) -> Process:
        """The worker with the most room; a new one while there are fewer than there may be. Raises SpeechFailed."""
        async with self._lock:
            self._processes = [process for process in self._processes if not process.dead]
            best = min(self._processes, key=lambda process: process.busy, default=None)
            if best is None or (best.busy and len(self._processes) < self._size):
                best = Process(self.model, self._room, self._counts)
                await best.start()
                self._processes.append(best)
            return best

    async def stop(self) -> None:
        async with self._lock:
            processes, self._processes = self._processes, []
            await asyncio.gather(*(process.stop() for process in processes))


class Pool:
    """`workers` processes for a model, `max_sessions` voices each."""

    def __init__(self, workers: int, max_sessions: int, counts: Counts) -> None:
        self._workers, self._voices, self._counts = workers, max_sessions, counts
        self._places = workers * max_sessions
        self._groups: dict[tuple[tuple[str, str], ...], _Group] = {}

    def admit(self) -> Callable[[], None]:
        """A place for a session; call what it gives to leave it. Raises RateLimited when all are taken."""
        if self._places <= 0:
            raise RateLimited("All speech sessions are taken; try again later.", retry_after=5)
        self._places -= 1
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self._places += 1

        return leave

    async def attach(
        self,
        model: Model,
        listener: Listener,
        *,
        vad: bool,
        language: str | None,
        format_: Format = LIVE,
        live: bool = True,
    ) -> Seat:
        """A seat at a worker that has the model, started if need be. Raises SpeechFailed, RateLimited."""
        process = await (await self._group(model)).process()
        if process.busy >= process.room:
            raise RateLimited("All speech sessions of this model are taken; try again later.", retry_after=5)
        return Seat(process, process.open(listener, vad=vad, language=language, format_=format_, live=live))

    async def warm(self, model: Model) -> None:
        """Loads a model ahead of its first session; a failure is only logged, as the session will be told."""
        try:
            await (await self._group(model)).process()
        except SpeechFailed as error:
            log.warning("the speech model %s does not load: %s", model.name, error.message)

    async def _group(self, model: Model) -> _Group:
        key = (("engine", model.engine), ("family", model.family), *sorted(model.files.items()))
        if key not in self._groups:
            await self._make_room()
        if key not in self._groups:
            self._groups[key] = _Group(model, self._workers, self._voices, self._counts)
        return self._groups[key]

    async def _make_room(self) -> None:
        if len(self._groups) < MAX_MODELS:
            return
        for key, group in list(self._groups.items()):
            if not group.busy:
                del self._groups[key]
                await group.stop()
                return
        raise RateLimited(f"{MAX_MODELS} models are in use, and no more are loaded; try again later.", retry_after=30)

    async def close(self) -> None:
        """Ends every worker."""
        groups, self._groups = list(self._groups.values()), {}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(group.stop() for group in groups))
