"""The messages between the gateway and a speech worker over a Unix socket: length-prefixed MessagePack.

gateway: LoadModel · (OpenStream (FeedAudio | FlushStream | ResetStream)* CloseStream)*    the gateway numbers streams
worker:  ModelLoaded | ModelLoadFailed
         · (AudioProcessed | RecognitionHypothesis | FinalTranscript | RecognitionFailed | InferenceReport)*
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from svc.speech.audio import AudioFormat
from svc.speech.model import RecognitionModel
from svc.wire.speech import WordTime

_FRAME_LENGTH = struct.Struct("<I")
MAX_IPC_FRAME_BYTES = 8 << 20


class _IpcMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A message between the processes."""


class LoadModel(_IpcMessage, frozen=True):
    """The first message: the model and the maximum number of streams."""

    model: RecognitionModel
    max_streams: int


class OpenStream(_IpcMessage, frozen=True):
    """Open a stream. `live`: send partial hypotheses."""

    stream_id: int
    vad: bool
    language: str | None
    format: AudioFormat
    live: bool
    with_words: bool = False
    """Whether the engine must compute the times of words, if that costs extra."""


class FeedAudio(_IpcMessage, frozen=True):
    """Complete samples."""

    stream_id: int
    data: bytes


class FlushStream(_IpcMessage, frozen=True):
    """End the utterance. The worker sends exactly one FinalTranscript."""

    stream_id: int


class ResetStream(_IpcMessage, frozen=True):
    """Discard the utterance. Later hypotheses have the next `epoch`."""

    stream_id: int


class CloseStream(_IpcMessage, frozen=True):
    """Close the stream."""

    stream_id: int


class ModelLoaded(_IpcMessage, frozen=True):
    """The model is loaded and decodes. `has_word_times`: it may report the times of words."""

    has_word_times: bool = True


class ModelLoadFailed(_IpcMessage, frozen=True):
    """The model cannot be loaded. The worker exits."""

    message: str


class AudioProcessed(_IpcMessage, frozen=True):
    """The worker has processed `byte_count` bytes of audio, so the gateway may send as many again."""

    stream_id: int
    byte_count: int


class RecognitionHypothesis(_IpcMessage, frozen=True):
    """A hypothesis for the utterance so far, after `epoch` resets."""

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
    """The language that the engine detected (ISO 639-1)."""


class Hypothesis(NamedTuple):
    """The result of a decoding. `words`: in milliseconds from the start of the segment. None if they are unknown."""

    text: str
    details: DecodingDetails = DecodingDetails()
    words: tuple[WordTime, ...] | None = None


class TranscriptSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment of speech, in milliseconds from the beginning of the utterance."""

    start_ms: int
    end_ms: int
    text: str
    details: DecodingDetails = DecodingDetails()
    words: tuple[WordTime, ...] | None = None


class FinalTranscript(_IpcMessage, frozen=True):
    """The transcript of the whole utterance. `chunk_count`: how often the engine decoded."""

    stream_id: int
    text: str
    chunk_count: int
    segments: tuple[TranscriptSegment, ...]

    @property
    def words(self) -> tuple[WordTime, ...] | None:
        """The times of all words, or None if those of a segment are unknown."""
        words: list[WordTime] = []
        for segment in self.segments:
            if segment.words is None:
                return None
            words += segment.words
        return tuple(words)


class RecognitionFailed(_IpcMessage, frozen=True):
    """The engine failed on audio of this stream. The stream continues."""

    stream_id: int
    message: str


class InferenceReport(_IpcMessage, frozen=True):
    """An inference for this stream: seconds that it waited for a thread, and seconds of the engine.

    It precedes the messages with the result. The stream may be closed already.
    """

    stream_id: int
    queue_seconds: float
    decode_seconds: float


GatewayToWorker = LoadModel | OpenStream | FeedAudio | FlushStream | ResetStream | CloseStream
WorkerToGateway = (
    ModelLoaded
    | ModelLoadFailed
    | AudioProcessed
    | RecognitionHypothesis
    | FinalTranscript
    | RecognitionFailed
    | InferenceReport
)

_ipc_encoder = msgspec.msgpack.Encoder()
gateway_message_decoder = msgspec.msgpack.Decoder(GatewayToWorker)
worker_message_decoder = msgspec.msgpack.Decoder(WorkerToGateway)


def encode_frame(message: GatewayToWorker | WorkerToGateway) -> bytes:
    """Return the message with its length prefix."""
    body = _ipc_encoder.encode(message)
    return _FRAME_LENGTH.pack(len(body)) + body


class IpcFrameDecoder:
    """Splits the bytes of the socket into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """Return the complete bodies. Raises ValueError for a frame above MAX_IPC_FRAME_BYTES."""
        self._buffer += data
        bodies: list[bytes] = []
        offset = 0
        while offset + 4 <= len(self._buffer):
            (size,) = _FRAME_LENGTH.unpack_from(self._buffer, offset)
            if size > MAX_IPC_FRAME_BYTES:
                raise ValueError("a frame of the speech worker's socket is too large")
            if offset + 4 + size > len(self._buffer):
                break
            bodies.append(bytes(self._buffer[offset + 4 : offset + 4 + size]))
            offset += 4 + size
        del self._buffer[:offset]
        return bodies
