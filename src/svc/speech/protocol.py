"""The protocol of one live session, without I/O: messages in, actions out. Messages to the client are actions too.

             config, or audio or flush with the defaults            attached
   NEW ─────────────────────────────────────────────▶ OPENING ─────────────▶ LIVE ──┐ audio, flush, reset
    │                                                  │  ▲ ▲                 │  ◀─┘
    │                                          refused │  │ │ config          │
    │                                                  ▼  │ └─────────────────┤
    │                                                REFUSED (config)         │ lost: another worker is requested,
    │                                                                         │ the stable text is kept
    └────────────── close, timeouts, key, shutdown: CLOSED ◀─────────────────┘

While OPENING, messages are queued, and `can_read` is false. So are `config` and `close` behind a pending flush.
`svc.wire.speech` defines the messages.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from svc.errors import InvalidRequest, SvcError
from svc.speech.audio import BYTES_PER_SECOND, SampleAligner
from svc.speech.stable_prefix import join_texts
from svc.wire import speech as wire

MAX_CONSECUTIVE_WORKER_LOSSES = 3
"""Consecutive worker deaths without a result, after which the session is rejected."""
WORKER_SILENCE_TIMEOUT_SECONDS = 90.0
"""Seconds without any message after which a worker that owes a response is killed. A busy one sends some."""


class SendToClient(msgspec.Struct, frozen=True):
    """Send a message to the client."""

    message: wire.ServerMessage


class AttachWorker(msgspec.Struct, frozen=True):
    """Find the model and a worker. Report to `on_attached` or `on_attach_failed` with the same `attach_id`."""

    attach_id: int
    config: wire.ConfigMessage


class SendAudio(msgspec.Struct, frozen=True):
    """Send complete samples to the worker."""

    data: bytes


class FlushWorker(msgspec.Struct, frozen=True):
    """Flush the worker, in order with the audio."""


class ResetWorker(msgspec.Struct, frozen=True):
    """Reset the worker, in order with the audio."""


class ReleaseWorker(msgspec.Struct, frozen=True):
    """Release the worker."""


class KillWorker(msgspec.Struct, frozen=True):
    """Kill the worker, which hangs. Report its death to `on_worker_lost`."""


class CloseWebSocket(msgspec.Struct, frozen=True):
    """Close the WebSocket after all messages are sent."""

    code: int


SessionAction = (
    SendToClient | AttachWorker | SendAudio | FlushWorker | ResetWorker | ReleaseWorker | KillWorker | CloseWebSocket
)
SessionState = Literal["new", "opening", "live", "refused", "closed"]


class SpeechSession:
    """The state of one live session. Run `take_actions()` after each call. Times are seconds of a monotonic clock."""

    def __init__(self, session_id: str, *, now: float, idle_timeout: float = 120.0, max_duration: float = 14400.0):
        self.id = session_id
        self.state: SessionState = "new"
        self._actions: list[SessionAction] = []
        self._pending_messages: deque[bytes | str] = deque()
        self._config = wire.ConfigMessage()
        self._attach_id = 0
        self._must_send_ready = False
        self._refusal_message = ""
        self.close_reason: wire.SpeechCloseReason | None = None
        """Why the session ended. None if the client disconnected."""
        self._aligner = SampleAligner()
        self._epoch = 0
        self._worker_losses = 0
        self._worker_owes_since: float | None = None
        """When the worker was first seen to owe a response, in seconds."""
        self._received_bytes = 0
        """Bytes of the session's audio."""
        self._utterance_bytes = 0
        """Bytes of the current utterance."""
        self._pending_flush_bytes: deque[int] = deque()
        """The size in bytes of each utterance whose flush is pending."""
        self._pending_flush_starts: deque[int] = deque()
        """The bytes before each of these utterances."""
        self._idle_timeout, self._last_message_at, self._session_deadline = idle_timeout, now, now + max_duration
        self._reset_transcript()

    def _reset_transcript(self) -> None:
        """Start a new utterance. The worker may still be processing the previous one."""
        self._partial_count = 0
        self._stable_text = ""
        self._has_word_times = True
        """Whether one worker has received the whole utterance."""
        self._carried_text = ""
        """The stable text of this utterance from a worker that died."""

    def take_actions(self) -> list[SessionAction]:
        """Return the actions to run now, in order."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def can_read(self) -> bool:
        """Return whether the next message would be processed immediately."""
        return self.state not in ("opening", "closed") and not self._pending_messages

    @property
    def has_pending_flush(self) -> bool:
        """Whether the client waits for a final."""
        return bool(self._pending_flush_bytes)

    # from the client

    def receive(self, message: bytes | str, now: float) -> None:
        """Process a binary or text message of the client at `now` seconds."""
        self._last_message_at = now
        if self.state == "closed":
            return
        self._pending_messages.append(message)
        self._process_pending()

    def _process_pending(self) -> None:
        """Process queued messages until one has to wait."""
        while self._pending_messages and self.state not in ("opening", "closed"):
            message = self._pending_messages.popleft()
            is_handled = self._handle_audio(message) if isinstance(message, bytes) else self._handle_text(message)
            if not is_handled:
                self._pending_messages.appendleft(message)
                return

    def _handle_audio(self, data: bytes) -> bool:
        if self.state == "new":
            self._start_opening(wire.ConfigMessage())
            return False
        self._received_bytes += len(data)
        if self.state == "live":
            self._utterance_bytes += len(data)
            if samples := self._aligner.push(data):
                self._actions.append(SendAudio(samples))
        return True

    def _handle_text(self, text: str) -> bool:
        try:
            message = wire.decode_client_message(text)
        except InvalidRequest as error:
            self._send_error(error)
            return True
        match message:
            case wire.ConfigMessage():
                return self._handle_config(message)
            case wire.FlushMessage():
                return self._handle_flush()
            case wire.ResetMessage():
                self._handle_reset()
            case wire.CloseMessage():
                if self._pending_flush_bytes:
                    return False
                self._close_session("client_close", 1000)
        return True

    def _handle_config(self, config: wire.ConfigMessage) -> bool:
        if self._pending_flush_bytes:
            return False
        if self.state == "live":
            self._actions.append(ReleaseWorker())
        self._aligner = SampleAligner()
        self._worker_losses = 0
        self._utterance_bytes = 0
        self._reset_transcript()
        self._start_opening(config)
        return True

    def _start_opening(self, config: wire.ConfigMessage) -> None:
        self.state = "opening"
        self._config = config
        self._must_send_ready = True
        self._request_worker()

    def _request_worker(self) -> None:
        self._attach_id += 1
        self._epoch = 0
        self._worker_owes_since = None
        self._actions.append(AttachWorker(self._attach_id, self._config))

    def _handle_flush(self) -> bool:
        if self.state == "new":
            self._start_opening(wire.ConfigMessage())
            return False
        if self.state == "refused":  # every flush gets a final
            self._actions.append(SendToClient(wire.ErrorEvent(f"This session has no model: {self._refusal_message}")))
            self._actions.append(SendToClient(wire.Final(self._stable_text, 0, 0)))  # not taken back
            self._reset_transcript()
            return True
        self._pending_flush_bytes.append(self._utterance_bytes)
        self._pending_flush_starts.append(self._received_bytes - self._utterance_bytes)
        self._utterance_bytes = 0
        self._actions.append(FlushWorker())
        return True

    def _handle_reset(self) -> None:
        if self.state == "live":
            self._epoch += 1
            self._utterance_bytes = 0
            self._aligner = SampleAligner()  # a leftover byte would shift the next utterance
            if not self._pending_flush_bytes:
                self._reset_transcript()
            self._actions.append(ResetWorker())

    # from the worker

    def on_attached(self, attach_id: int, model: str) -> None:
        """Handle an attached worker with a loaded model."""
        if attach_id != self._attach_id or self.state != "opening":
            return
        self.state = "live"
        if self._must_send_ready:
            self._must_send_ready = False
            self._actions.append(SendToClient(wire.ReadyEvent(self.id, model)))
        self._process_pending()

    def on_attach_failed(self, attach_id: int, error: SvcError) -> None:
        """Handle a model that is not found or cannot be loaded, or a pool without a free slot."""
        if attach_id != self._attach_id or self.state != "opening":
            return
        self.state = "refused"
        self._refusal_message = error.message
        self._send_error(error)
        self._process_pending()

    def on_hypothesis(self, epoch: int, text: str, is_stable: bool) -> None:
        """Handle a hypothesis that follows `epoch` resets of this worker's stream."""
        if self.state != "live" or epoch != self._epoch:
            return
        self._worker_losses = 0
        text = join_texts(self._carried_text, text)
        if is_stable:
            self._stable_text = text
        self._actions.append(SendToClient(wire.Partial(text, is_stable, self._partial_count)))
        self._partial_count += 1

    def on_final(self, text: str, chunk_count: int, words: tuple[wire.WordTime, ...] | None = None) -> None:
        """Handle the final for the oldest flush. The times of `words` count from the start of the utterance."""
        if not self._pending_flush_bytes:
            return
        self._worker_losses = 0
        self._send_final(join_texts(self._carried_text, text), chunk_count, words if self._has_word_times else None)
        self._process_pending()

    def _send_final(self, text: str, chunk_count: int, words: tuple[wire.WordTime, ...] | None = None) -> None:
        utterance_ms, start_ms = (
            round(pending.popleft() * 1000 / BYTES_PER_SECOND)
            for pending in (self._pending_flush_bytes, self._pending_flush_starts)
        )
        self._reset_transcript()
        shifted = tuple(
            wire.WordTime(word.word, word.start_ms + start_ms, word.end_ms + start_ms) for word in words or ()
        )
        self._actions.append(SendToClient(wire.Final(text, utterance_ms, chunk_count, shifted or None)))

    def on_recognition_failed(self, message: str) -> None:
        """Handle a failure of the engine on some audio. The session continues."""
        if self.state == "live":
            self._actions.append(SendToClient(wire.ErrorEvent(message)))

    def on_worker_lost(self, message: str) -> None:
        """Handle the death of the worker. Answers pending flushes with the stable text and requests another worker."""
        if self.state != "live":
            return
        self._actions.append(SendToClient(wire.ErrorEvent(message)))
        while self._pending_flush_bytes:
            self._send_final(self._stable_text, 0)
        self._carried_text = self._stable_text
        self._has_word_times = not self._utterance_bytes
        self._worker_losses += 1
        if self._worker_losses > MAX_CONSECUTIVE_WORKER_LOSSES:
            self.state = "refused"
            self._refusal_message = "its workers died repeatedly"
        else:
            self.state = "opening"
            self._request_worker()
        self._process_pending()

    # from the clock and the server

    def check_timeouts(self, now: float, *, is_reading: bool) -> None:
        """Close the session if a timeout has expired at `now` seconds.

        The client is idle only while `is_reading`: the gateway waits for its next message, and owes it no response.
        """
        if now >= self._session_deadline:
            self._close_session("session_limit", 1000)
        elif not is_reading or not self.can_read or self.has_pending_flush:
            self._last_message_at = now
        elif now >= self._last_message_at + self._idle_timeout:
            self._close_session("idle_timeout", 1000)

    def check_worker(self, now: float, *, has_unprocessed_audio: bool, last_message_at: float) -> None:
        """Kill a worker that hangs: it owes a final or more, and has sent no message to any session for too long."""
        if not self.has_pending_flush and not has_unprocessed_audio:
            self._worker_owes_since = None
        elif self._worker_owes_since is None:
            self._worker_owes_since = now
        elif now > max(self._worker_owes_since, last_message_at) + WORKER_SILENCE_TIMEOUT_SECONDS:
            self._worker_owes_since = now
            self._actions.append(KillWorker())

    def shutdown(self) -> None:
        """Close the session because the server stops."""
        self._close_session("server_shutdown", 1001)

    def revoke_key(self) -> None:
        """Close the session because the key is revoked, expired or lacks the permission."""
        self._close_session("key_revoked", 1008)

    def reject(self, error: SvcError) -> None:
        """Reject the session: no session is free, or a limit of the key is reached."""
        if self.state != "closed":
            self.state = "closed"
            self._send_error(error)
            self._actions.append(CloseWebSocket(1013))

    def _close_session(self, reason: wire.SpeechCloseReason, code: int) -> None:
        if self.state == "closed":
            return
        if self.state == "live":
            self._actions.append(ReleaseWorker())
        self.state = "closed"
        self.close_reason = reason
        self._pending_messages.clear()
        self._actions += [SendToClient(wire.ClosedEvent(reason)), CloseWebSocket(code)]

    def _send_error(self, error: SvcError) -> None:
        code = error.code
        if code not in ("invalid_request", "rate_limit_exceeded", "model_not_found"):
            code = "asr_error"
        self._actions.append(SendToClient(wire.ErrorEvent(error.message, code)))  # type: ignore[arg-type]
