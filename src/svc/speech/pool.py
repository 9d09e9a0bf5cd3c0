"""The worker pool: admits sessions, runs a group of workers per model, and replaces workers that died.

A session has a reservation from its start, and a slot (a stream on one worker) from its configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from svc.errors import RateLimited, SpeechFailed
from svc.speech import ipc
from svc.speech.audio import LIVE_AUDIO_FORMAT, AudioFormat
from svc.speech.metrics import SpeechMetrics
from svc.speech.model import RecognitionModel
from svc.speech.worker_process import RecognitionListener, WorkerProcess

log = logging.getLogger("svc.speech")

MAX_LOADED_MODELS = 4
"""Models that may be loaded at a time. A model without streams is unloaded for another."""
MAX_UNPROCESSED_AUDIO_BYTES = 640 * 1024
"""Unprocessed audio of a stream, in bytes: 20 s at 16 kHz."""
AUDIO_CHUNK_BYTES = 32 * 1024


class WorkerSlot:
    """A stream on a worker, for one session."""

    def __init__(self, process: WorkerProcess, stream_id: int, format_: AudioFormat) -> None:
        self._process = process
        self._stream_id = stream_id
        self._bytes_per_second = format_.rate * format_.frame_bytes
        self.unprocessed_bytes = 0

    @property
    def has_word_times(self) -> bool:
        """Whether the model may report the times of words."""
        return self._process.has_word_times

    @property
    def is_full(self) -> bool:
        """Whether the worker has the maximum of unprocessed audio."""
        return self.unprocessed_bytes >= MAX_UNPROCESSED_AUDIO_BYTES

    @property
    def last_message_at(self) -> float:
        """When the worker sent its last message to any session, in seconds of the loop's clock."""
        return self._process.last_message_at

    def send_audio(self, data: bytes) -> None:
        """Send complete samples."""
        self.unprocessed_bytes += len(data)
        self._process.count_audio(self._stream_id, len(data) / self._bytes_per_second)
        self._process.send(ipc.FeedAudio(self._stream_id, data))

    def flush(self) -> None:
        """End the utterance. The listener gets `on_final`."""
        self._process.send(ipc.FlushStream(self._stream_id))

    def reset(self) -> None:
        """Discard the utterance."""
        self._process.send(ipc.ResetStream(self._stream_id))

    def release(self) -> None:
        """Close the stream. The listener gets no more messages."""
        self._process.close_stream(self._stream_id)

    def kill_worker(self) -> None:
        """Kill a worker that hangs."""
        log.error("a speech worker hangs and is killed")
        self._process.kill()


class _ModelWorkers:
    """The workers of one model."""

    def __init__(
        self, model: RecognitionModel, max_workers: int, streams_per_worker: int, metrics: SpeechMetrics
    ) -> None:
        self.model = model
        self._metrics = metrics
        self._max_workers, self._streams_per_worker = max_workers, streams_per_worker
        self._lock = asyncio.Lock()
        self._processes: list[WorkerProcess] = []

    @property
    def open_streams(self) -> int:
        return sum(process.open_streams for process in self._processes)

    async def acquire_process(self) -> WorkerProcess:
        """Return the worker with the fewest streams. Starts a worker below the maximum. Raises SpeechFailed."""
        async with self._lock:
            self._processes = [process for process in self._processes if not process.is_dead]
            least_busy = min(self._processes, key=lambda process: process.open_streams, default=None)
            if least_busy is None or (least_busy.open_streams and len(self._processes) < self._max_workers):
                least_busy = WorkerProcess(self.model, self._streams_per_worker, self._metrics)
                await least_busy.start()
                self._processes.append(least_busy)
            return least_busy

    async def stop(self) -> None:
        async with self._lock:
            processes, self._processes = self._processes, []
            await asyncio.gather(*(process.stop() for process in processes))


class SpeechWorkerPool:
    """Runs up to `workers_per_model` processes per model, with `streams_per_worker` streams each."""

    def __init__(self, workers_per_model: int, streams_per_worker: int, metrics: SpeechMetrics) -> None:
        self._workers_per_model, self._streams_per_worker, self._metrics = (
            workers_per_model,
            streams_per_worker,
            metrics,
        )
        self._free_sessions = workers_per_model * streams_per_worker
        self._workers_by_model: dict[tuple[tuple[str, str], ...], _ModelWorkers] = {}

    def reserve_session(self) -> Callable[[], None]:
        """Reserve a session. Return the function that releases it. Raises RateLimited if there is no free session."""
        if self._free_sessions <= 0:
            raise RateLimited("All speech sessions are in use. Try again later.", retry_after=5)
        self._free_sessions -= 1
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._free_sessions += 1

        return release

    async def acquire_slot(
        self,
        model: RecognitionModel,
        listener: RecognitionListener,
        *,
        vad: bool,
        language: str | None,
        format_: AudioFormat = LIVE_AUDIO_FORMAT,
        live: bool = True,
        with_words: bool = False,
        request_id: str = "",
    ) -> WorkerSlot:
        """Open a stream on a worker with the model, which is started if necessary. Raises SpeechFailed, RateLimited."""
        process = await (await self._workers_for(model)).acquire_process()
        if process.open_streams >= process.max_streams:
            raise RateLimited("All speech sessions of this model are in use. Try again later.", retry_after=5)
        stream_id = process.open_stream(
            listener,
            vad=vad,
            language=language,
            format_=format_,
            live=live,
            with_words=with_words,
            request_id=request_id,
        )
        return WorkerSlot(process, stream_id, format_)

    async def preload(self, model: RecognitionModel) -> None:
        """Load a model before its first session. Only logs a failure: the session will report it."""
        try:
            await (await self._workers_for(model)).acquire_process()
        except SpeechFailed as error:
            log.warning("the speech model %s cannot be loaded: %s", model.name, error.message)

    async def _workers_for(self, model: RecognitionModel) -> _ModelWorkers:
        key = (("engine", model.engine), ("family", model.family), *sorted(model.files.items()))
        if key not in self._workers_by_model:
            await self._evict_idle_model()
        if key not in self._workers_by_model:
            self._workers_by_model[key] = _ModelWorkers(
                model, self._workers_per_model, self._streams_per_worker, self._metrics
            )
        return self._workers_by_model[key]

    async def _evict_idle_model(self) -> None:
        if len(self._workers_by_model) < MAX_LOADED_MODELS:
            return
        for key, group in list(self._workers_by_model.items()):
            if not group.open_streams:
                del self._workers_by_model[key]
                await group.stop()
                return
        raise RateLimited(
            f"{MAX_LOADED_MODELS} models are in use, which is the maximum. Try again later.", retry_after=30
        )

    async def close(self) -> None:
        """Stop every worker."""
        groups, self._workers_by_model = list(self._workers_by_model.values()), {}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(group.stop() for group in groups))
