"""The samples of an uploaded audio file. The gateway parses WAV. A child process decodes other formats.

The format is detected from the first bytes, never from the file name, and is passed to the decoder. A library that
guesses the format could parse a playlist and fetch the URLs in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import BinaryIO, Protocol

import msgspec

from svc.distribution import install_command
from svc.errors import InvalidRequest, SpeechFailed
from svc.speech.audio import SUPPORTED_SAMPLE_RATES_HZ, AudioFormat, WavFile, parse_wav
from svc.speech.worker_process import compute_environment

AUDIO_FILE_CHUNK_BYTES = 32 * 1024
DECODER_TIMEOUT_SECONDS = 30.0
"""The longest wait for output of the decoder, in seconds."""
SNDFILE_KINDS = ("mp3", "flac", "ogg")
FFMPEG_KINDS = ("mp4", "webm", "aac")
"""Formats that need FFmpeg, which the extra `whisper` installs."""


class AudioSource(Protocol):
    """An audio file that is open for reading."""

    format: AudioFormat
    seconds: float
    """The duration of the samples that were read so far."""
    warning: str
    """The warning about a damaged file. Known after the last chunk."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield complete samples. Raises InvalidRequest if there are none."""


def detect_kind(head: bytes) -> str | None:
    """Return the format of a file from its first bytes (at least 16), or None if it is unknown."""
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:4] == b"OggS":
        return "ogg"
    if head[4:8] == b"ftyp":
        return "mp4"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "webm"
    if head[:3] == b"ID3":
        return "mp3"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # an MPEG audio frame; layer 0 is AAC
        return "mp3" if head[1] & 0x06 else "aac"
    return None


@contextlib.asynccontextmanager
async def open_audio(file: BinaryIO, max_seconds: float) -> AsyncIterator[AudioSource]:
    """Open the audio of a file on disk, from its beginning.

    A file that states a duration above `max_seconds` is rejected before it is decoded. Other files are rejected as soon
    as `max_seconds` are decoded. Raises InvalidRequest and SpeechFailed.
    """
    file.flush()
    kind = _read_kind(file)
    if kind == "wav":
        file.seek(0)
        wav = parse_wav(await asyncio.to_thread(file.read))
        _check_length(wav.seconds, max_seconds)
        yield _WavSource(wav)
        return
    _check_kind_supported(kind)
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    command = [sys.executable, "-m", "svc.speech.decoder", str(kind)]
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=file,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=compute_environment(),
        start_new_session=True,
    )
    try:
        yield await _open_decoded(child, max_seconds)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.communicate()  # drains the pipe: `wait` alone can block forever on a full pipe


def check_audio_file(file: BinaryIO) -> None:
    """Raise InvalidRequest if the format of a file is unknown, or needs a package that is missing."""
    kind = _read_kind(file)
    if kind != "wav":
        _check_kind_supported(kind)


def _read_kind(file: BinaryIO) -> str | None:
    """Return the format of a file on disk. Raises InvalidRequest if it is empty."""
    # `os.pread` instead of `read`: closing a buffered reader would move the file position that the decoder shares.
    head = os.pread(file.fileno(), 64, 0)
    if not head:
        raise InvalidRequest("The file is empty.", param="file")
    return detect_kind(head)


def _check_kind_supported(kind: str | None) -> None:
    has_sndfile = find_spec("soundfile") is not None
    has_ffmpeg = find_spec("av") is not None
    if (kind in SNDFILE_KINDS and has_sndfile) or (kind in FFMPEG_KINDS and has_ffmpeg):
        return
    supported = ["wav", *(SNDFILE_KINDS if has_sndfile else ()), *(("m4a", "mp4", "webm", "aac") if has_ffmpeg else ())]
    extra = "whisper" if kind in FFMPEG_KINDS else "speech"
    install_hint = f" To add {kind}: {install_command(extra)}." if kind else ""
    raise InvalidRequest(
        f"This audio format is not supported. Supported: {', '.join(supported)}.{install_hint}", param="file"
    )


class _WavSource:
    def __init__(self, wav: WavFile) -> None:
        self.format, self.seconds, self.warning = wav.format, wav.seconds, wav.truncation_warning
        self._samples = wav.samples

    async def chunks(self) -> AsyncIterator[bytes]:
        step = AUDIO_FILE_CHUNK_BYTES - AUDIO_FILE_CHUNK_BYTES % self.format.frame_bytes
        for offset in range(0, len(self._samples), step):
            yield bytes(self._samples[offset : offset + step])


def _check_length(seconds: float, max_seconds: float) -> None:
    """Raises InvalidRequest if the audio is too long."""
    if seconds > max_seconds:
        raise InvalidRequest(
            f"The file is longer than {max_seconds:g} seconds ([speech] max_upload_seconds).",
            param="file",
        )


async def _open_decoded(child: asyncio.subprocess.Process, max_seconds: float) -> _DecodedSource:
    """Read the first line of the decoder: the sample rate and the stated duration. Without it the file is damaged."""
    line = await _read_output(child, line=True)
    try:
        rate, seconds = msgspec.json.decode(line, type=tuple[int, float | None])
    except msgspec.DecodeError:
        raise InvalidRequest("The file cannot be decoded. It may be damaged.", param="file") from None
    if rate not in SUPPORTED_SAMPLE_RATES_HZ:
        raise InvalidRequest(f"The file has a sample rate of {rate} Hz, which is not supported.", param="file")
    _check_length(seconds or 0.0, max_seconds)
    return _DecodedSource(child, AudioFormat(rate=rate), max_seconds)


async def _read_output(child: asyncio.subprocess.Process, *, line: bool = False) -> bytes:
    if child.stdout is None:
        raise SpeechFailed("The decoder has no output.")
    try:
        async with asyncio.timeout(DECODER_TIMEOUT_SECONDS):
            return await (child.stdout.readline() if line else child.stdout.read(AUDIO_FILE_CHUNK_BYTES))
    except TimeoutError:
        raise SpeechFailed("Decoding the file timed out.") from None


class _DecodedSource:
    def __init__(self, child: asyncio.subprocess.Process, format_: AudioFormat, max_seconds: float) -> None:
        self.format, self.seconds, self.warning = format_, 0.0, ""
        self._child, self._max_seconds = child, max_seconds

    async def chunks(self) -> AsyncIterator[bytes]:
        remainder = b""
        while data := await _read_output(self._child):
            data = remainder + data
            samples, remainder = (data[:-1], data[-1:]) if len(data) % 2 else (data, b"")
            self.seconds += len(samples) / 2 / self.format.rate
            _check_length(self.seconds, self._max_seconds)
            if samples:
                yield samples
        if await self._child.wait():
            if not self.seconds:
                raise InvalidRequest("The file cannot be decoded. It may be damaged.", param="file")
            self.warning = f"The file is damaged after {self.seconds:.1f} seconds."
