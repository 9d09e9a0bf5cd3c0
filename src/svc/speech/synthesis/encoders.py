"""Encodes speech while it is made: mono samples at 24 kHz to WAV, PCM, FLAC, MP3 or Opus.

libsndfile encodes FLAC, MP3 and Opus. It gets a file object without a file, from which the new bytes are taken.
https://libsndfile.github.io/libsndfile/api.html
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Final, Protocol

import numpy as np

from svc.distribution import install_command
from svc.errors import SpeechFailed
from svc.speech.resample import Samples
from svc.wire.synthesis import SPEECH_CONTENT_TYPES

SPEECH_SAMPLE_RATE_HZ: Final = 24000
"""The sample rate of all formats, in Hz. It is that of OpenAI's API."""
UNKNOWN_WAV_SIZE: Final = 0xFFFFFFFF
"""The size in the header of a WAV stream whose end is not known. Readers take the samples up to the end of the file."""
MP3_COMPRESSION_LEVEL: Final = 0.6
"""64 kbit/s at 24 kHz, with a constant bitrate, so that readers know the duration of a stream without a header."""
OPUS_PAGE_LATENCY_MS: Final = 100.0
"""Milliseconds of audio in an Ogg page. The default is 1 s, which a listener would wait for."""
_SFC_SET_OGG_PAGE_LATENCY_MS: Final = 0x1302


class AudioEncoder(Protocol):
    """Encodes one response."""

    block_samples: int
    """The maximum number of samples to encode at a time, so that a listener does not wait."""
    has_length_field: bool
    """Whether the first bytes state the length, if the first call has all samples."""

    def encode(self, samples: Samples, *, is_last: bool = False) -> bytes:
        """Return the bytes that are ready. `is_last` ends the audio."""


def create_encoder(response_format: str) -> AudioEncoder:
    """Return an encoder for one of `SPEECH_CONTENT_TYPES`. Raises SpeechFailed if its library is not installed."""
    if response_format == "pcm":
        return PcmEncoder()
    if response_format == "wav":
        return WavEncoder()
    if response_format not in SPEECH_CONTENT_TYPES:
        raise ValueError(response_format)
    return SndfileEncoder(response_format)


class PcmEncoder:
    """16-bit little-endian samples without a header."""

    block_samples = sys.maxsize
    has_length_field = False

    def encode(self, samples: Samples, *, is_last: bool = False) -> bytes:
        return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


class WavEncoder(PcmEncoder):
    """A WAV header, then samples. Its sizes are exact only if the first call has all samples."""

    has_length_field = True

    def __init__(self) -> None:
        self._has_header = False

    def encode(self, samples: Samples, *, is_last: bool = False) -> bytes:
        data = super().encode(samples)
        if self._has_header:
            return data
        self._has_header = True
        return encode_wav_header(len(data) if is_last else None) + data


def encode_wav_header(data_bytes: int | None) -> bytes:
    """Return the header for so many bytes of samples. None means unknown."""
    riff_bytes, size = (UNKNOWN_WAV_SIZE, UNKNOWN_WAV_SIZE) if data_bytes is None else (36 + data_bytes, data_bytes)
    format_chunk = struct.pack("<IHHIIHH", 16, 1, 1, SPEECH_SAMPLE_RATE_HZ, 2 * SPEECH_SAMPLE_RATE_HZ, 2, 16)
    return b"RIFF" + struct.pack("<I", riff_bytes) + b"WAVEfmt " + format_chunk + b"data" + struct.pack("<I", size)


class SndfileEncoder:
    """FLAC, MP3 or Opus, encoded by libsndfile.

    A FLAC file states its length at its beginning, and most readers need it. Its bytes are returned at the end.
    """

    block_samples = SPEECH_SAMPLE_RATE_HZ // 2  # Opus takes 20 ms of CPU time for them
    has_length_field = False

    def __init__(self, response_format: str) -> None:
        try:
            import soundfile  # noqa: PLC0415 an extra
        except ImportError:
            raise SpeechFailed(f"This format needs an extra. Install it with: {install_command('speech')}") from None
        container, encoding, options = {
            "flac": ("FLAC", "PCM_16", {}),
            "mp3": ("MP3", "MPEG_LAYER_III", {"bitrate_mode": "CONSTANT", "compression_level": MP3_COMPRESSION_LEVEL}),
            "opus": ("OGG", "OPUS", {}),
        }[response_format]
        self._is_seekable = response_format == "flac"
        self._output = _GrowingFile(can_overwrite=self._is_seekable)
        self._file = soundfile.SoundFile(
            self._output, "w", SPEECH_SAMPLE_RATE_HZ, 1, encoding, format=container, **options
        )
        if response_format == "opus":
            _set_page_latency(soundfile, self._file, OPUS_PAGE_LATENCY_MS)

    def encode(self, samples: Samples, *, is_last: bool = False) -> bytes:
        if len(samples):
            self._file.write(np.clip(samples, -1, 1))
        if is_last:
            self._file.close()
        return b"" if self._is_seekable and not is_last else self._output.take()


class _GrowingFile:
    """A file object in memory. `take` returns the bytes that were added since the last call.

    Without `can_overwrite` it ignores writes before the end: at the close of an MP3 stream, libsndfile rewrites the
    first frame, which has been sent.
    """

    def __init__(self, *, can_overwrite: bool) -> None:
        self._can_overwrite = can_overwrite
        self._pending = bytearray()
        self._size = self._position = 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        taken = self._size - len(self._pending)
        if self._position == self._size:
            self._pending += data
        elif self._can_overwrite:
            start = self._position - taken
            self._pending[start : start + len(data)] = data
        self._position += len(data)
        self._size = max(self._size, self._position)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def take(self) -> bytes:
        data = bytes(self._pending)
        self._pending.clear()
        return data


def _set_page_latency(soundfile: Any, file: Any, milliseconds: float) -> None:
    """Set the duration of an Ogg page. python-soundfile has no public function for it. Without it, pages are 1 s."""
    library, ffi = getattr(soundfile, "_snd", None), getattr(soundfile, "_ffi", None)
    handle = getattr(file, "_file", None)
    if library is not None and ffi is not None and handle is not None:
        value = ffi.new("double*", milliseconds)
        library.sf_command(handle, _SFC_SET_OGG_PAGE_LATENCY_MS, value, ffi.sizeof("double"))
