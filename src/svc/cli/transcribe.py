"""Turn speech into text, live: an audio file, or raw audio from standard input.

On a terminal the text is redrawn while it grows. In a pipe only final text is printed.
The gateway is --gateway, else $SVC_GATEWAY_URL, else $SVC_PLATFORM_URL, else the running `svc up`.
The key is SVC_API_KEY, else the key of `svc up`.
FILE is WAV, MP3, FLAC or Ogg (Opus, Vorbis), and with the extra whisper also M4A, MP4, WebM or AAC.
Standard input is 16-bit mono PCM at 16 kHz (or --rate), or a WAV stream in any format.

Examples:
  svc transcribe talk.mp3
  svc transcribe talk.wav --realtime
  arecord -q -f S16_LE -r 16000 -c 1 | svc transcribe -
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from svc import plugins
from svc.cli import _gateway_address
from svc.cli._output import load_terminal
from svc.client.async_transport import AsyncTransport
from svc.client.http_session import HttpSession, SessionTimeouts
from svc.client.live import LiveSession, connect_live
from svc.distribution import install_command
from svc.errors import (
    AuthenticationFailed,
    CommandFailed,
    InvalidRequest,
    NotFound,
    SvcError,
    UsageError,
)
from svc.speech.audio import (
    BYTES_PER_SECOND,
    LIVE_AUDIO_FORMAT,
    SUPPORTED_SAMPLE_RATES_HZ,
    AudioFormat,
    SampleAligner,
    describe_truncation,
    parse_wav,
)
from svc.speech.audio_files import check_audio_file, open_audio
from svc.speech.mp3_frames import begins_with_frames
from svc.wire.production_gateway import PRODUCTION_GATEWAY
from svc.wire.speech import ClosedEvent, ErrorEvent

LIVE_SEND_BYTES = 3200
"""Bytes per WebSocket message: 100 ms of 16 kHz mono audio."""
AUDIO_READ_BYTES = 1 << 14
MAX_WAV_HEADER_BYTES = 1 << 20
"""Bytes of a WAV stream before which its samples must begin."""
WAV_MAGIC = (b"RIFF", b"RF64")
COMPRESSED_MAGIC = {b"ID3": "MP3", b"fLaC": "FLAC", b"OggS": "Ogg", b"\x1a\x45\xdf\xa3": "WebM or Matroska"}
"""First bytes of formats that standard input cannot have. An MP3 file may begin with frames instead of a tag."""
MAGIC_BYTES = 8
GATEWAY_HINT = "Set SVC_GATEWAY_URL, or start a gateway: svc up"
CAPTION_LINE_CHARACTERS = 60
"""Characters of a caption line, after which the next pause starts a new line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the input and recognition options."""
    parser.add_argument("file", metavar="FILE", help="an audio file, or - for standard input")
    parser.add_argument("--model", help="speech model (default: the gateway's)")
    parser.add_argument("--language", help="language code, such as en")
    parser.add_argument("--rate", type=int, default=16000, help="samples per second of raw audio (default 16000)")
    parser.add_argument("--no-vad", action="store_true", help="do not skip silence")
    parser.add_argument("--realtime", action="store_true", help="send a file at the speed of speech")
    parser.add_argument("--json", action="store_true", help="print every message of the gateway, one per line")
    _gateway_address.add_gateway_option(parser)


def run(args: argparse.Namespace) -> int:
    """Transcribe the input, and return the exit status: 1 after an error."""
    if args.rate not in SUPPORTED_SAMPLE_RATES_HZ:
        raise UsageError(f"--rate {args.rate} is not a valid sample rate.")
    return asyncio.run(_transcribe(args))


async def _transcribe(args: argparse.Namespace) -> int:
    source = _open_input(args.file)
    config = {"model": args.model, "language": args.language, "vad": not args.no_vad}
    session_config = {name: value for name, value in config.items() if value is not None}
    async with _open_session(*_gateway_address.resolve_gateway(args.gateway, None, PRODUCTION_GATEWAY)) as session:
        await session.send_config(session_config)
        printer = _TranscriptPrinter(as_json=args.json, live=args.file == "-", flush=session.flush)
        audio = _read_audio(source, args.rate) if _is_stream(args.file, source) else _decode_audio(source)
        send_task = asyncio.create_task(_send_audio(session, audio, realtime=args.realtime))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, send_task.cancel)
        try:
            while (message := await session.next_message()) is not None:
                await printer.on_message(msgspec.to_builtins(message))
                if isinstance(message, ClosedEvent | ErrorEvent):
                    break
            return printer.finish(_send_error(send_task))
        finally:
            send_task.cancel()
            await asyncio.gather(send_task, return_exceptions=True)


@asynccontextmanager
async def _open_session(url: str, key: str | None) -> AsyncIterator[LiveSession]:
    """Connect to the gateway. Raises CommandFailed with the remedy in its message."""
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = AsyncTransport(url, direct=_gateway_address.is_local_gateway(url))
        session = await connect_live(HttpSession(transport, url, headers, retries=0, timeouts=SessionTimeouts()))
    except AuthenticationFailed:
        raise CommandFailed(f"The gateway {url} does not accept the key. Set SVC_API_KEY to a valid key.") from None
    except NotFound:
        raise CommandFailed(f"{url} is not a gateway with speech (404). Its address ends in /v1.") from None
    except SvcError as error:
        raise CommandFailed(f"{error.message} {GATEWAY_HINT}") from None
    try:
        yield session
    finally:
        session.abort()


def _send_error(send_task: asyncio.Task[None]) -> BaseException | None:
    return send_task.exception() if send_task.done() and not send_task.cancelled() else None


async def _send_audio(session: LiveSession, audio: AsyncIterator[bytes], *, realtime: bool) -> None:
    """Send all audio, then a flush. Ctrl-C ends the audio early, and the text so far still becomes final."""
    started_at, sent = asyncio.get_running_loop().time(), 0
    try:
        async for chunk in audio:
            try:
                await session.feed(chunk)
            except SvcError:
                return  # the session has ended; the message reader reports the reason
            sent += len(chunk)
            lead_seconds = started_at + sent / BYTES_PER_SECOND - asyncio.get_running_loop().time()
            if realtime and lead_seconds > 0:
                await asyncio.sleep(lead_seconds)
    finally:
        with suppress(SvcError):
            await session.flush()
            await session.send_close()


def _open_input(name: str) -> IO[bytes]:
    if name == "-":
        if sys.stdin is None:
            raise UsageError("Standard input is closed.")
        # Unbuffered: a thread blocked in a buffered read holds the buffer's lock, and Python aborts at exit.
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"{name} is not a file." if path.exists() else f"There is no file {name!r}.")
    file = path.open("rb")
    try:
        check_audio_file(file)
    except InvalidRequest as error:
        file.close()
        hint = " Or convert it first, for example with ffmpeg." if path.stat().st_size else ""
        raise UsageError(f"{name}: {error.message}{hint}") from None
    return file


def _is_stream(name: str, source: IO[bytes]) -> bool:
    """Return whether the input is read piece by piece: standard input or a WAV file. Leaves a file at its start."""
    if name == "-":
        return True
    is_wav = source.read(4) in WAV_MAGIC
    source.seek(0)
    return is_wav


async def _decode_audio(source: IO[bytes]) -> AsyncIterator[bytes]:
    """Decode a file that is not WAV, in chunks that fit a WebSocket message. Raises UsageError if it is damaged."""
    try:
        async with open_audio(source, math.inf) as audio:  # type: ignore[arg-type]  # `_open_input` opened a file
            convert = _create_converter(audio.format)
            async for samples in audio.chunks():
                for message in _split_messages(convert(samples)):
                    yield message
            for message in _split_messages(convert(b"")):
                yield message
            if audio.warning:
                print(f"svc: {audio.warning}", file=sys.stderr, flush=True)
    except InvalidRequest as error:
        raise UsageError(error.message) from None


def _split_messages(samples: bytes) -> Iterator[bytes]:
    for offset in range(0, len(samples), LIVE_SEND_BYTES):
        yield samples[offset : offset + LIVE_SEND_BYTES]


async def _read_audio(source: IO[bytes], rate: int) -> AsyncIterator[bytes]:
    """Read the source in chunks that fit a WebSocket message."""
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=16)
    loop = asyncio.get_running_loop()
    # A daemon thread: a read from a silent microphone cannot be interrupted, and must not delay the exit.
    threading.Thread(target=_read_in_thread, args=(source, queue, loop), daemon=True).start()
    header = b""
    while _needs_more_header(header):
        block = await _next_block(queue)
        header += block
        if not block:
            break
        with suppress(InvalidRequest):
            parse_wav(header)
            break
    kind = next((kind for magic, kind in COMPRESSED_MAGIC.items() if header.startswith(magic)), None)
    if kind is None and begins_with_frames(header):
        kind = "MP3"
    if kind or header[4:8] == b"ftyp":
        kind = kind or "MP4"
        raise UsageError(f"Standard input is {kind}, not PCM or WAV. Give the file's name instead of -.")
    format_, rest, declared, bytes_read = AudioFormat(rate), header, None, 0
    if header[:4] in WAV_MAGIC:
        wav = parse_wav(header)
        format_, rest, declared = wav.format, header[wav.data_offset :], wav.declared_bytes
    convert = _create_converter(format_)
    joiner = SampleAligner(format_.frame_bytes)
    while rest:
        rest = rest if declared is None else rest[: declared - bytes_read]  # chunks after the samples are not audio
        bytes_read += len(rest)
        converted = convert(joiner.push(rest))
        for message in _split_messages(converted):
            yield message
        rest = b"" if bytes_read == declared else await _next_block(queue)
    if converted := convert(b""):
        yield converted
    if warning := describe_truncation(format_, bytes_read, declared):
        print(f"svc: {warning}", file=sys.stderr, flush=True)


def _needs_more_header(header: bytes) -> bool:
    """Return whether more bytes are needed to recognise the format, or to find the samples of a WAV stream."""
    if header[:4] in WAV_MAGIC:
        return len(header) < MAX_WAV_HEADER_BYTES
    return len(header) < MAGIC_BYTES or begins_with_frames(header) is None


async def _next_block(queue: asyncio.Queue[bytes | OSError]) -> bytes:
    """Return the next block of the source, or empty bytes at its end. Raises the OSError of a failed read."""
    block = await queue.get()
    if isinstance(block, OSError):
        raise block
    return block


def _read_in_thread(source: IO[bytes], queue: asyncio.Queue[bytes | OSError], loop: asyncio.AbstractEventLoop) -> None:
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    block: bytes | OSError = b"more"
    while block and not isinstance(block, OSError):
        try:
            block = read(AUDIO_READ_BYTES)
        except OSError as error:
            block = error
        put_coroutine = queue.put(block)
        try:
            asyncio.run_coroutine_threadsafe(put_coroutine, loop).result()
        except (RuntimeError, CancelledError):  # the event loop ended before the source did
            put_coroutine.close()
            return


def _create_converter(format_: AudioFormat) -> Callable[[bytes], bytes]:
    """Return a function that converts chunks of whole samples to 16 kHz mono. An empty chunk ends the stream."""
    if format_ == LIVE_AUDIO_FORMAT:
        return lambda data: data
    try:
        resample = plugins.load("speech", "resample")
    except ImportError:
        raise CommandFailed(
            f"Resampling this audio needs numpy and soxr: {install_command('speech')}. Or send 16 kHz mono."
        ) from None
    return resample.Converter(format_).push  # type: ignore[no-any-return]


class _TranscriptPrinter:
    """Redraws text on a terminal, and prints only final text in a pipe."""

    def __init__(self, *, as_json: bool, live: bool, flush: Callable[[], Any]) -> None:
        self._as_json, self._live, self._flush = as_json, live, flush
        self._is_terminal = sys.stdout.isatty() and not as_json
        self._partial = ""
        self._final_texts: list[str] = []
        self._error: str | None = None

    async def on_message(self, message: dict[str, Any]) -> None:
        """Handle one message of the gateway."""
        if self._as_json:
            print(msgspec.json.encode(message).decode(), flush=True)
        match message["type"]:
            case "partial":
                await self._update_partial(message["text"], message["is_stable"])
            case "final":
                self._draw_line("")
                self._partial = ""
                self._final_texts.append(message["text"])
                if self._is_terminal and message["text"]:
                    print(_strip_control_characters(message["text"]), flush=True)
            case "error":
                self._error = message["message"]
            case "closed" if message["reason"] != "client_close":
                self._error = f"The gateway closed the session: {message['reason']}."

    async def _update_partial(self, text: str, is_stable: bool) -> None:
        if (
            is_stable
            and self._is_terminal
            and self._live
            and text == self._partial
            and len(text) > CAPTION_LINE_CHARACTERS
        ):
            await self._flush()  # a pause ends the line of a live caption
        if not is_stable:
            self._partial = text
            self._draw_line(text)

    def _draw_line(self, text: str) -> None:
        if self._is_terminal:
            text = _strip_control_characters(text)
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write(f"\r\x1b[K{load_terminal().crop_start(text, width)}")
            sys.stdout.flush()

    def finish(self, send_error: BaseException | None) -> int:
        """Return the exit status. Raises the error that ended the session."""
        if isinstance(send_error, Exception):
            raise send_error
        if not self._is_terminal and not self._as_json and self._final_texts:
            print(" ".join(text for text in self._final_texts if text), flush=True)
        if self._error is not None:
            raise CommandFailed(self._error)
        return 0


def _strip_control_characters(text: str) -> str:
    """Remove control characters on a terminal: a gateway must not move the cursor or set the title."""
    return "".join(character for character in text if character.isprintable())
