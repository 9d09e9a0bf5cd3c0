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
from svc.speech.audio import RATES, Format, Wav, read_wav
from svc.speech.process import bare_environ

PIECE = 32 * 1024
PATIENCE = 30.0
"""Seconds without a sample from the decoder."""
LIGHT = ("mp3", "flac", "ogg")
HEAVY = ("mp4", "webm", "aac")
"""Kinds that take FFmpeg, which comes with the extra `whisper`."""


class Sound(Protocol):
    """What is to be heard."""

    format: Format
    seconds: float
    """Of what has been given out."""
    warning: str
    """What is wrong with the file, once it has been read."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Whole samples. Raises InvalidRequest when there are none."""


def kind_of(head: bytes) -> str | None:
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
async def opened(file: BinaryIO, max_seconds: float) -> AsyncIterator[Sound]:
    """The sound of a file, from its beginning; `file` is on disk. Raises InvalidRequest, SpeechFailed.

    A file that says it lasts more than `max_seconds` is refused before it is decoded; one that does not say so, or
    does not tell the truth, as soon as it has given out so much.
    """
    file.flush()
    # Not `read`: what it buffers ahead is taken back on `close`, from where the decoder has left the shared position.
    kind = kind_of(os.pread(file.fileno(), 64, 0))
    if kind == "wav":
        file.seek(0)
        wav = read_wav(file.read())
        _check_length(wav.seconds, max_seconds)
        yield _WavSound(wav)
        return
    _check(kind)
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    command = [sys.executable, "-m", "svc.speech.decoder", str(kind)]
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=file,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=bare_environ(),
        start_new_session=True,
    )
    try:
        yield await _begun(child, max_seconds)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.communicate()  # what it has written is taken: behind a full pipe `wait` would wait for good


def _check(kind: str | None) -> None:
    light = find_spec("soundfile") is not None
    heavy = find_spec("av") is not None
    if (kind in LIGHT and light) or (kind in HEAVY and heavy):
        return
    taken = ["wav", *(LIGHT if light else ()), *(("m4a", "mp4", "webm", "aac") if heavy else ())]
    extra = "whisper" if kind in HEAVY else "speech"
    missing = f" For {kind}: {install_command(extra)}." if kind else ""
    raise InvalidRequest(f"This is no sound file of a kind that is taken: {', '.join(taken)}.{missing}", param="file")


class _WavSound:
    def __init__(self, wav: Wav) -> None:
        self.format, self.seconds, self.warning = wav.format, wav.seconds, wav.lacks
        self._samples = wav.samples

    async def pieces(self) -> AsyncIterator[bytes]:
        step = PIECE - PIECE % self.format.frame
        for place in range(0, len(self._samples), step):
            yield bytes(self._samples[place : place + step])


def _check_length(seconds: float, max_seconds: float) -> None:
    """Raises InvalidRequest for a sound that lasts too long."""
    if seconds > max_seconds:
        raise InvalidRequest(
            f"The file lasts longer than the {max_seconds:g} seconds that are taken ([speech] max_upload_seconds).",
            param="file",
        )


async def _begun(child: asyncio.subprocess.Process, max_seconds: float) -> _DecodedSound:
    """The decoder's first line is the rate and the length that the file says; none if it cannot be decoded."""
    line = await _read(child, line=True)
    try:
        rate, seconds = msgspec.json.decode(line, type=tuple[int, float | None])
    except msgspec.DecodeError:
        raise InvalidRequest("The file cannot be decoded; is it damaged?", param="file") from None
    if rate not in RATES:
        raise InvalidRequest(f"The file has {rate} samples a second, which is not taken.", param="file")
    _check_length(seconds or 0.0, max_seconds)
    return _DecodedSound(child, Format(rate=rate), max_seconds)


async def _read(child: asyncio.subprocess.Process, *, line: bool = False) -> bytes:
    if child.stdout is None:
        raise SpeechFailed("The decoder has no output.")
    try:
        async with asyncio.timeout(PATIENCE):
            return await (child.stdout.readline() if line else child.stdout.read(PIECE))
    except TimeoutError:
        raise SpeechFailed("The file took too long to decode.") from None


class _DecodedSound:
    def __init__(self, child: asyncio.subprocess.Process, format_: Format, max_seconds: float) -> None:
        self.format, self.seconds, self.warning = format_, 0.0, ""
        self._child, self._max_seconds = child, max_seconds

    async def pieces(self) -> AsyncIterator[bytes]:
        rest = b""
        while data := await _read(self._child):
            data = rest + data
            whole, rest = (data[:-1], data[-1:]) if len(data) % 2 else (data, b"")
            self.seconds += len(whole) / 2 / self.format.rate
            _check_length(self.seconds, self._max_seconds)
            if whole:
                yield whole
        if await self._child.wait():
            if not self.seconds:
                raise InvalidRequest("The file cannot be decoded; is it damaged?", param="file")
            self.warning = f"The file is damaged after {self.seconds:.1f} seconds."
