"""One live session over a WebSocket: does the I/O for the protocol in `svc.speech.protocol`.

There are two tasks: `_receive_messages` (client -> session -> worker, in order) and `_send_outbox` (outbox -> client).
Messages of the worker and the timer are handled between them. A client that does not read loses partials, then its
connection. The gateway stops reading from a client that sends too fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from svc.errors import AuthenticationFailed, SvcError
from svc.speech import ipc, protocol
from svc.speech.accounting import SpeechRequestStatus, TrackedSpeechRequest
from svc.speech.audio import BYTES_PER_SECOND
from svc.speech.key_monitor import SessionKeyMonitor
from svc.speech.pool import AUDIO_CHUNK_BYTES, WorkerSlot
from svc.speech.service import SpeechService
from svc.wire import speech as wire
from svc.wire.request_identity import RequestIdentity

SESSION_TICK_SECONDS = 0.5
MAX_OUTBOX_BEFORE_DROPPING_PARTIALS = 64
"""Queued messages for the client above which the oldest partials that are not stable are dropped."""
MAX_OUTBOX_BEFORE_READ_PAUSE = 512
"""Queued messages for the client above which the gateway stops reading from it."""
MAX_OUTBOX_MESSAGES = 1024
"""Queued messages for the client above which it is disconnected."""
WEBSOCKET_WRITE_TIMEOUT_SECONDS = 60.0


class WebSocketSession:
    """Runs one session on an accepted WebSocket."""

    def __init__(
        self,
        service: SpeechService,
        websocket: WebSocket,
        key_monitor: SessionKeyMonitor,
        identity: RequestIdentity,
    ) -> None:
        settings = service.settings
        self._service, self._websocket, self._key_monitor, self._identity = service, websocket, key_monitor, identity
        self._loop = asyncio.get_running_loop()
        self._session = protocol.SpeechSession(
            f"sess_{secrets.token_hex(12)}",
            now=self._loop.time(),
            idle_timeout=settings.idle_timeout,
            max_duration=settings.max_duration,
        )
        self._worker_actions: deque[protocol.SendAudio | protocol.FlushWorker | protocol.ResetWorker] = deque()
        self._outbox: deque[wire.ServerMessage | protocol.CloseWebSocket] = deque()
        self._outbox_changed = asyncio.Event()
        self._progress = asyncio.Event()
        self._closed = asyncio.Event()
        self._is_reading = False
        """Whether the gateway waits for a message of the client. Otherwise it is busy with earlier ones."""
        self._release_reservation: Callable[[], None] | None = None
        self._slot: WorkerSlot | None = None
        self._listener: _DetachableListener | None = None
        self._attach_task: asyncio.Task[None] | None = None
        self._tracked_request: TrackedSpeechRequest | None = None
        self._requested_model: str | None = None
        self._model: str | None = None
        self._attach_error: SvcError | None = None
        self._ready_at: float | None = None

    async def run(self) -> None:
        """Run until the session is closed or the client disconnects."""
        metrics = self._service.metrics
        with contextlib.ExitStack() as stack:
            try:
                self._release_reservation = self._service.pool.reserve_session()
                stack.callback(self._release_reservation)
                self._tracked_request = await self._service.request_tracker.track(
                    self._key_monitor.key, wire.LIVE_TRANSCRIPTION_PATH, self._identity, is_long_lived=True
                )
            except SvcError as error:
                self._session.reject(error)
                self._run_actions()
                await self._send_outbox()
                return
            metrics.record_request("stream")
            metrics.open_sessions += 1
            started_at = self._loop.time()
            try:
                await self._run_session()
            finally:
                metrics.open_sessions -= 1
                metrics.record_session(self._loop.time() - started_at)
                self._record_end(is_disconnected=True)

    async def _run_session(self) -> None:
        self._service.sessions.add(self)
        timer = self._loop.call_later(SESSION_TICK_SECONDS, self._on_tick)
        self._tick_timer = timer
        tasks = [asyncio.create_task(self._receive_messages()), asyncio.create_task(self._send_outbox())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._tick_timer.cancel()
            if self._attach_task is not None:
                tasks.append(self._attach_task)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._release_slot()
            self._service.sessions.discard(self)
            self._closed.set()

    def shutdown(self) -> None:
        """Close the session because the server stops."""
        self._session.shutdown()
        self._run_actions()

    async def wait_closed(self) -> None:
        """Wait until the session is closed."""
        await self._closed.wait()

    def _record_end(self, *, is_disconnected: bool = False) -> None:
        """Write the ledger entry. Only the first call counts."""
        if self._tracked_request is None:
            return
        status: SpeechRequestStatus = "client_closed" if is_disconnected else "ok"
        http_status, code = 499 if is_disconnected else 101, None
        if self._model is None and self._attach_error is not None:
            status, http_status, code = "error", self._attach_error.status, self._attach_error.code
        elif self._session.close_reason == "server_shutdown":
            status = "cut"
        elif self._session.close_reason == "key_revoked":
            status, code = "cut", AuthenticationFailed.code
        self._tracked_request.finish(
            status,
            http_status,
            requested_model=self._requested_model,
            model=self._model,
            first_byte_at=self._ready_at,
            code=code,
        )

    # client -> worker

    async def _receive_messages(self) -> None:
        while True:
            while self._worker_actions:
                await self._send_to_worker(self._worker_actions.popleft())
            if not self._session.can_read or len(self._outbox) > MAX_OUTBOX_BEFORE_READ_PAUSE:
                self._progress.clear()
                await self._progress.wait()
                continue
            await asyncio.sleep(0)  # `receive` does not yield to other tasks while messages are buffered
            self._is_reading = True
            try:
                message = await self._websocket.receive()
            except (WebSocketDisconnect, RuntimeError):
                message = {"type": "websocket.disconnect"}
            finally:
                self._is_reading = False
            if message["type"] == "websocket.disconnect":
                self._release_session()
                return
            data = message.get("bytes")
            self._session.receive(data if data is not None else message.get("text") or "", self._loop.time())
            self._run_actions()

    async def _send_to_worker(self, action: protocol.SendAudio | protocol.FlushWorker | protocol.ResetWorker) -> None:
        if isinstance(action, protocol.SendAudio):
            self._service.metrics.audio_seconds += len(action.data) / BYTES_PER_SECOND
            for offset in range(0, len(action.data), AUDIO_CHUNK_BYTES):
                while self._slot is not None and self._slot.is_full:
                    self._progress.clear()
                    await self._progress.wait()
                if self._slot is not None:
                    self._slot.send_audio(action.data[offset : offset + AUDIO_CHUNK_BYTES])
        elif self._slot is None:
            return
        elif isinstance(action, protocol.FlushWorker):
            self._slot.flush()
        else:
            self._slot.reset()

    # session -> everyone

    def _run_actions(self) -> None:
        for action in self._session.take_actions():
            match action:
                case protocol.SendToClient():
                    self._enqueue_message(action.message)
                case protocol.CloseWebSocket():
                    self._record_end()
                    if self._release_reservation is not None:  # the client may open its next session at once
                        self._release_reservation()
                    self._outbox.append(action)
                case protocol.AttachWorker():
                    self._release_slot()
                    self._attach_task = asyncio.create_task(self._attach_worker(action))
                case protocol.ReleaseWorker():
                    self._worker_actions.clear()
                    self._release_slot()
                case protocol.KillWorker():
                    if self._slot is not None:
                        self._slot.kill_worker()
                case _:
                    self._worker_actions.append(action)
        self._outbox_changed.set()
        self._progress.set()

    def _enqueue_message(self, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.ErrorEvent):
            self._service.metrics.record_error(message.code)
        self._outbox.append(message)
        if len(self._outbox) > MAX_OUTBOX_BEFORE_DROPPING_PARTIALS and isinstance(message, wire.Partial):
            for queued in self._outbox:
                if isinstance(queued, wire.Partial) and not queued.is_stable:
                    self._outbox.remove(queued)
                    return

    async def _attach_worker(self, action: protocol.AttachWorker) -> None:
        listener = _DetachableListener(self)
        self._requested_model = action.config.model or self._service.settings.default_model
        try:
            slot, name, _ = await self._service.acquire_slot(
                self._key_monitor.key, action.config, listener, request_id=self._identity.request_id
            )
        except SvcError as error:
            self._attach_error = error
            self._session.on_attach_failed(action.attach_id, error)
        else:
            self._slot, self._listener, self._model = slot, listener, name
            self._ready_at = self._ready_at or time.monotonic()
            self._session.on_attached(action.attach_id, name)
        self._attach_task = None
        self._run_actions()

    def _release_session(self) -> None:
        """Free what counts for limits, since a client that disconnected may open its next session at once."""
        self._release_slot()
        self._record_end(is_disconnected=True)
        if self._release_reservation is not None:
            self._release_reservation()

    def _release_slot(self) -> None:
        if self._listener is not None:
            self._listener.session = None
        if self._slot is not None:
            self._slot.release()
        self._slot = self._listener = None

    async def _send_outbox(self) -> None:
        while True:
            while self._outbox:
                if len(self._outbox) > MAX_OUTBOX_MESSAGES:
                    return
                message = self._outbox.popleft()
                self._progress.set()
                try:
                    async with asyncio.timeout(WEBSOCKET_WRITE_TIMEOUT_SECONDS):
                        if isinstance(message, protocol.CloseWebSocket):
                            await self._websocket.close(message.code)
                            return
                        await self._websocket.send_text(wire.encode_server_message(message))
                except (WebSocketDisconnect, RuntimeError, OSError):  # TimeoutError is an OSError
                    return
            self._outbox_changed.clear()
            await self._outbox_changed.wait()

    def _on_tick(self) -> None:
        now = self._loop.time()
        if self._slot is not None:
            self._session.check_worker(
                now,
                has_unprocessed_audio=self._slot.unprocessed_bytes > 0,
                last_message_at=self._slot.last_message_at,
            )
        if not self._key_monitor.is_valid(self._model):
            self._session.revoke_key()
        self._session.check_timeouts(now, is_reading=self._is_reading)
        self._run_actions()
        self._tick_timer = self._loop.call_later(SESSION_TICK_SECONDS, self._on_tick)

    # messages of the worker, through the listener of the current slot

    def on_audio_processed(self, byte_count: int) -> None:
        if self._slot is not None:
            self._slot.unprocessed_bytes -= byte_count
            self._progress.set()

    def on_hypothesis(self, message: ipc.RecognitionHypothesis) -> None:
        self._session.on_hypothesis(message.epoch, message.text, message.is_stable)
        self._run_actions()

    def on_final(self, message: ipc.FinalTranscript) -> None:
        self._session.on_final(message.text, message.chunk_count, message.words)
        self._run_actions()

    def on_recognition_failed(self, message: str) -> None:
        self._session.on_recognition_failed(message)
        self._run_actions()

    def on_worker_lost(self, message: str) -> None:
        self._worker_actions.clear()
        self._release_slot()
        self._session.on_worker_lost(message)
        self._run_actions()


class _DetachableListener:
    """Forwards the messages of a stream until it is detached. Messages of a released slot are dropped."""

    def __init__(self, session: WebSocketSession) -> None:
        self.session: WebSocketSession | None = session

    def on_audio_processed(self, byte_count: int) -> None:
        if self.session is not None:
            self.session.on_audio_processed(byte_count)

    def on_hypothesis(self, message: ipc.RecognitionHypothesis) -> None:
        if self.session is not None:
            self.session.on_hypothesis(message)

    def on_final(self, message: ipc.FinalTranscript) -> None:
        if self.session is not None:
            self.session.on_final(message)

    def on_recognition_failed(self, message: str) -> None:
        if self.session is not None:
            self.session.on_recognition_failed(message)

    def on_worker_lost(self, message: str) -> None:
        if self.session is not None:
            self.session.on_worker_lost(message)
