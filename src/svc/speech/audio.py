"""Audio formats, the WAV parser and sample alignment. No I/O and no signal processing.

WAV: https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from svc.errors import InvalidRequest

SAMPLE_RATE_HZ = 16000
BYTES_PER_SECOND = 2 * SAMPLE_RATE_HZ
SUPPORTED_SAMPLE_RATES_HZ = range(1000, 384_001)
"""Accepted sample rates, in Hz. Upsampling a file with a lower rate would produce hours of audio."""

SampleEncoding = Literal["u8", "s16", "s24", "s32", "f32", "f64"]

_ENCODING_BYTES: dict[SampleEncoding, int] = {"u8": 1, "s16": 2, "s24": 3, "s32": 4, "f32": 4, "f64": 8}
_INTEGER_ENCODINGS: dict[int, SampleEncoding] = {8: "u8", 16: "s16", 24: "s24", 32: "s32"}
_FLOAT_ENCODINGS: dict[int, SampleEncoding] = {32: "f32", 64: "f64"}
_MIN_UNKNOWN_SIZE_BYTES = 0x7FFF0000
"""A size of 0, or of this value or more, means unknown: the writer wrote to a pipe, or the file is RF64."""
_UNSUPPORTED_WAVE_FORMATS = {2: "ADPCM", 6: "A-law", 7: "\u00b5-law", 17: "ADPCM", 49: "GSM", 85: "MP3"}
"""Names of further formats, by their tag (RFC 2361)."""
_WAVE_FORMAT_PCM, _WAVE_FORMAT_IEEE_FLOAT, _WAVE_FORMAT_EXTENSIBLE = 1, 3, 0xFFFE


class AudioFormat(msgspec.Struct, frozen=True):
    """A sample format: `rate` in Hz, `channels` interleaved channels, little-endian samples."""

    rate: int = SAMPLE_RATE_HZ
    channels: int = 1
    encoding: SampleEncoding = "s16"

    @property
    def frame_bytes(self) -> int:
        """The size of one sample of every channel, in bytes."""
        return _ENCODING_BYTES[self.encoding] * self.channels


LIVE_AUDIO_FORMAT = AudioFormat()
"""The format of the live WebSocket: 16-bit mono at 16 kHz."""


class SampleAligner:
    """Joins samples that are split between messages. An incomplete sample waits for the next message."""

    def __init__(self, frame_bytes: int = 2) -> None:
        self._frame_bytes = frame_bytes
        self._remainder = b""

    def push(self, data: bytes) -> bytes:
        """Return the complete samples that are available after `data`."""
        if self._remainder:
            data = self._remainder + data
        excess_bytes = len(data) % self._frame_bytes
        self._remainder = data[len(data) - excess_bytes :] if excess_bytes else b""
        return data[: len(data) - excess_bytes] if excess_bytes else data


class WavFile(msgspec.Struct, frozen=True):
    """A parsed WAV file: the `samples` that are present, from byte `data_offset` on."""

    format: AudioFormat
    data_offset: int
    samples: memoryview
    declared_bytes: int | None
    """The declared size of the samples in bytes. None if the file does not state it, as after a pipe."""

    @property
    def seconds(self) -> float:
        """The duration of the samples that are present, in seconds."""
        return len(self.samples) / self.format.frame_bytes / self.format.rate

    @property
    def truncation_warning(self) -> str:
        """The warning for a truncated file. Empty for a complete one."""
        return describe_truncation(self.format, len(self.samples), self.declared_bytes)


def describe_truncation(format_: AudioFormat, available_bytes: int, declared_bytes: int | None) -> str:
    """Return the warning for samples with fewer bytes than declared, or an empty string."""
    if declared_bytes is None or available_bytes >= declared_bytes - declared_bytes % format_.frame_bytes:
        return ""
    bytes_per_second = format_.frame_bytes * format_.rate
    available, declared = available_bytes / bytes_per_second, declared_bytes / bytes_per_second
    return f"The WAV file is truncated: it has {available:.1f} of {declared:.1f} seconds."


def parse_wav(data: bytes) -> WavFile:
    """Parse a WAV file and skip the chunks that are not needed. A truncated file yields the samples that are present.

    Raises InvalidRequest if `data` is not a WAV file with PCM or float samples.
    """
    view = memoryview(data)
    if len(data) < 12 or data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise InvalidRequest("This is not a WAV file. Convert it first, for example with ffmpeg.", param="file")
    offset, format_ = 12, None
    while offset + 8 <= len(data):
        chunk_id, size = struct.unpack_from("<4sI", data, offset)
        offset += 8
        if chunk_id == b"fmt ":
            format_ = _parse_format_chunk(data[offset : offset + min(size, 64)])
        elif chunk_id == b"data":
            if format_ is None:
                raise InvalidRequest("The WAV file has no format chunk before its samples.", param="file")
            declared_bytes = size if 0 < size < _MIN_UNKNOWN_SIZE_BYTES else None
            samples = view[offset:] if declared_bytes is None else view[offset : offset + declared_bytes]
            return WavFile(
                format_, offset, samples[: len(samples) - len(samples) % format_.frame_bytes], declared_bytes
            )
        offset += size + size % 2
    raise InvalidRequest("The WAV file has no samples.", param="file")


def _parse_format_chunk(chunk: bytes) -> AudioFormat:
    if len(chunk) < 16:
        raise InvalidRequest("The format chunk of the WAV file is too short.", param="file")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _WAVE_FORMAT_EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    encoding = {_WAVE_FORMAT_PCM: _INTEGER_ENCODINGS, _WAVE_FORMAT_IEEE_FLOAT: _FLOAT_ENCODINGS}.get(tag, {}).get(bits)
    if encoding is None:
        known = {_WAVE_FORMAT_PCM: "PCM", _WAVE_FORMAT_IEEE_FLOAT: "float", **_UNSUPPORTED_WAVE_FORMATS}
        raise InvalidRequest(
            f"The WAV file has {known.get(tag, f'format {tag}')} samples of {bits} bits. Supported are PCM of 8, 16, "
            "24 and 32 bits, and float of 32 and 64 bits. Convert the file, for example with: "
            "ffmpeg -i in.wav -c:a pcm_s16le out.wav",
            param="file",
        )
    if not 1 <= channels <= 32 or rate not in SUPPORTED_SAMPLE_RATES_HZ:
        raise InvalidRequest(
            f"The WAV file has {channels} channels at {rate} Hz, which is not supported.", param="file"
        )
    return AudioFormat(rate, channels, encoding)
