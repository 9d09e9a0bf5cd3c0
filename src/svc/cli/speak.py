"""Turn text into speech: play it, or write an audio file.

The gateway is --gateway, else $SVC_GATEWAY_URL, else $SVC_PLATFORM_URL, else the running `svc up`.
Without any of these, a voice that is installed on this machine speaks.
The key is SVC_API_KEY, else the key of `svc up`.
The suffix of FILE selects the format: .wav, .mp3, .opus, .ogg, .flac or .pcm (16-bit mono samples at 24 kHz).

Examples:
  svc speak "Good morning."
  svc speak "Good morning." -o morning.mp3
  svc speak --voice en-gb --model espeak-en-us --speed 1.2 "Good morning."
  svc chat "Tell me a joke." | svc speak -
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from svc import plugins
from svc.cli import _gateway_address, _local_gateway
from svc.cli._folders import find_home, find_registry_root
from svc.cli._output import print_json
from svc.cli._progress_bar import ProgressBar
from svc.errors import CommandFailed, UsageError
from svc.settings import SpeechSettings
from svc.wire.production_gateway import PRODUCTION_GATEWAY
from svc.wire.synthesis import (
    MAX_SPEECH_INPUT_CHARS,
    MAX_SPEECH_SPEED,
    MIN_SPEECH_SPEED,
    SPEECH_CONTENT_TYPES,
    SpeechRequest,
    complete_wav_sizes,
)

SUFFIX_FORMATS = {**{f".{name}": name for name in SPEECH_CONTENT_TYPES}, ".aac": "aac", ".ogg": "opus", ".raw": "pcm"}
WAV_HEADER_BYTES = 44
SPEECH_BYTES_PER_SECOND = 48_000
"""Bytes of `pcm` and, apart from its header, `wav`."""
PLAYERS: dict[str, tuple[str, ...]] = {
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-r", "24000", "-c", "1", "-"),
    "paplay": ("--raw", "--format=s16le", "--rate=24000", "--channels=1"),
    "pw-play": ("--format=s16", "--rate=24000", "--channels=1", "-"),
    "play": ("-q", "-t", "raw", "-r", "24000", "-e", "signed", "-b", "16", "-c", "1", "-"),
    "ffplay": ("-nodisp", "-autoexit", "-loglevel", "error", "-f", "s16le", "-ar", "24000", "-i", "-"),
}
"""Programs that play `pcm` from standard input, with their arguments."""
GATEWAY_VARIABLES = ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the text, output and voice options."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to say, or - for standard input")
    parser.add_argument("-o", "--output", metavar="FILE", help="write an audio file, or - for WAV on standard output")
    parser.add_argument("--model", help="the voice, or a provider's speech model (default: a natural voice, if any)")
    parser.add_argument("--voice", help="one of the voices of the model")
    parser.add_argument("--speed", type=float, default=1.0, metavar="FACTOR", help="0.25 to 4 (default 1)")
    parser.add_argument("--json", action="store_true", help="print what was made as JSON")
    _gateway_address.add_gateway_option(parser)


def run(args: argparse.Namespace) -> int:
    """Speak the text. Return the exit status."""
    if not MIN_SPEECH_SPEED <= args.speed <= MAX_SPEECH_SPEED:
        raise UsageError(f"--speed must be {MIN_SPEECH_SPEED} to {MAX_SPEECH_SPEED:g}.")
    text = _read_text(args.text)
    player = None if args.output else _find_player()
    response_format = _choose_format(args.output)
    _check_folder(args.output)
    with _open_source(args, text, response_format) as source, ProgressBar() as progress:
        chunks = _report_progress(source.chunks, progress)
        if player:
            size = _play(player, chunks)
        elif args.output == "-":
            size = _copy(chunks, sys.stdout.buffer)
        else:
            size = _write_file(Path(args.output), chunks, response_format)
    if args.json and args.output != "-":
        sample_bytes = {"pcm": size, "wav": size - WAV_HEADER_BYTES}.get(response_format)
        seconds = None if sample_bytes is None else round(sample_bytes / SPEECH_BYTES_PER_SECOND, 3)
        print_json(
            {
                "path": args.output,
                "model": source.model,
                "route": source.route,
                "format": response_format,
                "bytes": size,
                "seconds": seconds,
            }
        )
    elif args.output not in (None, "-"):
        print(f"{args.output}: {size:,} bytes, spoken by {source.model or 'the gateway'}", file=sys.stderr)
    return 0


def _read_text(argument: str | None) -> str:
    if argument is None or argument == "-":
        if sys.stdin is None or (argument is None and sys.stdin.isatty()):
            raise UsageError("There is nothing to say: give TEXT, or - for standard input. See: svc speak --help")
        data = sys.stdin.buffer.read(16 * MAX_SPEECH_INPUT_CHARS)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UsageError("Standard input is not text in UTF-8.") from error
    else:
        text = argument
    text = text.strip()
    if not text:
        raise UsageError("The text is empty.")
    if len(text) > MAX_SPEECH_INPUT_CHARS:
        raise UsageError(f"The text has more than {MAX_SPEECH_INPUT_CHARS:,} characters. Split it.")
    return text


def _choose_format(output: str | None) -> str:
    if output is None:
        return "pcm"
    if output == "-":
        return "wav"
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIX_FORMATS:
        raise UsageError(f"-o {output}: the suffix must be one of {', '.join(SUFFIX_FORMATS)}.")
    return SUFFIX_FORMATS[suffix]


def _check_folder(output: str | None) -> None:
    """Raise UsageError if the file could not be written: the speech is paid for before that would show."""
    if output in (None, "-"):
        return
    path = Path(output)
    if path.is_dir():
        raise UsageError(f"-o {output}: it is a folder.")
    if not path.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"-o {output}: the folder {path.parent} is not writable.")


def _find_player() -> list[str]:
    """Return the command of a player that is installed. Raises CommandFailed with the alternative."""
    for name, arguments in PLAYERS.items():
        if (path := shutil.which(name)) is not None:
            return [path, *arguments]
    raise CommandFailed(
        f"No audio player is installed ({', '.join(PLAYERS)}). Write a file instead: svc speak … -o FILE"
    )


class _Source:
    """The audio of one text, and who makes it."""

    def __init__(self, chunks: Iterator[bytes], model: str | None, route: str) -> None:
        self.chunks, self.model, self.route = chunks, model, route


@contextlib.contextmanager
def _open_source(args: argparse.Namespace, text: str, response_format: str) -> Iterator[_Source]:
    """Start the speech, at the gateway if there is one."""
    has_gateway = (
        args.gateway
        or any(os.environ.get(name) for name in GATEWAY_VARIABLES)
        or _local_gateway.find_gateway(find_home()) is not None
    )
    if not has_gateway:
        model, chunks = _speak_locally(args, text, response_format)
        yield _Source(chunks, model, "device")
        return
    url, key = _gateway_address.resolve_gateway(args.gateway, None, PRODUCTION_GATEWAY)
    with plugins.load("client", "client").Client(gateway_url=url, api_key=key) as client:
        options = {"model": args.model, "voice": args.voice, "speed": args.speed, "format": response_format}
        with client.speak(text, stream=True, **options) as stream:
            yield _Source(stream, args.model, "gateway")


def _speak_locally(args: argparse.Namespace, text: str, response_format: str) -> tuple[str, Iterator[bytes]]:
    """Return the voice's name, and the audio. Raises CommandFailed if no voice is installed."""
    catalog = plugins.load("speech.synthesis", "catalog").open_catalog(find_registry_root())
    names = [voice.name for voice in catalog.list_voices()]
    default_name = SpeechSettings().default_voice
    name = args.model or (default_name if default_name in names else next(iter(names), None))
    if name is None:
        raise CommandFailed(f"No voice is installed, and no gateway runs. Install one: svc models add {default_name}")
    if name not in names:
        raise CommandFailed(
            f"The voice {name[:64]!r} is not installed. Installed: {', '.join(names) or 'none'}. See: svc models ls"
        )
    request = SpeechRequest(
        model=name,
        input=text,
        voice=args.voice,
        response_format=response_format,  # type: ignore[arg-type]  # `_choose_format` returns no other
        speed=args.speed,
    )
    synthesizer = plugins.load("speech.synthesis", "synthesizer")
    synthesizer.check_supported(request)
    chunks: Iterator[bytes] = synthesizer.synthesize(catalog.load(name), request)
    return name, chunks


def _report_progress(chunks: Iterator[bytes], progress: ProgressBar) -> Iterator[bytes]:
    done = 0
    progress("speaking", 0, 0)
    for chunk in chunks:
        done += len(chunk)
        progress("speaking", done, 0)
        yield chunk


def _copy(chunks: Iterator[bytes], file: IO[bytes]) -> int:
    size = 0
    for chunk in chunks:
        file.write(chunk)
        file.flush()
        size += len(chunk)
    return size


def _write_file(path: Path, chunks: Iterator[bytes], response_format: str) -> int:
    """Write the file when the audio is complete. An interrupted speech leaves no file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            size = _copy(chunks, file)
        if response_format == "wav":
            temporary.write_bytes(complete_wav_sizes(temporary.read_bytes()))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _play(command: list[str], chunks: Iterator[bytes]) -> int:
    """Play the audio while it is made. Ctrl-C stops it. Raises CommandFailed if the player fails."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    size, has_ended = 0, False
    try:
        with contextlib.suppress(BrokenPipeError):  # the player has ended, and its exit status says why
            size = _copy(chunks, process.stdin)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        errors = process.stderr.read()
        process.wait()
        has_ended = True
    finally:
        if not has_ended:
            process.kill()
            process.wait()
    if process.returncode:
        last_line = (errors.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise CommandFailed(f"{Path(command[0]).name} cannot play: {last_line[:200]}. Write a file instead: -o FILE")
    return size
