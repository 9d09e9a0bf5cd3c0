"""The sound of an uploaded file, as pieces of samples. WAV is read here; other kinds by a process of their own.

A file is told by its first bytes, never by its name, and the decoder is told which kind it is: a library that guesses
might take a playlist for a file, and fetch what it names.
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
"""Seconds without a sample from the decoder."""
SNDFILE_KINDS = ("mp3", "flac", "ogg")
FFMPEG_KINDS = ("mp4", "webm", "aac")
"""Kinds that take FFmpeg, which comes with the extra `whisper`."""


class AudioSource(Protocol):
    """What is to be heard."""

    format: AudioFormat
    seconds: float
    """Of what has been given out."""
    warning: str
    """What is wrong with the file, once it has been read."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Whole samples. Raises InvalidRequest when there are none."""


def detect_kind(head: bytes) -> str | None:
    """What a file is, by its first 16 bytes or more; None when it is no kind of sound that is known here."""
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
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # the frame of an MPEG layer; 0 is AAC's
        return "mp3" if head[1] & 0x06 else "aac"
    return None


@contextlib.asynccontextmanager
async def open_audio(file: BinaryIO, max_seconds: float) -> AsyncIterator[AudioSource]:
    """The sound of a file, from its beginning; `file` is on disk. Raises InvalidRequest, SpeechFailed.

    A file that says it lasts more than `max_seconds` is refused before it is decoded; one that does not say so, or
    does not tell the truth, as soon as it has given out so much.
    """
    file.flush()
    # Not `read`: what it buffers ahead is taken back on `close`, from where the decoder has left the shared position.
    kind = detect_kind(os.pread(file.fileno(), 64, 0))
    if kind == "wav":
        file.seek(0)
        wav = parse_wav(file.read())
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
        await child.communicate()  # what it has written is taken: behind a full pipe `wait` would wait for good


def _check_kind_supported(kind: str | None) -> None:
    has_sndfile = find_spec("soundfile") is not None
    has_ffmpeg = find_spec("av") is not None
    if (kind in SNDFILE_KINDS and has_sndfile) or (kind in FFMPEG_KINDS and has_ffmpeg):
        return
    supported = ["wav", *(SNDFILE_KINDS if has_sndfile else ()), *(("m4a", "mp4", "webm", "aac") if has_ffmpeg else ())]
    extra = "whisper" if kind in FFMPEG_KINDS else "speech"
    install_hint = f" For {kind}: {install_command(extra)}." if kind else ""
    raise InvalidRequest(
        f"This is no sound file of a kind that is taken: {', '.join(supported)}.{install_hint}", param="file"
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
    """Raises InvalidRequest for a sound that lasts too long."""
    if seconds > max_seconds:
        raise InvalidRequest(
            f"The file lasts longer than the {max_seconds:g} seconds that are taken ([speech] max_upload_seconds).",
            param="file",
        )


async def _open_decoded(child: asyncio.subprocess.Process, max_seconds: float) -> _DecodedSource:
    """The decoder's first line is the rate and the length that the file says; none if it cannot be decoded."""
    line = await _read_output(child, line=True)
    try:
        rate, seconds = msgspec.json.decode(line, type=tuple[int, float | None])
    except msgspec.DecodeError:
        raise InvalidRequest("The file cannot be decoded; is it damaged?", param="file") from None
    if rate not in SUPPORTED_SAMPLE_RATES_HZ:
        raise InvalidRequest(f"The file has {rate} samples a second, which is not taken.", param="file")
    _check_length(seconds or 0.0, max_seconds)
    return _DecodedSource(child, AudioFormat(rate=rate), max_seconds)


async def _read_output(child: asyncio.subprocess.Process, *, line: bool = False) -> bytes:
    if child.stdout is None:
        raise SpeechFailed("The decoder has no output.")
    try:
        async with asyncio.timeout(DECODER_TIMEOUT_SECONDS):
            return await (child.stdout.readline() if line else child.stdout.read(AUDIO_FILE_CHUNK_BYTES))
    except TimeoutError:
        raise SpeechFailed("The file took too long to decode.") from None


class _DecodedSource:
    def __init__(self, child: asyncio.subprocess.Process, format_: AudioFormat, max_seconds: float) -> None:
        self.format, self.seconds, self.warning = format_, 0.0, ""
        self._child, self._max_seconds = child, max_seconds

    async def chunks(self) -> AsyncIterator[bytes]:
        remainder = b""
        while data := await _read_output(self._child):
            data = remainder + data
            whole, remainder = (data[:-1], data[-1:]) if len(data) % 2 else (data, b"")
            self.seconds += len(whole) / 2 / self.format.rate
            _check_length(self.seconds, self._max_seconds)
            if whole:
                yield whole
        if await self._child.wait():
            if not self.seconds:
                raise InvalidRequest("The file cannot be decoded; is it damaged?", param="file")
            self.warning = f"The file is damaged after {self.seconds:.1f} seconds."
