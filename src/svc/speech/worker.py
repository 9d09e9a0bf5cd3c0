"""A worker process: one model, two inference threads, many streams. Run with `python -m svc.speech.worker FD`.

reader ── messages ──> run: streams, endpoints, results ── DecodeJob ──> inference threads: urgent; background
                        ^───────────────── decoded text ─────────────────┘
`run` owns all state. An inference thread runs one job at a time. A decode cannot be interrupted, so partials run in a
thread with a higher niceness, and the urgent thread preempts it. Urgent jobs never wait for partials, not even for one
of the same stream.

The worker exits when its socket is closed, so it never outlives the gateway. It decodes noise once while it loads the
model, so a library that crashes its process does so before any session.
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
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from svc import plugins, telemetry
from svc.distribution import install_command
from svc.errors import SpeechFailed, SvcError
from svc.speech import ipc
from svc.speech.engines.base import RecognitionEngine
from svc.speech.recognition_stream import URGENCY_INSTANT, URGENCY_NEXT_PARTIAL, DecodeJob, RecognitionStream
from svc.speech.vad import VoiceActivityDetector, VoiceActivityModel

log = logging.getLogger("svc.speech.worker")

MAX_WINDOWS_PER_TURN = 64
"""Windows of one stream that are processed in a turn: 2 s of audio, about 10 ms of CPU time."""
INFERENCE_TIMEOUT_SECONDS, INFERENCE_CHECK_SECONDS = 90.0, 5.0
"""Seconds after which an inference that has not returned ends the process, and seconds between two checks."""
AUDIO_TURN_SECONDS = 0.02
"""Time between two turns that process only audio. Streams whose audio arrives in it share a call of the detector."""
SOCKET_READ_BYTES = 1 << 16
URGENT_THREAD_NICENESS, BACKGROUND_THREAD_NICENESS = 3, 13
"""Niceness of the threads. The main thread keeps the niceness that the gateway gave the process (2)."""


class SpeechWorker:
    """Reads in one thread, infers in two, and does everything else in the thread that calls `run`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._inbox: queue.SimpleQueue[ipc.GatewayToWorker | _DecodeResult | None] = queue.SimpleQueue()
        self._urgent_thread, self._background_thread = (
            _InferenceThread(self._inbox.put, URGENT_THREAD_NICENESS),
            _InferenceThread(self._inbox.put, BACKGROUND_THREAD_NICENESS),
        )
        self._streams: dict[int, RecognitionStream] = {}
        self._changed_stream_ids: set[int] = set()
        """Streams with input or a result since their work was last looked at."""
        self._pending_work: dict[int, tuple[int, float]] = {}
        self._waiting_since: dict[int, float] = {}
        """The monotonic time at which the pending work of each stream was found."""
        self._engine: RecognitionEngine | None = None
        self._detection: VoiceActivityModel | None = None
        self._free_detectors: list[VoiceActivityDetector] = []

    def run(self) -> None:
        """Run until the gateway closes the socket."""
        threading.Thread(target=self._read_messages, name="reader", daemon=True).start()
        timeout: float | None = None
        next_audio_turn_at = 0.0
        while True:
            try:
                message = self._inbox.get(timeout=timeout)
            except queue.Empty:
                self._exit_if_inference_hangs()
                if self._run_turn():
                    timeout = next_audio_turn_at = 0.0
                else:
                    timeout, next_audio_turn_at = self._check_interval(), time.monotonic() + AUDIO_TURN_SECONDS
                continue
            if message is None:
                return
            self._handle(message)
            if not isinstance(message, ipc.FeedAudio):
                timeout = next_audio_turn_at = 0.0
            else:
                timeout = max(0.0, next_audio_turn_at - time.monotonic())

    def _check_interval(self) -> float | None:
        """Return the seconds until a running inference is checked again, or None if there is none."""
        is_busy = self._urgent_thread.is_busy or self._background_thread.is_busy
        return INFERENCE_CHECK_SECONDS if is_busy else None

    def _exit_if_inference_hangs(self) -> None:
        """End the process if an inference does not return. It cannot be interrupted, and other streams wait for it."""
        for thread in (self._urgent_thread, self._background_thread):
            if thread.is_busy and time.monotonic() > thread.started_at + INFERENCE_TIMEOUT_SECONDS:
                log.error("the engine has not returned for %d seconds, so the worker exits", INFERENCE_TIMEOUT_SECONDS)
                sys.stderr.flush()
                os._exit(1)

    def _read_messages(self) -> None:
        frame_decoder = ipc.IpcFrameDecoder()
        with contextlib.suppress(OSError):
            while data := self._socket.recv(SOCKET_READ_BYTES):
                for body in frame_decoder.push(data):
                    self._inbox.put(ipc.gateway_message_decoder.decode(body))
        self._inbox.put(None)

    def _send(self, message: ipc.WorkerToGateway) -> None:
        try:
            self._socket.sendall(ipc.encode_frame(message))
        except OSError:  # the gateway closed the socket
            raise SystemExit(0) from None

    def _handle(self, message: ipc.GatewayToWorker | _DecodeResult) -> None:
        if isinstance(message, _DecodeResult):
            self._complete_job(message)
        elif isinstance(message, ipc.LoadModel):
            self._load(message)
        elif isinstance(message, ipc.OpenStream):
            self._open(message)
        elif isinstance(message, ipc.CloseStream):
            if stream := self._streams.pop(message.stream_id, None):
                self._pending_work.pop(message.stream_id, None)
                self._waiting_since.pop(message.stream_id, None)
                stream.detector.reset()
                self._free_detectors.append(stream.detector)
        elif stream := self._streams.get(message.stream_id):
            self._changed_stream_ids.add(message.stream_id)
            stream.enqueue(message.data if isinstance(message, ipc.FeedAudio) else message)

    def _complete_job(self, result: _DecodeResult) -> None:
        result.thread.is_busy = False
        stream = result.job.stream
        self._send(ipc.InferenceReport(stream.stream_id, result.queue_seconds, result.decode_seconds))
        if self._streams.get(stream.stream_id) is stream:  # else the stream is closed
            self._changed_stream_ids.add(stream.stream_id)
            stream.complete_job(result.job, result.hypothesis)
            if result.error is not None:
                self._send(ipc.RecognitionFailed(stream.stream_id, result.error))

    def _load(self, message: ipc.LoadModel) -> None:
        model = message.model
        try:
            if "vad" not in model.files:
                raise SpeechFailed(f"The model {model.name!r} has no voice activity detector.")
            self._engine = plugins.load("speech.engines", model.engine).load(model)
            self._detection = VoiceActivityModel(model.files["vad"])
            self._free_detectors = [VoiceActivityDetector(self._detection) for _ in range(message.max_streams)]
            noise = np.random.default_rng(1).normal(0, 0.01, 16000).astype(np.float32)
            self._engine.begin_segment(None).decode_partial(noise)
        except (SvcError, ImportError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            log.warning("the model %s cannot be loaded", model.name, exc_info=error)
            self._send(ipc.ModelLoadFailed(_client_message(error)))
            raise SystemExit(0) from None
        self._send(ipc.ModelLoaded(self._engine.has_word_times))

    def _open(self, message: ipc.OpenStream) -> None:
        if self._engine is None or not self._free_detectors:
            self._send(ipc.RecognitionFailed(message.stream_id, "The worker has no free stream."))
            return
        self._streams[message.stream_id] = RecognitionStream(
            message.stream_id,
            self._engine,
            self._free_detectors.pop(),
            emit=self._send,
            vad=message.vad,
            language=message.language,
            format_=message.format,
            live=message.live,
            with_words=message.with_words,
        )

    def _run_turn(self) -> bool:
        """Do pending work. Each thread gets the most urgent job, and among equals the one that has waited longest."""
        self._advance_changed_streams()
        for urgency, _, stream_id in sorted((*work, number) for number, work in self._pending_work.items()):
            thread = self._thread_for(urgency)
            if urgency == URGENCY_INSTANT or not thread.is_busy:
                self._changed_stream_ids.add(stream_id)
                job = self._streams[stream_id].start_work()
                waiting_since = self._waiting_since.pop(stream_id, None)
                if job is not None:
                    thread.submit(job, waiting_since or time.monotonic())
        return bool(self._changed_stream_ids)

    def _advance_changed_streams(self) -> None:
        changed = self._changed_stream_ids & self._streams.keys()
        self._changed_stream_ids = self._process_windows([self._streams[stream_id] for stream_id in changed])
        for stream_id in changed:
            stream = self._streams[stream_id]
            if work := stream.pending_work():
                self._pending_work[stream_id] = work
                self._waiting_since.setdefault(stream_id, time.monotonic())
            else:
                self._pending_work.pop(stream_id, None)
                self._waiting_since.pop(stream_id, None)

    def _process_windows(self, streams: list[RecognitionStream]) -> set[int]:
        """Process the audio of streams, a window of each at a time. Return the ids of those that may have more."""
        for _ in range(MAX_WINDOWS_PER_TURN):
            windows = [(stream, window) for stream in streams if (window := stream.next_window()) is not None]
            if not windows or self._detection is None:
                return set()
            flags = self._detection.detect(
                [stream.detector for stream, _ in windows], [window for _, window in windows]
            )
            for (stream, window), is_speech in zip(windows, flags, strict=True):
                stream.process_window(window, is_speech)
            streams = [stream for stream, _ in windows]
        return {stream.stream_id for stream in streams}

    def _thread_for(self, urgency: int) -> _InferenceThread:
        is_incremental = self._engine is not None and self._engine.is_incremental
        return self._urgent_thread if is_incremental or urgency < URGENCY_NEXT_PARTIAL else self._background_thread


class _DecodeResult(NamedTuple):
    """The result of a job: the hypothesis, or the error message."""

    thread: _InferenceThread
    job: DecodeJob
    hypothesis: ipc.Hypothesis | None
    error: str | None
    queue_seconds: float
    decode_seconds: float


class _InferenceThread:
    """An inference thread. Calls `on_result` with the result of each job."""

    def __init__(self, on_result: Callable[[_DecodeResult], None], niceness: int) -> None:
        self.is_busy = False
        self.started_at = 0.0
        """When the last job was submitted, in seconds of the monotonic clock."""
        self._on_result, self._niceness = on_result, niceness
        self._jobs: queue.SimpleQueue[tuple[DecodeJob, float]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"engine-{niceness}", daemon=True).start()

    def submit(self, job: DecodeJob, waiting_since: float) -> None:
        """Start a job that has waited since this monotonic time. The thread must not be busy."""
        self.is_busy = True
        self.started_at = time.monotonic()
        self._jobs.put((job, waiting_since))

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while True:
            job, waiting_since = self._jobs.get()
            started_at = time.monotonic()
            hypothesis, message = None, None
            try:
                hypothesis = job.decode()
            except Exception as error:  # a failure affects only this stream
                log.warning("the engine failed", exc_info=error)
                message = f"The engine failed: {_client_message(error)}"
            decode_seconds = time.monotonic() - started_at
            self._on_result(_DecodeResult(self, job, hypothesis, message, started_at - waiting_since, decode_seconds))


def _client_message(error: Exception) -> str:
    """Return one line for the client: the message of an SvcError, else the type of the exception, without paths."""
    if isinstance(error, SvcError):
        return error.message
    if isinstance(error, ImportError):
        return f"The engine's library is not installed ({error.name}): {install_command('speech', 'whisper')}."
    return f"{type(error).__name__}: see the gateway's log."


def main() -> None:
    """Run the worker on the socket whose file descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    telemetry.configure_child()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        SpeechWorker(sock).run()
    # Threads of libraries may still run. There is nothing to save.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
