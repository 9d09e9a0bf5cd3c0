"""What a gateway and its speech worker say to each other over a Unix socket: frames of a length and a message.

gateway: Load · (Open (Audio | Flush | Reset)* Drop)*          voices are numbered by the gateway
worker:  Loaded | LoadFailed · (Taken | Heard | Done | Faulted)*
"""

from __future__ import annotations

import struct

import msgspec

from svc.speech.audio import Format
from svc.speech.model import Model

_LENGTH = struct.Struct("<I")
MAX_FRAME = 8 << 20


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A message that goes over the link."""


class Load(_Message, frozen=True):
    """The first message: the model, and how many voices at once."""

    model: Model
    voices: int


class Open(_Message, frozen=True):
    """A new voice. `live`: partials are wanted."""

    voice: int
    vad: bool
    language: str | None
    format: Format
    live: bool


class Audio(_Message, frozen=True):
    """Whole samples."""

    voice: int
    data: bytes


class Flush(_Message, frozen=True):
    """Ends the utterance: exactly one Done answers."""

    voice: int


class Reset(_Message, frozen=True):
    """Drops the utterance; Heard of a later `epoch` only are about what follows."""

    voice: int


class Drop(_Message, frozen=True):
    """The voice has gone."""

    voice: int


class Loaded(_Message, frozen=True):
    """The model works."""


class LoadFailed(_Message, frozen=True):
    """The model does not load; the worker ends."""

    message: str


class Taken(_Message, frozen=True):
    """So many bytes of audio have been worked through: as many may be sent again."""

    voice: int
    size: int


class Heard(_Message, frozen=True):
    """The utterance so far, after `epoch` resets. `chunks`: pieces decoded in it."""

    voice: int
    epoch: int
    text: str
    stable: bool


class Details(msgspec.Struct, frozen=True, array_like=True):
    """Details of a decoding. The defaults are for an engine that reports none and decodes greedily."""

    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    language: str | None = None
    """That the engine found out, in ISO 639-1."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of speech, in milliseconds from the utterance's beginning."""

    start: int
    end: int
    text: str
    details: Details = Details()


class Done(_Message, frozen=True):
    """The whole utterance."""

    voice: int
    text: str
    chunks: int
    segments: tuple[Segment, ...]


class Faulted(_Message, frozen=True):
    """The engine failed on this voice; it goes on."""

    voice: int
    message: str


ToWorker = Load | Open | Audio | Flush | Reset | Drop
FromWorker = Loaded | LoadFailed | Taken | Heard | Done | Faulted

_encoder = msgspec.msgpack.Encoder()
to_worker = msgspec.msgpack.Decoder(ToWorker)
from_worker = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """A message as it goes over the socket."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unframer:
    """Cuts what comes from the socket into messages' bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """The bodies that are whole. Raises ValueError for a frame that is too large."""
        self._held += data
        found: list[bytes] = []
        place = 0
        while place + 4 <= len(self._held):
            (size,) = _LENGTH.unpack_from(self._held, place)
            if size > MAX_FRAME:
                raise ValueError("a frame of the speech link is too large")
            if place + 4 + size > len(self._held):
                break
            found.append(bytes(self._held[place + 4 : place + 4 + size]))
            place += 4 + size
        del self._held[:place]
        return found
