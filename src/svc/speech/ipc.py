"""What a gateway and its speech worker say to each other over a Unix socket: frames of a length and a message.

gateway: Load · (Open (Audio | Flush | Reset)* Drop)*          voices are numbered by the gateway
worker:  Loaded | LoadFailed · (Taken | Heard | Done | Faulted)*
"""

from __future__ import annotations

import struct

import msgspec

from svc.speech.audio import AudioFormat
from svc.speech.model import RecognitionModel

_FRAME_LENGTH = struct.Struct("<I")
MAX_IPC_FRAME_BYTES = 8 << 20


class _IpcMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A message that goes over the link."""


class LoadModel(_IpcMessage, frozen=True):
    """The first message: the model, and how many voices at once."""

    model: RecognitionModel
    max_streams: int


class OpenStream(_IpcMessage, frozen=True):
    """A new voice. `live`: partials are wanted."""

    stream_id: int
    vad: bool
    language: str | None
    format: AudioFormat
    live: bool


class FeedAudio(_IpcMessage, frozen=True):
    """Whole samples."""

    stream_id: int
    data: bytes


class FlushStream(_IpcMessage, frozen=True):
    """Ends the utterance: exactly one Done answers."""

    stream_id: int


class ResetStream(_IpcMessage, frozen=True):
    """Drops the utterance; Heard of a later `epoch` only are about what follows."""

    stream_id: int


class CloseStream(_IpcMessage, frozen=True):
    """The voice has gone."""

    stream_id: int


class ModelLoaded(_IpcMessage, frozen=True):
    """The model works."""


class ModelLoadFailed(_IpcMessage, frozen=True):
    """The model does not load; the worker ends."""

    message: str


class AudioProcessed(_IpcMessage, frozen=True):
    """So many bytes of audio have been worked through: as many may be sent again."""

    stream_id: int
    byte_count: int


class RecognitionHypothesis(_IpcMessage, frozen=True):
    """The utterance so far, after `epoch` resets. `chunks`: pieces decoded in it."""

    stream_id: int
    epoch: int
    text: str
    is_stable: bool


class DecodingDetails(msgspec.Struct, frozen=True, array_like=True):
    """Details of a decoding. The defaults are for an engine that reports none and decodes greedily."""

    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    language: str | None = None
    """That the engine found out, in ISO 639-1."""


class TranscriptSegment(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of speech, in milliseconds from the utterance's beginning."""

    start_ms: int
    end_ms: int
    text: str
    details: DecodingDetails = DecodingDetails()


class FinalTranscript(_IpcMessage, frozen=True):
    """The whole utterance."""

    stream_id: int
    text: str
    chunk_count: int
    segments: tuple[TranscriptSegment, ...]


class RecognitionFailed(_IpcMessage, frozen=True):
    """The engine failed on this voice; it goes on."""

    stream_id: int
    message: str


GatewayToWorker = LoadModel | OpenStream | FeedAudio | FlushStream | ResetStream | CloseStream
WorkerToGateway = (
    ModelLoaded | ModelLoadFailed | AudioProcessed | RecognitionHypothesis | FinalTranscript | RecognitionFailed
)

_ipc_encoder = msgspec.msgpack.Encoder()
gateway_message_decoder = msgspec.msgpack.Decoder(GatewayToWorker)
worker_message_decoder = msgspec.msgpack.Decoder(WorkerToGateway)


def encode_frame(message: GatewayToWorker | WorkerToGateway) -> bytes:
    """A message as it goes over the socket."""
    body = _ipc_encoder.encode(message)
    return _FRAME_LENGTH.pack(len(body)) + body


class IpcFrameDecoder:
    """Cuts what comes from the socket into messages' bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """The bodies that are whole. Raises ValueError for a frame that is too large."""
        self._buffer += data
        bodies: list[bytes] = []
        offset = 0
        while offset + 4 <= len(self._buffer):
            (size,) = _FRAME_LENGTH.unpack_from(self._buffer, offset)
            if size > MAX_IPC_FRAME_BYTES:
                raise ValueError("a frame of the speech link is too large")
            if offset + 4 + size > len(self._buffer):
                break
            bodies.append(bytes(self._buffer[offset + 4 : offset + 4 + size]))
            offset += 4 + size
        del self._buffer[:offset]
        return bodies
