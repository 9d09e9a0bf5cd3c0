"""A worker process from the gateway's side: start, messages, supervision, stop. Knows nothing of sessions."""

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

from svc import telemetry
from svc.errors import SpeechFailed
from svc.speech import ipc
from svc.speech.audio import AudioFormat
from svc.speech.metrics import SpeechMetrics
from svc.speech.model import RecognitionModel
from svc.speech.work import SpeechWorkTimer
from svc.subprocess_env import build_subprocess_env

log = logging.getLogger("svc.speech")

MODEL_LOAD_TIMEOUT_SECONDS = 120.0
"""Seconds until loading a model is aborted."""
WORKER_STOP_TIMEOUT_SECONDS = 2.0
SPEECH_WORKER_NICENESS = 2
"""Gives the gateway priority when the CPU is busy."""


class RecognitionListener(Protocol):
    """Receives the messages of one stream."""

    def on_audio_processed(self, byte_count: int) -> None:
        """Handle `byte_count` bytes that the worker has processed."""

    def on_hypothesis(self, message: ipc.RecognitionHypothesis) -> None:
        """Handle a hypothesis."""

    def on_final(self, message: ipc.FinalTranscript) -> None:
        """Handle the final of a flush."""

    def on_recognition_failed(self, message: str) -> None:
        """Handle a failure of the engine."""

    def on_worker_lost(self, message: str) -> None:
        """Handle the exit of the worker."""


class WorkerProcess:
    """One worker. Call `start`, then `open_stream`."""

    def __init__(self, model: RecognitionModel, max_streams: int, metrics: SpeechMetrics) -> None:
        self.model = model
        self._metrics = metrics
        self.max_streams = max_streams
        self.is_dead = False
        self.has_word_times = True
        """Whether the model may report the times of words, once it is loaded."""
        self.last_message_at = 0.0
        """When the worker sent its last message, in seconds of the loop's clock."""
        self._listeners: dict[int, RecognitionListener] = {}
        self._timers: dict[int, SpeechWorkTimer] = {}
        """The work of each open stream."""
        self._stream_ids = itertools.count(1)
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._read_task: asyncio.Task[None] | None = None
        self._model_loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """The id of the process, or None before the start."""
        return self._child.pid if self._child else None

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        return len(self._listeners)

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. Raises SpeechFailed."""
        local_socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                self._child = await asyncio.to_thread(_spawn, child_socket)
                reader, self._writer = await asyncio.open_connection(sock=local_socket)
            except OSError as error:
                local_socket.close()
                raise SpeechFailed(f"A speech worker cannot be started: {error.strerror}.") from error
        self._read_task = asyncio.create_task(self._read_messages(reader), name=f"speech-worker-{self._child.pid}")
        self._write_message(ipc.LoadModel(self.model, self.max_streams))
        try:
            async with asyncio.timeout(MODEL_LOAD_TIMEOUT_SECONDS):
                await asyncio.shield(self._model_loaded)
        except TimeoutError:
            await self.stop()
            raise SpeechFailed(f"The model {self.model.name!r} timed out while loading.") from None
        except (SpeechFailed, asyncio.CancelledError):
            await self.stop()
            raise

    def open_stream(
        self,
        listener: RecognitionListener,
        *,
        vad: bool,
        language: str | None,
        format_: AudioFormat,
        live: bool,
        with_words: bool,
        request_id: str,
    ) -> int:
        """Open a stream and return its id."""
        stream_id = next(self._stream_ids)
        self._listeners[stream_id] = listener
        self._timers[stream_id] = SpeechWorkTimer(request_id, "transcribe", self.model.name, self.pid or 0)
        self._write_message(ipc.OpenStream(stream_id, vad, language, format_, live, with_words))
        return stream_id

    def send(self, message: ipc.FeedAudio | ipc.FlushStream | ipc.ResetStream) -> None:
        """Send a message. The caller bounds the audio that is not processed yet."""
        self._write_message(message)

    def close_stream(self, stream_id: int) -> None:
        """Close a stream, and report its work."""
        if (timer := self._timers.pop(stream_id, None)) is not None:
            self._metrics.record_work(timer.finish())
        if self._listeners.pop(stream_id, None) is not None:
            self._write_message(ipc.CloseStream(stream_id))

    def count_audio(self, stream_id: int, seconds: float) -> None:
        """Count audio that a stream receives."""
        if (timer := self._timers.get(stream_id)) is not None:
            timer.add_audio(seconds)

    def kill(self) -> None:
        """Kill a worker that hangs. Its listeners get `on_worker_lost`."""
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> None:
        """Stop the process."""
        self.is_dead = True
        self._listeners.clear()
        if self._writer is not None:
            self._writer.close()
        if self._read_task is not None:
            self._read_task.cancel()
            await asyncio.gather(self._read_task, return_exceptions=True)
        if self._child is not None:
            await asyncio.to_thread(_wait_or_kill, self._child)
        if self._model_loaded.done() and not self._model_loaded.cancelled():
            self._model_loaded.exception()  # marks the exception as retrieved

    def _write_message(self, message: ipc.GatewayToWorker) -> None:
        if self._writer is not None and not self.is_dead:
            self._writer.write(ipc.encode_frame(message))

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        frame_decoder = ipc.IpcFrameDecoder()
        self._metrics.running_workers += 1
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(1 << 16):
                self.last_message_at = loop.time()
                for body in frame_decoder.push(data):
                    self._dispatch(ipc.worker_message_decoder.decode(body))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            log.error("the socket of a speech worker failed: %s", error)
        finally:
            self._metrics.running_workers -= 1
        self._handle_worker_exit()
        if self._child is not None:  # reaps the process, which would stay a zombie
            await asyncio.to_thread(_wait_or_kill, self._child)

    def _dispatch(self, message: ipc.WorkerToGateway) -> None:
        if isinstance(message, ipc.ModelLoaded):
            self.has_word_times = message.has_word_times
            if not self._model_loaded.done():
                self._model_loaded.set_result(None)
        elif isinstance(message, ipc.ModelLoadFailed):
            if not self._model_loaded.done():
                self._model_loaded.set_exception(SpeechFailed(message.message))
        elif isinstance(message, ipc.InferenceReport):
            self._metrics.record_decode(self.model.name, message.queue_seconds, message.decode_seconds)
            if (timer := self._timers.get(message.stream_id)) is not None:
                timer.add_inference(message.queue_seconds, message.decode_seconds)
        elif listener := self._listeners.get(message.stream_id):
            match message:
                case ipc.AudioProcessed():
                    listener.on_audio_processed(message.byte_count)
                case ipc.RecognitionHypothesis():
                    listener.on_hypothesis(message)
                case ipc.FinalTranscript():
                    listener.on_final(message)
                case ipc.RecognitionFailed():
                    self._timers[message.stream_id].set_error(SpeechFailed.code)
                    listener.on_recognition_failed(message.message)

    def _handle_worker_exit(self) -> None:
        self.is_dead = True
        name = self.model.name
        if not self._model_loaded.done():
            self._model_loaded.set_exception(SpeechFailed(f"The model {name!r} cannot be loaded: its process exited."))
        if self._listeners:
            self._metrics.lost_workers += 1
            log.warning("a speech worker with %d open streams died", len(self._listeners))
        for timer in self._timers.values():
            timer.set_error(SpeechFailed.code)
        listeners, self._listeners = list(self._listeners.values()), {}
        for listener in listeners:
            listener.on_worker_lost(
                "The speech worker died. Another one takes over, and text that was not stable is lost."
            )
        if self._writer is not None:
            self._writer.close()


def _spawn(child_socket: socket.socket) -> subprocess.Popen[bytes]:
    descriptor = child_socket.fileno()
    command = [sys.executable, "-m", "svc.speech.worker", str(descriptor)]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=(descriptor,), env=compute_environment(), start_new_session=True
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, SPEECH_WORKER_NICENESS)
    return child


def compute_environment() -> dict[str, str]:
    """Return the environment of a process that computes: no secrets, and one thread for each library."""
    return build_subprocess_env(
        OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HF_HUB_OFFLINE="1", **telemetry.child_environment()
    )


def _wait_or_kill(child: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose socket is closed. Kill it if it does not exit in time."""
    try:
        child.wait(WORKER_STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
