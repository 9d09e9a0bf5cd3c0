"""What a run reads and writes: definitions, inputs, outputs, and what `--keep` keeps."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Sequence
from pathlib import Path

from svc.errors import InvalidRequest, UsageError
from svc.pipeline.definition import MAX_BYTES, Kind, Pipeline, parse
from svc.pipeline.orchestrator import Made, Result
from svc.pipeline.stages.base import Item, Picture, Sound
from svc.speech.audio import read_wav

MAX_INPUT = 512 << 20


def read_definition(path: str | Path) -> str:
    """Its text. Raises UsageError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
        return data.decode()
    except FileNotFoundError:
        raise UsageError(f"There is no pipeline at {path}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def load(path: str | Path) -> Pipeline:
    """Reads a definition from a file. Raises UsageError."""
    return parse(read_definition(path), str(path))


def read_input(given: str, kind: Kind) -> Item:
    """A text or a file. Raises UsageError."""
    path = Path(given) if 0 < len(given) < 4096 and "\0" not in given and "\n" not in given else None
    try:
        is_file = path is not None and path.is_file()
    except OSError:
        is_file = False
    if kind == "audio":
        return _read_audio(given, path if is_file else None)
    if kind == "image":
        return Picture(_read_file(given, path if is_file else None, kind))
    if path is None or not is_file:
        if not given.strip():
            raise UsageError("The input is empty.")
        return given
    try:
        if path.stat().st_size > MAX_INPUT:
            raise UsageError(f"{path} is larger than {MAX_INPUT >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8, which this pipeline takes.") from None


def _read_audio(given: str, path: Path | None) -> Sound:
    try:
        wav = read_wav(_read_file(given, path, "audio"))
    except InvalidRequest as error:
        raise UsageError(f"{path}: {error.message}") from None
    return Sound(wav.format, bytes(wav.samples))


def _read_file(given: str, path: Path | None, kind: Kind) -> bytes:
    if path is None:
        raise UsageError(f"This pipeline takes {kind}, and there is no file {given[:200]!r}.")
    if path.stat().st_size > MAX_INPUT:
        raise UsageError(f"{path} is larger than {MAX_INPUT >> 20} MiB.")
    return path.read_bytes()


def check_places(gives: Kind, *, out: Path | None, keep: Path | None) -> None:
    """Before anything runs: whether what it makes has a place. `gives` is what goes to `out`. Raises UsageError."""
    if keep is not None and keep.exists() and not keep.is_dir():
        raise UsageError(f"{keep} is a file; --keep names a folder.")
    if out is None:
        return
    if out.is_dir():
        raise UsageError(f"{out} is a folder; -o names a file.")
    sound = out.suffix.lower() in (".wav", ".wave")
    if gives == "audio" and out.suffix and not sound:
        raise UsageError(f"This pipeline gives audio, which is written as WAV: -o {out.with_suffix('.wav')}")
    if gives != "audio" and sound:
        raise UsageError(f"{out} would hold text, not audio: name it otherwise.")


def write(pieces: Sequence[Item], path: Path) -> None:
    """Text, or a WAV file."""
    sounds = [piece for piece in pieces if isinstance(piece, Sound)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not sounds:
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
        return
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sounds[0].format.rate)
        file.writeframes(b"".join(sound.data for sound in sounds))
    path.write_bytes(made.getvalue())


def save(made: Made, *, out: Path | None = None, keep: Path | None = None) -> Result:
    """Writes the output, and into `keep` what each stage made: `01-hear.txt`, `02-answer.txt`, `03-speak.wav`."""
    for number, (stage, pieces) in enumerate(made.pieces if keep is not None else [], 1):
        if keep is not None and pieces:
            ending = "txt" if isinstance(pieces[0], str) else "wav"
            name = re.sub(r"[^A-Za-z0-9._-]+", "_", stage)[:64]
            write(pieces, keep / f"{number:02}-{name}.{ending}")
    result = made.result
    if out is not None and result.output is not None:
        write(made.pieces[-1][1], out)
        result.output.path = str(out) if result.output.kind == "audio" else None
    return result
