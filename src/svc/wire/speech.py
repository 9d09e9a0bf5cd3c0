"""What is said on the streaming speech-to-text socket: the messages of both sides. Data only.

client:  config{model, language, vad, model_dir} · flush · reset · close          (JSON text frames; audio is binary)
server:  ready{session_id, model, sample_rate} · partial{text, is_stable, chunk_index}
         final{text, duration_ms, chunks_processed} · error{message, code} · closed{reason}

interface.md, "Client messages" and "Events".
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from svc.errors import InvalidRequest

MAX_CLIENT_MESSAGE_CHARS = 64 * 1024
"""Characters of a text message; a longer one is refused without being read."""
MAX_CONFIG_STRING_CHARS = 4096
"""Characters of a string in `config`."""

SpeechErrorCode = Literal["asr_error", "invalid_request", "rate_limit_exceeded", "model_not_found"]
SpeechCloseReason = Literal["client_close", "idle_timeout", "session_limit", "server_shutdown", "key_revoked"]


class ConfigMessage(msgspec.Struct, frozen=True):
    """Which model, for which language; None is the default."""

    model: str | None = None
    language: str | None = None
    vad: bool | None = None
    model_dir: str | None = None


class FlushMessage(msgspec.Struct, frozen=True):
    """The final transcript, please."""


class ResetMessage(msgspec.Struct, frozen=True):
    """Forget this utterance."""


class CloseMessage(msgspec.Struct, frozen=True):
    """The end of the session."""


ClientMessage = ConfigMessage | FlushMessage | ResetMessage | CloseMessage


class ReadyEvent(msgspec.Struct, frozen=True, tag="ready"):
    """The session is configured."""

    session_id: str
    model: str
    sample_rate: int = 16000


class Partial(msgspec.Struct, frozen=True, tag="partial"):
    """The utterance so far; a stable one is a prefix of all that follow."""

    text: str
    is_stable: bool
    chunk_index: int


class Final(msgspec.Struct, frozen=True, tag="final"):
    """The answer to a flush."""

    text: str
    duration_ms: int
    chunks_processed: int


class ErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """What went wrong; the session goes on unless `closed` follows."""

    message: str
    code: SpeechErrorCode = "asr_error"


class ClosedEvent(msgspec.Struct, frozen=True, tag="closed"):
    """Nothing comes after this."""

    reason: SpeechCloseReason


ServerMessage = ReadyEvent | Partial | Final | ErrorEvent | ClosedEvent


def encode_server_message(message: ServerMessage) -> str:
    """One JSON text frame."""
    return msgspec.json.encode(message).decode()


def decode_client_message(text: str) -> ClientMessage:
    """Reads a text frame; unknown fields are ignored. Raises InvalidRequest that says what is wrong."""
    if len(text) > MAX_CLIENT_MESSAGE_CHARS:
        raise InvalidRequest(
            f"The message is longer than {MAX_CLIENT_MESSAGE_CHARS} characters; audio goes in binary frames."
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
            raise InvalidRequest(f"There is no message type {unknown[:64]!r}; there are config, flush, reset, close.")
    raise InvalidRequest("The message has no 'type' that is a string.")


def _decode_config(value: dict[str, Any]) -> ConfigMessage:
    fields: dict[str, Any] = {}
    for name, field_type in (("model", str), ("language", str), ("vad", bool), ("model_dir", str)):
        field = value.get(name)
        if field is None:
            continue
        if not isinstance(field, field_type):
            raise InvalidRequest(f"'{name}' is not a {'boolean' if field_type is bool else 'string'}.")
        if isinstance(field, str) and len(field) > MAX_CONFIG_STRING_CHARS:
            raise InvalidRequest(f"'{name}' is too long.")
        fields[name] = field
    return ConfigMessage(**fields)
