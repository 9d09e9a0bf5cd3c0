"""The protocol of one streaming session, without I/O: messages in, orders out (sent messages are orders as well).

             config, or audio or flush with the defaults            opened
   NEW ─────────────────────────────────────────────▶ OPENING ─────────────▶ LIVE ──┐ audio, flush, reset
    │                                                  │  ▲ ▲                 │  ◀─┘
    │                                          refused │  │ │ config          │
    │                                                  ▼  │ └─────────────────┤
    │                                                REFUSED (config)         │ lost: the worker died, another is asked
    │                                                                         │ for; what was stable is not forgotten
    └────────────── close, time-outs, key, shutdown: CLOSED ◀─────────────────┘

While OPENING, and when config or close come behind a flush that is not answered, messages are held (`reading` is
false then). The messages are those of `svc.wire.speech`.
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
"""Workers that may die under a session, without a word in between, before it is given up."""


class SendToClient(msgspec.Struct, frozen=True):
    """A message for the client."""

    message: wire.ServerMessage


class AttachWorker(msgspec.Struct, frozen=True):
    """Find the model and a worker for it; answer with `opened` or `refused` and the same number."""

    attach_id: int
    config: wire.ConfigMessage


class SendAudio(msgspec.Struct, frozen=True):
    """Whole samples for the worker."""

    data: bytes


class FlushWorker(msgspec.Struct, frozen=True):
    """To the worker, in the order of the audio."""


class ResetWorker(msgspec.Struct, frozen=True):
    """To the worker, in the order of the audio."""


class ReleaseWorker(msgspec.Struct, frozen=True):
    """The worker is not needed any more."""


class CloseWebSocket(msgspec.Struct, frozen=True):
    """Close the socket, once everything is sent."""

    code: int


SessionAction = SendToClient | AttachWorker | SendAudio | FlushWorker | ResetWorker | ReleaseWorker | CloseWebSocket
SessionState = Literal["new", "opening", "live", "refused", "closed"]


class SpeechSession:
    """Feed it, and carry out `orders()` after each call. Times are in seconds of any steady clock."""

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
        """Why it ended, unless the client has just gone."""
        self._aligner = SampleAligner()
        self._epoch = 0
        self._worker_losses = 0
        self._utterance_bytes = 0
        """Of the utterance that the client speaks."""
        self._pending_flush_bytes: deque[int] = deque()
        """Flushes that are not answered: the bytes of their utterances."""
        self._idle_timeout, self._last_message_at, self._session_deadline = idle_timeout, now, now + max_duration
        self._reset_transcript()

    def _reset_transcript(self) -> None:
        """The worker's next hypothesis is about another utterance: the client may be further on than the worker."""
        self._partial_count = 0
        self._stable_text = ""
        self._carried_text = ""
        """Stable text of this utterance from a worker that died."""

    def take_actions(self) -> list[SessionAction]:
        """What has to be done now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def can_read(self) -> bool:
        """Whether another message of the client would be worked through at once."""
        return self.state not in ("opening", "closed") and not self._pending_messages

    @property
    def has_pending_flush(self) -> bool:
        """Whether a final is owed."""
        return bool(self._pending_flush_bytes)

    # from the client

    def receive(self, message: bytes | str, now: float) -> None:
        """A binary or text frame."""
        self._last_message_at = now
        if self.state == "closed":
            return
        self._pending_messages.append(message)
        self._process_pending()

    def _process_pending(self) -> None:
        """Works through held messages, until one has to wait."""
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
        self._actions.append(AttachWorker(self._attach_id, self._config))

    def _handle_flush(self) -> bool:
        if self.state == "new":
            self._start_opening(wire.ConfigMessage())
            return False
        if self.state == "refused":  # a flush is always answered
            self._actions.append(
                SendToClient(wire.ErrorEvent(f"There is no model in this session: {self._refusal_message}"))
            )
            self._actions.append(SendToClient(wire.Final("", 0, 0)))
            return True
        self._pending_flush_bytes.append(self._utterance_bytes)
        self._utterance_bytes = 0
        self._actions.append(FlushWorker())
        return True

    def _handle_reset(self) -> None:
        if self.state == "live":
            self._epoch += 1
            self._utterance_bytes = 0
            self._aligner = SampleAligner()  # half a sample of the old utterance would shift the new one by a byte
            if not self._pending_flush_bytes:
                self._reset_transcript()
            self._actions.append(ResetWorker())

    # from the worker

    def on_attached(self, attach_id: int, model: str) -> None:
        """The worker is there, and the model is loaded."""
        if attach_id != self._attach_id or self.state != "opening":
            return
        self.state = "live"
        if self._must_send_ready:
            self._must_send_ready = False
            self._actions.append(SendToClient(wire.ReadyEvent(self.id, model)))
        self._process_pending()

    def on_attach_failed(self, attach_id: int, error: SvcError) -> None:
        """There is no such model, it does not load, or there is no room."""
        if attach_id != self._attach_id or self.state != "opening":
            return
        self.state = "refused"
        self._refusal_message = error.message
        self._send_error(error)
        self._process_pending()

    def on_hypothesis(self, epoch: int, text: str, is_stable: bool) -> None:
        """A hypothesis, after so many resets of this worker's voice."""
        if self.state != "live" or epoch != self._epoch:
            return
        self._worker_losses = 0
        text = join_texts(self._carried_text, text)
        if is_stable:
            self._stable_text = text
        self._actions.append(SendToClient(wire.Partial(text, is_stable, self._partial_count)))
        self._partial_count += 1

    def on_final(self, text: str, chunk_count: int) -> None:
        """The answer to the oldest flush."""
        if not self._pending_flush_bytes:
            return
        self._worker_losses = 0
        self._send_final(join_texts(self._carried_text, text), chunk_count)
        self._process_pending()

    def _send_final(self, text: str, chunk_count: int) -> None:
        utterance_bytes = self._pending_flush_bytes.popleft()
        self._reset_transcript()
        self._actions.append(
            SendToClient(wire.Final(text, round(utterance_bytes * 1000 / BYTES_PER_SECOND), chunk_count))
        )

    def on_recognition_failed(self, message: str) -> None:
        """The engine failed on some of the audio; it goes on."""
        if self.state == "live":
            self._actions.append(SendToClient(wire.ErrorEvent(message)))

    def on_worker_lost(self, message: str) -> None:
        """The worker died. Owed finals are answered with what was stable; another worker is asked for."""
        if self.state != "live":
            return
        self._actions.append(SendToClient(wire.ErrorEvent(message)))
        while self._pending_flush_bytes:
            self._send_final(self._stable_text, 0)
        self._carried_text = self._stable_text
        self._worker_losses += 1
        if self._worker_losses > MAX_CONSECUTIVE_WORKER_LOSSES:
            self.state = "refused"
            self._refusal_message = "its worker died again and again"
        else:
            self.state = "opening"
            self._request_worker()
        self._process_pending()

    # from the clock and the server

    def check_timeouts(self, now: float) -> None:
        """Looks at the time."""
        if now >= self._session_deadline:
            self._close_session("session_limit", 1000)
        elif now >= self._last_message_at + self._idle_timeout and self.can_read and not self._pending_flush_bytes:
            self._close_session("idle_timeout", 1000)

    def shutdown(self) -> None:
        """The server stops."""
        self._close_session("server_shutdown", 1001)

    def revoke_key(self) -> None:
        """The key is no longer valid: it was revoked, has expired, or may not use this any more."""
        self._close_session("key_revoked", 1008)

    def reject(self, error: SvcError) -> None:
        """There is no room for this session, or a limit of its key is reached."""
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
