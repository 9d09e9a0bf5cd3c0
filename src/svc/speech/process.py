"""A worker process as the gateway sees it: started, spoken to, watched, ended. It knows nothing of sessions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
from typing import Protocol

import msgspec

from svc.environment import child_environment
from svc.errors import SpeechFailed
from svc.speech import link
from svc.speech.audio import Format
from svc.speech.books import Counts
from svc.speech.model import Model

log = logging.getLogger("svc.speech")

LOAD_PATIENCE = 120.0
"""Seconds until a model that does not load is given up."""
STOP_PATIENCE = 2.0
NICE = 2
"""The gateway comes first when cores are short."""


class Listener(Protocol):
    """Whoever has a voice."""

    def took(self, size: int) -> None:
        """So many bytes were worked through."""

    def heard(self, message: link.Heard) -> None:
        """A hypothesis."""

    def done(self, message: link.Done) -> None:
        """A flush is answered."""

    def faulted(self, message: str) -> None:
        """The engine failed."""

    def lost(self, message: str) -> None:
        """The worker is gone."""


class Process:
    """One worker. `start` it, then `open` voices on it."""

    def __init__(self, model: Model, voices: int, counts: Counts) -> None:
        self.model = model
        self._counts = counts
        self.room = voices
        self.dead = False
        self._voices: dict[int, Listener] = {}
        self._numbers = itertools.count(1)
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return self._child.pid if self._child else None

    @property
    def busy(self) -> int:
        """Voices that are open."""
        return len(self._voices)

    async def start(self) -> None:
        """Starts the process and waits until its model is loaded. Raises SpeechFailed."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._child = await asyncio.to_thread(_spawn, theirs)
                reader, self._writer = await asyncio.open_connection(sock=ours)
            except OSError as error:
                ours.close()
                raise SpeechFailed(f"A speech worker cannot be started: {error.strerror}.") from error
        self._reading = asyncio.create_task(self._read(reader), name=f"speech-worker-{self._child.pid}")
        self._send(link.Load(self.model, self.room))
        try:
            async with asyncio.timeout(LOAD_PATIENCE):
                await asyncio.shield(self._loaded)
        except TimeoutError:
            await self.stop()
            raise SpeechFailed(f"The model {self.model.name!r} took too long to load.") from None
        except (SpeechFailed, asyncio.CancelledError):
            await self.stop()
            raise

    def open(self, listener: Listener, *, vad: bool, language: str | None, format_: Format, live: bool) -> int:
        """A new voice; its number."""
        number = next(self._numbers)
        self._voices[number] = listener
        self._send(link.Open(number, vad, language, format_, live))
        return number

    def send(self, message: link.Audio | link.Flush | link.Reset) -> None:
        """To the worker. What it has not worked through is bounded by whoever sends."""
        self._send(message)

    def drop(self, number: int) -> None:
        """Ends a voice."""
        if self._voices.pop(number, None) is not None:
            self._send(link.Drop(number))

    def kill(self) -> None:
        """For a worker that hangs: its sessions are told that it is lost."""
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> None:
        """Ends the process."""
        self.dead = True
        self._voices.clear()
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._child is not None:
            await asyncio.to_thread(_end, self._child)
        if self._loaded.done() and not self._loaded.cancelled():
            self._loaded.exception()  # it was told, or nobody waits for it any more

    def _send(self, message: link.ToWorker) -> None:
        if self._writer is not None and not self.dead:
            self._writer.write(link.frame(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unframer = link.Unframer()
        self._counts.workers += 1
        try:
            while data := await reader.read(1 << 16):
                for body in unframer.push(data):
                    self._take(link.from_worker.decode(body))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            log.error("the link to a speech worker broke: %s", error)
        finally:
            self._counts.workers -= 1
        self._lose()
        if self._child is not None:  # else it stays a zombie until another process is started
            await asyncio.to_thread(_end, self._child)

    def _take(self, message: link.FromWorker) -> None:
        if isinstance(message, link.Loaded):
            if not self._loaded.done():
                self._loaded.set_result(None)
        elif isinstance(message, link.LoadFailed):
            if not self._loaded.done():
                self._loaded.set_exception(SpeechFailed(message.message))
        elif listener := self._voices.get(message.voice):
            match message:
                case link.Taken():
                    listener.took(message.size)
                case link.Heard():
                    listener.heard(message)
                case link.Done():
                    listener.done(message)
                case link.Faulted():
                    listener.faulted(message.message)

    def _lose(self) -> None:
        self.dead = True
        name = self.model.name
        if not self._loaded.done():
            self._loaded.set_exception(SpeechFailed(f"The model {name!r} does not load: its process ended."))
        if self._voices:
            self._counts.lost += 1
            log.warning("a speech worker died under %d sessions", len(self._voices))
        listeners, self._voices = list(self._voices.values()), {}
        for listener in listeners:
            listener.lost("The speech worker died; another takes over, and what was not yet stable is lost.")
        if self._writer is not None:
            self._writer.close()


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    descriptor = theirs.fileno()
    command = [sys.executable, "-m", "svc.speech.worker", str(descriptor)]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=(descriptor,), env=bare_environ(), start_new_session=True
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
    return child


def bare_environ() -> dict[str, str]:
    """Return the environment of a process that computes: no secrets, and one thread for each library."""
    return child_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HF_HUB_OFFLINE="1")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Its socket is closed, so that it ends by itself; if not, it is ended."""
    try:
        child.wait(STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
