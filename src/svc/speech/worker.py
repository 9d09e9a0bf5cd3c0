"""A worker process: one model, two threads that infer, many voices. `python -m svc.speech.worker FD`; not the gateway.

reader ── messages ──> run: voices, endpoints, answers ── Job ──> lanes: what somebody waits for; partials
                        ^────────────── what was decoded ───────────┘
`run` owns all state. A lane is a thread that infers, one job at a time; that of the partials is so much nicer that the
other one takes the core away from it, since a decode cannot be interrupted. So a partial may take long, and what
somebody waits for does not wait for it, not even for that of the same voice.

It ends when its socket does, so it never outlives the gateway. The loading is the test of a model: whatever a library
does to its process, it does it here, before there is any session.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from svc import plugins, telemetry
from svc.distribution import install_command
from svc.errors import SpeechFailed, SvcError
from svc.speech import link
from svc.speech.detector import Detector
from svc.speech.engines.base import Engine
from svc.speech.voice import INSTANT, START, Job, Voice

log = logging.getLogger("svc.speech.worker")

TURN = 64
"""Windows of one voice that are worked through at a turn: 2 s of audio, about 10 ms."""
READ = 1 << 16
URGENT_NICE, USUAL_NICE = 3, 13
"""Of the lanes; the thread that answers is as nice as the gateway has made the process (2)."""


class Worker:
    """Reads in one thread, infers in two, does everything else in the thread that calls `run`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._inbox: queue.SimpleQueue[link.ToWorker | _Decoded | None] = queue.SimpleQueue()
        self._urgent, self._usual = _Lane(self._inbox.put, URGENT_NICE), _Lane(self._inbox.put, USUAL_NICE)
        self._voices: dict[int, Voice] = {}
        self._engine: Engine | None = None
        self._free: list[Detector] = []

    def run(self) -> None:
        """Until the gateway closes the socket."""
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        idle = True
        while True:
            try:
                while True:
                    message = self._inbox.get(block=idle)
                    idle = False
                    if message is None:
                        return
                    self._handle(message)
            except queue.Empty:
                idle = not self._turn()

    def _read(self) -> None:
        unframer = link.Unframer()
        with contextlib.suppress(OSError):
            while data := self._socket.recv(READ):
                for body in unframer.push(data):
                    self._inbox.put(link.to_worker.decode(body))
        self._inbox.put(None)

    def _send(self, message: link.FromWorker) -> None:
        try:
            self._socket.sendall(link.frame(message))
        except OSError:  # the gateway has gone; the reader notices too
            raise SystemExit(0) from None

    def _handle(self, message: link.ToWorker | _Decoded) -> None:
        if isinstance(message, _Decoded):
            self._take(message)
        elif isinstance(message, link.Load):
            self._load(message)
        elif isinstance(message, link.Open):
            self._open(message)
        elif isinstance(message, link.Drop):
            if voice := self._voices.pop(message.voice, None):
                voice.detector.reset()
                self._free.append(voice.detector)
        elif voice := self._voices.get(message.voice):
            voice.put(message.data if isinstance(message, link.Audio) else message)

    def _take(self, decoded: _Decoded) -> None:
        decoded.lane.busy = False
        voice = decoded.job.voice
        if self._voices.get(voice.number) is voice:  # else its session has gone
            voice.decoded(decoded.job, decoded.text)
            if decoded.fault is not None:
                self._send(link.Faulted(voice.number, decoded.fault))

    def _load(self, message: link.Load) -> None:
        model = message.model
        try:
            if "vad" not in model.files:
                raise SpeechFailed(f"There is no voice activity detector for {model.name!r}.")
            self._engine = plugins.load("speech.engines", model.engine).load(model)
            self._free = [Detector(model.files["vad"]) for _ in range(message.voices)]
            for detector in self._free[:1]:
                detector.hear(np.zeros(512, np.float32))
                detector.reset()
            noise = np.random.default_rng(1).normal(0, 0.01, 16000).astype(np.float32)
            self._engine.begin(None).text(noise)
        except (SvcError, ImportError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            log.warning("the model %s does not load", model.name, exc_info=error)
            self._send(link.LoadFailed(_why(error)))
            raise SystemExit(0) from None
        self._send(link.Loaded())

    def _open(self, message: link.Open) -> None:
        if self._engine is None or not self._free:
            self._send(link.Faulted(message.voice, "The worker has no room for another session."))
            return
        self._voices[message.voice] = Voice(
            message.voice,
            self._engine,
            self._free.pop(),
            emit=self._send,
            vad=message.vad,
            language=message.language,
            format_=message.format,
            live=message.live,
        )

    def _turn(self) -> bool:
        """What can be done at once; for each lane the most urgent, and among those the one that waits the longest."""
        worked = False
        for voice in self._voices.values():
            worked = voice.advance(TURN) or worked
        due = sorted((*what, number) for number, voice in self._voices.items() if (what := voice.due()))
        for urgency, _, number in due:
            lane = self._lane(urgency)
            if urgency == INSTANT or not lane.busy:
                worked = True
                job = self._voices[number].work()
                if job is not None:
                    lane.put(job)
        return worked

    def _lane(self, urgency: int) -> _Lane:
        alone = self._engine is not None and self._engine.incremental
        return self._urgent if alone or urgency <= START else self._usual


class _Decoded(NamedTuple):
    """What the engine made of a job, or why it could not."""

    lane: _Lane
    job: Job
    text: str | None
    fault: str | None = None


class _Lane:
    """A thread that infers; `tell` gets what came of each job."""

    def __init__(self, tell: Callable[[_Decoded], None], nice: int) -> None:
        self.busy = False
        self._tell, self._nice = tell, nice
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"engine-{nice}", daemon=True).start()

    def put(self, job: Job) -> None:
        """When it is not busy."""
        self.busy = True
        self._jobs.put(job)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        while True:
            job = self._jobs.get()
            try:
                self._tell(_Decoded(self, job, job.decode()))
            except Exception as error:  # whatever an engine raises concerns this voice alone
                log.warning("the engine failed", exc_info=error)
                self._tell(_Decoded(self, job, None, f"The engine failed: {_why(error)}"))


def _why(error: Exception) -> str:
    """One line for the client: an SvcError's own words, else the kind of the fault, without paths."""
    if isinstance(error, SvcError):
        return error.message
    if isinstance(error, ImportError):
        return f"The engine's library is not installed ({error.name}): {install_command('speech', 'whisper')}."
    return f"{type(error).__name__}; the gateway's log has more."


def main() -> None:
    """Takes the socket's descriptor from the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    telemetry.configure_child()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        Worker(sock).run()
    # Libraries' threads may still run; nothing is left to be saved.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
