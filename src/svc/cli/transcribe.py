"""Turn speech into text, live: a WAV file, or raw audio from standard input.

On a terminal the text is drawn while it grows; in a pipe only the final text comes out. The gateway is --gateway, else
$SVC_GATEWAY_URL, else $SVC_PLATFORM_URL, else the running `svc up`. The key is in SVC_API_KEY, else it is the one of
`svc up`. Standard input is 16-bit mono PCM at 16 kHz (or --rate), or a WAV stream of any kind.

Examples:
  svc transcribe talk.wav
  svc transcribe talk.wav --realtime
  arecord -q -f S16_LE -r 16000 -c 1 | svc transcribe -
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from svc import plugins
from svc.cli import _addresses
from svc.client.live import LiveSession, dial
from svc.client.loop import LoopNet
from svc.client.session import Session, Times
from svc.distribution import install_command
from svc.errors import (
    AuthenticationFailed,
    CommandFailed,
    GatewayFailed,
    InvalidRequest,
    NotFound,
    SvcError,
    UsageError,
)
from svc.settings import PRODUCTION_GATEWAY
from svc.speech.audio import BYTES_PER_SECOND, LIVE, RATES, Format, Joiner, cut_off, read_wav
from svc.wire.speech import Closed, Error

PIECE = 3200
"""Bytes that are sent at a time: a tenth of a second."""
BLOCK = 1 << 14
HEAD = 1 << 20
"""Bytes in which a WAV stream's samples must begin."""
WAV = (b"RIFF", b"RF64")
HINT = "Name a gateway with SVC_GATEWAY_URL, or start one: svc up"
LINE = 60
"""Characters of a caption, after which the next pause ends the line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A file, and how to hear it."""
    parser.add_argument("file", metavar="FILE", help="a WAV file, or - for standard input")
    parser.add_argument("--model", help="speech model (default: the gateway's)")
    parser.add_argument("--language", help="language code, such as en")
    parser.add_argument("--rate", type=int, default=16000, help="samples per second of raw audio (default 16000)")
    parser.add_argument("--no-vad", action="store_true", help="do not skip silence")
    parser.add_argument("--realtime", action="store_true", help="send a file as fast as it was spoken")
    parser.add_argument("--json", action="store_true", help="every message of the gateway, one a line")
    _addresses.add_gateway(parser)


def run(args: argparse.Namespace) -> int:
    """Transcribes; the exit status is 1 when there was an error."""
    if args.rate not in RATES:
        raise UsageError(f"--rate {args.rate} is not a sampling rate.")
    return asyncio.run(_transcribe(args))


async def _transcribe(args: argparse.Namespace) -> int:
    source = _open(args.file)
    config = {"model": args.model, "language": args.language, "vad": not args.no_vad}
    given = {name: value for name, value in config.items() if value is not None}
    async with _session(*_addresses.gateway_of(args.gateway, None, PRODUCTION_GATEWAY)) as session:
        await session.configure(given)
        show = _Show(as_json=args.json, live=args.file == "-", flush=session.flush)
        sending = asyncio.create_task(_send(session, _audio(source, args.rate), realtime=args.realtime))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, sending.cancel)
        try:
            while (message := await session.message()) is not None:
                await show.message(msgspec.to_builtins(message))
                if isinstance(message, Closed | Error):
                    break
            return show.end(_fault(sending))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@asynccontextmanager
async def _session(url: str, key: str | None) -> AsyncIterator[LiveSession]:
    """A connection to the gateway. Raises CommandFailed that says what to do."""
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        session = await dial(Session(LoopNet(), url, headers, retries=0, times=Times()))
    except AuthenticationFailed:
        raise CommandFailed(f"The gateway {url} does not accept the key; put a valid one into SVC_API_KEY.") from None
    except NotFound:
        raise CommandFailed(f"{url} is no gateway with speech (404); its address ends in /v1.") from None
    except SvcError as error:
        raise CommandFailed(f"{error.message} {HINT}") from None
    try:
        yield session
    finally:
        session.abandon()


def _fault(sending: asyncio.Task[None]) -> BaseException | None:
    return sending.exception() if sending.done() and not sending.cancelled() else None


async def _send(session: LiveSession, audio: AsyncIterator[bytes], *, realtime: bool) -> None:
    """Everything, then a flush. Ctrl-C ends the audio early, and what was said so far is still worth a final."""
    begun, sent = asyncio.get_running_loop().time(), 0
    try:
        async for piece in audio:
            await session.feed(piece)
            sent += len(piece)
            ahead = begun + sent / BYTES_PER_SECOND - asyncio.get_running_loop().time()
            if realtime and ahead > 0:
                await asyncio.sleep(ahead)
    except GatewayFailed:
        return  # it is over: whoever reads the messages learns why
    finally:
        with suppress(GatewayFailed):
            await session.flush()
            await session.leave()


def _open(name: str) -> IO[bytes]:
    if name == "-":
        if sys.stdin is None:
            raise UsageError("Standard input is closed.")
        # Unbuffered: a thread that waits in a buffer's read holds its lock, and Python aborts at exit for want of it.
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"{name} is no file." if path.exists() else f"There is no file {name!r}.")
    file = path.open("rb")
    if file.read(4) not in WAV:
        file.close()
        raise UsageError(f"{name} is not a WAV file; convert it first (for example with ffmpeg).")
    file.seek(0)
    return file


async def _audio(source: IO[bytes], rate: int) -> AsyncIterator[bytes]:
    """The source as the socket takes it, in small pieces."""
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=16)
    loop = asyncio.get_running_loop()
    # A daemon: a read from a silent microphone cannot be interrupted, and must not hold up the exit.
    threading.Thread(target=_read, args=(source, queue, loop), daemon=True).start()
    head = b""
    while len(head) < HEAD and (not head or head[:4] in WAV):
        block = await _block(queue)
        head += block
        if not block:
            break
        with suppress(InvalidRequest):
            read_wav(head)
            break
    format_, rest, declared, seen = Format(rate), head, None, 0
    if head[:4] in WAV:
        wav = read_wav(head)
        format_, rest, declared = wav.format, head[wav.start :], wav.declared
    convert = _converter(format_)
    joiner = Joiner(format_.frame)
    while rest:
        rest = rest if declared is None else rest[: declared - seen]  # what comes behind the samples is no sound
        seen += len(rest)
        whole = convert(joiner.push(rest))
        for place in range(0, len(whole), PIECE):
            yield whole[place : place + PIECE]
        rest = b"" if seen == declared else await _block(queue)
    if whole := convert(b""):
        yield whole
    if warning := cut_off(format_, seen, declared):
        print(f"svc: {warning}", file=sys.stderr, flush=True)


async def _block(queue: asyncio.Queue[bytes | OSError]) -> bytes:
    """The next of the source, empty at its end. Raises what reading it raised."""
    block = await queue.get()
    if isinstance(block, OSError):
        raise block
    return block


def _read(source: IO[bytes], queue: asyncio.Queue[bytes | OSError], loop: asyncio.AbstractEventLoop) -> None:
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    block: bytes | OSError = b"more"
    while block and not isinstance(block, OSError):
        try:
            block = read(BLOCK)
        except OSError as error:
            block = error
        putting = queue.put(block)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except (RuntimeError, CancelledError):  # the loop has ended before the source did
            putting.close()
            return


def _converter(format_: Format) -> Callable[[bytes], bytes]:
    """Pieces of whole samples into 16 kHz mono; an empty piece is the end."""
    if format_ == LIVE:
        return lambda data: data
    try:
        resample = plugins.load("speech", "resample")
    except ImportError:
        raise CommandFailed(
            f"This audio has to be resampled, which takes numpy: {install_command('speech')}, or send 16 kHz mono."
        ) from None
    return resample.Converter(format_).push  # type: ignore[no-any-return]


class _Show:
    """Draws on a terminal, prints the final in a pipe."""

    def __init__(self, *, as_json: bool, live: bool, flush: Callable[[], Any]) -> None:
        self._json, self._live, self._flush = as_json, live, flush
        self._drawn = sys.stdout.isatty() and not as_json
        self._partial = ""
        self._finals: list[str] = []
        self._error: str | None = None

    async def message(self, message: dict[str, Any]) -> None:
        """One message of the gateway."""
        if self._json:
            print(msgspec.json.encode(message).decode(), flush=True)
        match message["type"]:
            case "partial":
                await self._grow(message["text"], message["is_stable"])
            case "final":
                self._line("")
                self._partial = ""
                self._finals.append(message["text"])
                if self._drawn and message["text"]:
                    print(_clean(message["text"]), flush=True)
            case "error":
                self._error = message["message"]
            case "closed" if message["reason"] != "client_close":
                self._error = f"The gateway closed the session: {message['reason']}."

    async def _grow(self, text: str, stable: bool) -> None:
        if stable and self._drawn and self._live and text == self._partial and len(text) > LINE:
            await self._flush()  # a pause in a live caption: the next words go on a new line
        if not stable:
            self._partial = text
            self._line(text)

    def _line(self, text: str) -> None:
        if self._drawn:
            text = _clean(text)
            width = shutil.get_terminal_size().columns - 1
            shown = text if len(text) <= width else "…" + text[len(text) - width + 1 :]
            sys.stdout.write(f"\r\x1b[K{shown}")
            sys.stdout.flush()

    def end(self, fault: BaseException | None) -> int:
        """The exit status. Raises what went wrong."""
        if isinstance(fault, Exception):
            raise fault
        if not self._drawn and not self._json and self._finals:
            print(" ".join(text for text in self._finals if text), flush=True)
        if self._error is not None:
            raise CommandFailed(self._error)
        return 0


def _clean(text: str) -> str:
    """On a terminal no control characters: a gateway must not move the cursor or set the title."""
    return "".join(letter for letter in text if letter.isprintable())
