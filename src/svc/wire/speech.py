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

MAX_TEXT = 64 * 1024
"""Characters of a text message; a longer one is refused without being read."""
MAX_NAME = 4096
"""Characters of a string in `config`."""

Code = Literal["asr_error", "invalid_request", "rate_limit_exceeded", "model_not_found"]
Reason = Literal["client_close", "idle_timeout", "session_limit", "server_shutdown", "key_revoked"]


class Config(msgspec.Struct, frozen=True):
    """Which model, for which language; None is the default."""

    model: str | None = None
    language: str | None = None
    vad: bool | None = None
    model_dir: str | None = None


class Flush(msgspec.Struct, frozen=True):
    """The final transcript, please."""


class Reset(msgspec.Struct, frozen=True):
    """Forget this utterance."""


class Close(msgspec.Struct, frozen=True):
    """The end of the session."""


ClientMessage = Config | Flush | Reset | Close


class Ready(msgspec.Struct, frozen=True, tag="ready"):
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


class Error(msgspec.Struct, frozen=True, tag="error"):
    """What went wrong; the session goes on unless `closed` follows."""

    message: str
    code: Code = "asr_error"


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Nothing comes after this."""

    reason: Reason


ServerMessage = Ready | Partial | Final | Error | Closed


def encode(message: ServerMessage) -> str:
    """One JSON text frame."""
    return msgspec.json.encode(message).decode()


def read_client_message(text: str) -> ClientMessage:
    """Reads a text frame; unknown fields are ignored. Raises InvalidRequest that says what is wrong."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"The message is longer than {MAX_TEXT} characters; audio goes in binary frames.")
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The message is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The message is not a JSON object.")
    match value.get("type"):
        case "config":
            return _config(value)
        case "flush":
            return Flush()
        case "reset":
            return Reset()
        case "close":
            return Close()
        case str(unknown):
            raise InvalidRequest(f"There is no message type {unknown[:64]!r}; there are config, flush, reset, close.")
    raise InvalidRequest("The message has no 'type' that is a string.")


def _config(value: dict[str, Any]) -> Config:
    fields: dict[str, Any] = {}
    for name, kind in (("model", str), ("language", str), ("vad", bool), ("model_dir", str)):
        field = value.get(name)
        if field is None:
            continue
        if not isinstance(field, kind):
            raise InvalidRequest(f"'{name}' is not a {'boolean' if kind is bool else 'string'}.")
        if isinstance(field, str) and len(field) > MAX_NAME:
            raise InvalidRequest(f"'{name}' is too long.")
        fields[name] = field
    return Config(**fields)
