"""Audio as bytes: what a WAV file says about itself, and samples that frames split. No I/O, no signal processing."""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from svc.errors import InvalidRequest

SAMPLE_RATE = 16000
BYTES_PER_SECOND = 2 * SAMPLE_RATE
RATES = range(1000, 384_001)
"""Samples per second that are taken. A small file of a sample a second would be hours of sound, made at once."""

Encoding = Literal["u8", "s16", "s24", "s32", "f32", "f64"]

_WIDTHS: dict[Encoding, int] = {"u8": 1, "s16": 2, "s24": 3, "s32": 4, "f32": 4, "f64": 8}
_INTEGER: dict[int, Encoding] = {8: "u8", 16: "s16", 24: "s24", 32: "s32"}
_FLOAT: dict[int, Encoding] = {32: "f32", 64: "f64"}
_UNKNOWN_SIZE = 0x7FFF0000
"""Writers to a pipe put 0, this or more where the size of the samples belongs; RF64 files have it elsewhere."""
_PCM, _IEEE_FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


class Format(msgspec.Struct, frozen=True):
    """How samples are written: `rate` per second, `channels` beside each other, little-endian."""

    rate: int = SAMPLE_RATE
    channels: int = 1
    encoding: Encoding = "s16"

    @property
    def frame(self) -> int:
        """Bytes of one sample of every channel."""
        return _WIDTHS[self.encoding] * self.channels


LIVE = Format()
"""What the socket takes: interface.md, "Streaming speech-to-text audio input"."""


class Joiner:
    """Puts together samples that frames have split: what is not whole waits for the next piece."""

    def __init__(self, size: int = 2) -> None:
        self._size = size
        self._rest = b""

    def push(self, data: bytes) -> bytes:
        """The whole samples of what came so far."""
        if self._rest:
            data = self._rest + data
        odd = len(data) % self._size
        self._rest = data[len(data) - odd :] if odd else b""
        return data[: len(data) - odd] if odd else data


class Wav(msgspec.Struct, frozen=True):
    """A WAV file: `samples` is what there is of them, from byte `start` on."""

    format: Format
    start: int
    samples: memoryview
    declared: int | None
    """Bytes of samples that there should be; None when the file does not say, as one that was written to a pipe."""

    @property
    def seconds(self) -> float:
        """How long what is there lasts."""
        return len(self.samples) / self.format.frame / self.format.rate

    @property
    def lacks(self) -> str:
        """What to tell of a file that is cut off; empty for a whole one."""
        return cut_off(self.format, len(self.samples), self.declared)


def cut_off(format_: Format, size: int, declared: int | None) -> str:
    """What to tell about `size` bytes of samples where there should be more; empty when there should not."""
    if declared is None or size >= declared - declared % format_.frame:
        return ""
    rate = format_.frame * format_.rate
    return f"The WAV file is cut off: {size / rate:.1f} of {declared / rate:.1f} seconds are there."


def read_wav(data: bytes) -> Wav:
    """The format and the samples of a WAV file, whatever its chunks. A file cut short gives what there is of it.

    Raises InvalidRequest for what is no WAV file of PCM or float samples.
    """
    view = memoryview(data)
    if len(data) < 12 or data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise InvalidRequest("This is not a WAV file; convert it first (for example with ffmpeg).", param="file")
    place, format_ = 12, None
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        place += 8
        if name == b"fmt ":
            format_ = _format(data[place : place + min(size, 64)])
        elif name == b"data":
            if format_ is None:
                break
            declared = size if 0 < size < _UNKNOWN_SIZE else None
            samples = view[place:] if declared is None else view[place : place + declared]
            return Wav(format_, place, samples[: len(samples) - len(samples) % format_.frame], declared)
        place += size + size % 2
    raise InvalidRequest("The WAV file has no samples in it.", param="file")


def _format(chunk: bytes) -> Format:
    if len(chunk) < 16:
        raise InvalidRequest("The WAV file's format chunk is too short.", param="file")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    encoding = {_PCM: _INTEGER, _IEEE_FLOAT: _FLOAT}.get(tag, {}).get(bits)
    if encoding is None:
        raise InvalidRequest(f"The WAV file has samples of kind {tag} with {bits} bits; PCM or float is taken.")
    if not 1 <= channels <= 32 or rate not in RATES:
        raise InvalidRequest(f"The WAV file has {channels} channels at {rate} Hz, which is not taken.", param="file")
    return Format(rate, channels, encoding)
