"""The messages of the WebSocket `/v1/audio/transcriptions/stream`, in both directions. Data only.

client:  config{model, language, vad, model_dir} · flush · reset · close          (JSON text frames; audio is binary)
server:  ready{session_id, model, sample_rate} · partial{text, is_stable, chunk_index}
         final{text, duration_ms, chunks_processed, words} · error{message, code} · closed{reason}

docs/reference/speech-protocol.md is generated from the docstrings here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from svc.errors import InvalidRequest

LIVE_TRANSCRIPTION_PATH = "/v1/audio/transcriptions/stream"
"""The path of the WebSocket."""
MAX_CLIENT_MESSAGE_CHARS = 64 * 1024
"""Maximum characters of a text message. A longer one is rejected without being parsed."""
MAX_CONFIG_STRING_CHARS = 4096
"""Maximum characters of a string in `config`."""

SpeechErrorCode = Literal["asr_error", "invalid_request", "rate_limit_exceeded", "model_not_found"]
SpeechCloseReason = Literal["client_close", "idle_timeout", "session_limit", "server_shutdown", "key_revoked"]


class ConfigMessage(msgspec.Struct, frozen=True):
    """Selects the model and starts a new utterance. The gateway responds with `ready` or `error`."""

    model: str | None = None
    """The name of a model, or a reference such as `my-model@1.2`. Default: `speech.default_model`."""
    language: str | None = None
    """A language code such as `en`. Without it, the model decides."""
    vad: bool | None = None
    """Whether the voice activity detector splits the audio at silence. Default: `true`."""
    model_dir: str | None = None
    """A folder with a model, below a folder of `speech.model_dirs`."""


class FlushMessage(msgspec.Struct, frozen=True):
    """Ends the utterance. The gateway responds to each `flush` with one `final`, in order."""


class ResetMessage(msgspec.Struct, frozen=True):
    """Discards the utterance and starts a new one. The gateway sends no response."""


class CloseMessage(msgspec.Struct, frozen=True):
    """Ends the session. The gateway sends each pending `final` first, and then `closed`."""


ClientMessage = ConfigMessage | FlushMessage | ResetMessage | CloseMessage


class ReadyEvent(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded. Sent after each `config`, or without `config`, after the first audio or `flush`."""

    session_id: str
    """The id of the session, the same in each `ready` of a connection."""
    model: str
    """The name of the model."""
    sample_rate: int = 16000
    """Samples per second of the audio that the client must send. It is always 16000."""


class Partial(msgspec.Struct, frozen=True, tag="partial"):
    """The transcript of the utterance so far. A later one replaces it."""

    text: str
    """The whole transcript so far."""
    is_stable: bool
    """Whether all later transcripts of the utterance begin with this text."""
    chunk_index: int
    """The number of the event in its utterance, from 0. The gateway may skip numbers for a slow client."""


class WordTime(msgspec.Struct, frozen=True):
    """When a word was spoken."""

    word: str
    start_ms: int
    end_ms: int


class Final(msgspec.Struct, frozen=True, tag="final", omit_defaults=True):
    """The transcript of a finished utterance. Sent after a `flush`."""

    text: str
    """The whole transcript. It is empty if nobody spoke."""
    duration_ms: int
    """Milliseconds of audio that the client sent for the utterance."""
    chunks_processed: int
    """How often the model decoded a part of the utterance."""
    words: tuple[WordTime, ...] | None = None
    """Each word with its start and end in milliseconds since the session's first audio, if the model reports times."""


class ErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """An error. The session continues unless `closed` or a close frame follows."""

    message: str
    """The cause, for a person."""
    code: SpeechErrorCode = "asr_error"
    """The error code, for programs."""


class ClosedEvent(msgspec.Struct, frozen=True, tag="closed"):
    """The last message of a session. A close frame follows."""

    reason: SpeechCloseReason
    """Why the session ended."""


ServerMessage = ReadyEvent | Partial | Final | ErrorEvent | ClosedEvent


def encode_server_message(message: ServerMessage) -> str:
    """Encode a message as the JSON of a text frame."""
    return msgspec.json.encode(message).decode()


def decode_client_message(text: str) -> ClientMessage:
    """Decode a text frame. Unknown fields are ignored. Raises InvalidRequest."""
    if len(text) > MAX_CLIENT_MESSAGE_CHARS:
        raise InvalidRequest(
            f"The message is longer than {MAX_CLIENT_MESSAGE_CHARS} characters. Send audio in binary frames."
        )
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The message is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The message is not a JSON object.")
    match value.get("type"):
        case "config":
            return _decode_config(value)
        case "flush":
            return FlushMessage()
        case "reset":
            return ResetMessage()
        case "close":
            return CloseMessage()
        case str(unknown):
            raise InvalidRequest(f"There is no message type {unknown[:64]!r}. Use config, flush, reset or close.")
    raise InvalidRequest("The message must have a string 'type'.")


def _decode_config(value: dict[str, Any]) -> ConfigMessage:
    fields: dict[str, Any] = {}
    for name, field_type in (("model", str), ("language", str), ("vad", bool), ("model_dir", str)):
        field = value.get(name)
        if field is None:
            continue
        if not isinstance(field, field_type):
            raise InvalidRequest(f"'{name}' must be a {'boolean' if field_type is bool else 'string'}.")
        if isinstance(field, str) and len(field) > MAX_CONFIG_STRING_CHARS:
            raise InvalidRequest(f"'{name}' is longer than {MAX_CONFIG_STRING_CHARS} characters.")
        fields[name] = field
    return ConfigMessage(**fields)
