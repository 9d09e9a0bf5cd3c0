"""The body of `POST /v1/audio/speech`, as in OpenAI's API. Data only.

https://platform.openai.com/docs/api-reference/audio/createSpeech
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

MAX_SPEECH_INPUT_CHARS: Final = 4096
MIN_SPEECH_SPEED: Final = 0.25
MAX_SPEECH_SPEED: Final = 4.0
DEFAULT_SPEECH_FORMAT: Final = "mp3"

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
SPEECH_CONTENT_TYPES: Final = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
"""The formats that a voice of this machine can make, and their media types. Providers have `aac` as well."""


class SpeechRequest(msgspec.Struct, frozen=True):
    """The fields of the request. A null is the same as a missing field."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: Annotated[str, Meta(min_length=1, max_length=MAX_SPEECH_INPUT_CHARS)]
    voice: Annotated[str, Meta(max_length=512)] | dict[str, Any] | None = None
    """The name of a voice, or an object with the `id` of a custom one."""
    response_format: SpeechFormat | None = None
    speed: Annotated[float, Meta(ge=MIN_SPEECH_SPEED, le=MAX_SPEECH_SPEED)] | None = None
    instructions: str | None = None
    stream_format: Literal["audio", "sse"] | None = None

    @property
    def format(self) -> str:
        """The requested format, or the default."""
        return self.response_format or DEFAULT_SPEECH_FORMAT

    @property
    def voice_name(self) -> str | None:
        """The name of the voice. None for a custom one, which only its provider has."""
        return self.voice if isinstance(self.voice, str) else None


_UNKNOWN_SIZE = b"\xff\xff\xff\xff"


def complete_wav_sizes(data: bytes) -> bytes:
    """Return a complete WAV file with its sizes, if its writer streamed it and did not know them."""
    if data[:4] != b"RIFF" or data[4:8] != _UNKNOWN_SIZE or data[8:12] != b"WAVE":
        return data
    offset = 12
    while offset + 8 <= len(data):
        size = data[offset + 4 : offset + 8]
        if data[offset : offset + 4] == b"data":
            if size != _UNKNOWN_SIZE:
                return data
            start = offset + 8
            sizes = [(total % 2**32).to_bytes(4, "little") for total in (len(data) - 8, len(data) - start)]
            return b"".join((data[:4], sizes[0], data[8 : offset + 4], sizes[1], memoryview(data)[start:]))
        chunk_bytes = int.from_bytes(size, "little")
        offset += 8 + chunk_bytes + chunk_bytes % 2
    return data
