"""Reads definitions and inputs, and writes the outputs of a run and the files of `--keep`."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
import wave
from collections.abc import Sequence
from pathlib import Path

from svc.errors import InvalidRequest, UsageError
from svc.pipeline.definition import MAX_DEFINITION_BYTES, DataKind
from svc.pipeline.orchestrator import RunOutcome, RunResult
from svc.pipeline.stages.base import AudioChunk, ImageFile, StageChunk
from svc.speech.audio import parse_wav

MAX_PIPELINE_INPUT_BYTES = 512 << 20


def read_definition(path: str | Path) -> str:
    """Return the text of a definition. Raises UsageError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_DEFINITION_BYTES + 1)
        if len(data) > MAX_DEFINITION_BYTES:
            raise UsageError(f"{path} is larger than {MAX_DEFINITION_BYTES >> 20} MiB.")
        return data.decode()
    except FileNotFoundError:
        raise UsageError(f"The pipeline {path} does not exist.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def read_standard_input(kind: DataKind) -> StageChunk:
    """Return the text or the WAV file on standard input. Raises UsageError."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("Standard input is closed.")
    data = sys.stdin.buffer.read(MAX_PIPELINE_INPUT_BYTES + 1)
    if len(data) > MAX_PIPELINE_INPUT_BYTES:
        raise UsageError(f"Standard input is larger than {MAX_PIPELINE_INPUT_BYTES >> 20} MiB.")
    return _decode_input(data, kind, "Standard input")


def convert_input(value: str | bytes | os.PathLike[str], kind: DataKind) -> StageChunk:
    """Return the input of a program: a text, the bytes of a file, or the path of a file. Raises UsageError."""
    if isinstance(value, str):
        if kind != "text":
            raise UsageError(f"This pipeline takes {kind}. Pass the bytes of a file, or its path as a pathlib.Path.")
        if not value.strip():
            raise UsageError("The input is empty.")
        return value
    if isinstance(value, os.PathLike):
        path = Path(value)
        return _decode_input(_read_file(str(path), path if path.is_file() else None, kind), kind, str(path))
    if isinstance(value, bytes | bytearray | memoryview):
        return _decode_input(bytes(value), kind, "The input")
    raise UsageError(f"The input is neither a text, bytes nor a path, but {type(value).__name__}.")


def _decode_input(data: bytes, kind: DataKind, source: str) -> StageChunk:
    if kind == "audio":
        return _parse_audio(data, source)
    if kind == "image":
        return ImageFile(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not UTF-8 text, which this pipeline requires.") from None
    if not text.strip():
        raise UsageError("The input is empty.")
    return text


def read_input(text_or_path: str, kind: DataKind) -> StageChunk:
    """Return a text, or the content of a file. Raises UsageError."""
    path = (
        Path(text_or_path)
        if 0 < len(text_or_path) < 4096 and "\0" not in text_or_path and "\n" not in text_or_path
        else None
    )
    try:
        is_file = path is not None and path.is_file()
    except OSError:
        is_file = False
    if kind == "audio":
        return _read_audio(text_or_path, path if is_file else None)
    if kind == "image":
        return ImageFile(_read_file(text_or_path, path if is_file else None, kind))
    if path is None or not is_file:
        if not text_or_path.strip():
            raise UsageError("The input is empty.")
        return text_or_path
    try:
        if path.stat().st_size > MAX_PIPELINE_INPUT_BYTES:
            raise UsageError(f"{path} is larger than {MAX_PIPELINE_INPUT_BYTES >> 20} MiB.")
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise UsageError(f"{path} is empty.")
        return text
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text, which this pipeline requires.") from None


def _read_audio(text_or_path: str, path: Path | None) -> AudioChunk:
    return _parse_audio(_read_file(text_or_path, path, "audio"), str(path))


def _parse_audio(data: bytes, source: str) -> AudioChunk:
    try:
        wav = parse_wav(data)
    except InvalidRequest as error:
        raise UsageError(f"{source}: {error.message}") from None
    if wav.truncation_warning:
        warnings.warn(f"{source}: {wav.truncation_warning}", stacklevel=2)
    return AudioChunk(wav.format, bytes(wav.samples))


def _read_file(text_or_path: str, path: Path | None, kind: DataKind) -> bytes:
    if path is None:
        raise UsageError(f"This pipeline takes {kind}, and the file {text_or_path[:200]!r} does not exist.")
    if path.stat().st_size > MAX_PIPELINE_INPUT_BYTES:
        raise UsageError(f"{path} is larger than {MAX_PIPELINE_INPUT_BYTES >> 20} MiB.")
    return path.read_bytes()


def check_output_paths(output_kind: DataKind, *, output_path: Path | None, keep_folder: Path | None) -> None:
    """Check before the run that the outputs can be written. Raises UsageError."""
    if keep_folder is not None and keep_folder.exists() and not keep_folder.is_dir():
        raise UsageError(f"{keep_folder} is a file. --keep needs a folder.")
    if output_path is None:
        return
    if output_path.is_dir():
        raise UsageError(f"{output_path} is a folder. -o needs a file.")
    is_wav = output_path.suffix.lower() in (".wav", ".wave")
    if output_kind == "audio" and output_path.suffix and not is_wav:
        raise UsageError(
            f"The output of this pipeline is audio, which is written as WAV: -o {output_path.with_suffix('.wav')}"
        )
    if output_kind != "audio" and is_wav:
        raise UsageError(f"{output_path} would contain text, not audio. Use another suffix.")


def write_chunks(chunks: Sequence[StageChunk], path: Path) -> None:
    """Write text, or a WAV file. An incomplete file is removed. Raises OSError with the path."""
    audio_chunks = [chunk for chunk in chunks if isinstance(chunk, AudioChunk)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not audio_chunks:
        text = "".join(chunk for chunk in chunks if isinstance(chunk, str))
        data = (text if text.endswith("\n") else f"{text}\n").encode()
    else:
        data = encode_wav(audio_chunks)
    file = path.open("wb")
    try:
        with file:
            file.write(data)
    except OSError as error:
        error.filename = str(path)  # a full disk is reported without a path
        if path.is_file() and not path.is_symlink():
            path.unlink()
        raise


def join_output(chunks: Sequence[StageChunk]) -> tuple[str, bytes | None]:
    """Return the text of a stage, or its audio as a WAV file."""
    text = "".join(chunk for chunk in chunks if isinstance(chunk, str))
    audio_chunks = [chunk for chunk in chunks if isinstance(chunk, AudioChunk)]
    return text, encode_wav(audio_chunks) if audio_chunks else None


def encode_wav(audio_chunks: Sequence[AudioChunk]) -> bytes:
    """Return a WAV file with the samples of at least one chunk."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio_chunks[0].format.rate)
        file.writeframes(b"".join(chunk.data for chunk in audio_chunks))
    return buffer.getvalue()


def stage_output_paths(stages: Sequence[str], keep_folder: Path) -> list[Path]:
    """Return the files that `save_outputs` may write to `keep_folder` for stages with these ids."""
    stems = [_stage_file_stem(number, stage) for number, stage in enumerate(stages, 1)]
    return [keep_folder / f"{stem}.{suffix}" for stem in stems for suffix in ("txt", "wav")]


def _stage_file_stem(number: int, stage: str) -> str:
    return f"{number:02}-{re.sub(r'[^A-Za-z0-9._-]+', '_', stage)[:64]}"


def save_outputs(outcome: RunOutcome, *, output_path: Path | None = None, keep_folder: Path | None = None) -> RunResult:
    """Write the output, and that of each stage to `keep_folder`: `01-hear.txt`, `02-answer.txt`, `03-speak.wav`."""
    for number, (stage, chunks) in enumerate(outcome.stage_chunks if keep_folder is not None else [], 1):
        if keep_folder is not None and chunks:
            suffix = "txt" if isinstance(chunks[0], str) else "wav"
            write_chunks(chunks, keep_folder / f"{_stage_file_stem(number, stage)}.{suffix}")
    result = outcome.result
    if output_path is not None and result.output is not None:
        write_chunks(outcome.stage_chunks[-1][1], output_path)
        result.output.path = str(output_path) if result.output.kind == "audio" else None
    return result
