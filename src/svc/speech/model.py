"""What a model folder is: a small stt.json says so, or else the names of its files do. Nothing is loaded here.

stt.json   name · engine · family · languages · licence · files {role: name} · options {…}
by names   encoder + decoder + joiner + tokens -> transducer      model.bin + config.json -> CTranslate2 (Whisper)
           an .ort pair + tokens -> moonshine                     model*.onnx + tokens    -> as the folder's name says
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from svc.errors import SpeechFailed

MAX_DESCRIPTION = 1 << 20
VAD_FILE = "silero_vad.onnx"
DESCRIPTION = "stt.json"


class NoSpeechModel(SpeechFailed):
    """A folder, or the bundle in it, that is for something else than speech."""


class Model(msgspec.Struct, frozen=True):
    """A model on disk. `files` are absolute paths by role; no `languages` means that nothing is said about them."""

    name: str
    engine: str
    family: str
    files: dict[str, str]
    languages: tuple[str, ...] = ()
    options: dict[str, Any] = {}


class _Description(msgspec.Struct):
    engine: str
    family: str
    files: dict[str, str]
    name: str | None = None
    languages: tuple[str, ...] = ()
    licence: str = ""
    options: dict[str, Any] = {}


def recognise(folder: Path) -> Model:
    """The model in a folder. Raises SpeechFailed that says what is missing, NoSpeechModel for one of another kind."""
    if not folder.is_dir():
        raise SpeechFailed(f"There is no model folder {folder.name!r}.")
    found = _described(folder) or _guessed(folder)
    files: dict[str, str] = {}
    for role, file in found.files.items():
        path = folder / file
        if Path(file).name != file or not path.is_file():
            raise SpeechFailed(f"The model in {folder.name!r} lacks its file {file!r}.")
        files[role] = str(path)
    if "vad" not in files and (folder / VAD_FILE).is_file():
        files["vad"] = str(folder / VAD_FILE)
    return Model(found.name or _name(folder), found.engine, found.family, files, found.languages, found.options)


def _described(folder: Path) -> _Description | None:
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_DESCRIPTION:
            raise SpeechFailed(f"The stt.json in {folder.name!r} is too large.")
        return msgspec.json.decode(path.read_bytes(), type=_Description)
    except (msgspec.DecodeError, OSError) as error:
        raise SpeechFailed(f"The stt.json in {folder.name!r} cannot be read: {error}.") from error


def _name(folder: Path) -> str:
    """The name in the folder's own metadata, else the folder's name."""
    try:
        about = msgspec.json.decode((folder / "model_metadata.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return folder.name
    stated: object = about.get("model_id") if isinstance(about, dict) else None
    return stated if isinstance(stated, str) and stated else folder.name


def _guessed(folder: Path) -> _Description:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    tokens = _first(names, "tokens", ".txt")
    encoder, decoder = _first(names, "encoder", ".onnx"), _first(names, "decoder", ".onnx")
    if "model.bin" in names and "config.json" in names:
        return _Description("faster-whisper", "whisper", {"model": "model.bin", "config": "config.json"})
    if tokens and (pair := _ort_pair(names)):
        return _Description("sherpa-offline", "moonshine", {**pair, "tokens": tokens})
    if tokens and encoder and decoder:
        files = {"encoder": encoder, "decoder": decoder, "tokens": tokens}
        if joiner := _first(names, "joiner", ".onnx"):
            engine = "sherpa-online" if _streams(folder, encoder) else "sherpa-offline"
            return _Description(engine, "transducer", {**files, "joiner": joiner})
        family = "paraformer" if "paraformer" in _name(folder).lower() else "whisper"
        return _Description("sherpa-online" if family == "paraformer" else "sherpa-offline", family, files)
    model, kind = _first(names, "model", ".onnx"), _family(_name(folder).lower())
    if tokens and model and kind:
        return _Description("sherpa-offline", kind, {"model": model, "tokens": tokens})
    raise NoSpeechModel(
        f"The folder {folder.name!r} is no speech model that is known here; describe it in an stt.json."
    )


def _first(names: list[str], part: str, ending: str) -> str | None:
    """The name with that part; the quantised one is smaller and as good on a CPU."""
    found = [name for name in names if part in name.lower() and name.endswith(ending)]
    return next((name for name in found if "int8" in name), found[0] if found else None)


def _ort_pair(names: list[str]) -> dict[str, str] | None:
    encoder, decoder = _first(names, "encoder", ".ort"), _first(names, "decoder", ".ort")
    return {"encoder": encoder, "decoder": decoder} if encoder and decoder else None


def _streams(folder: Path, encoder: str) -> bool:
    return "streaming" in _name(folder).lower() or "chunk" in encoder.lower()


def _family(name: str) -> str | None:
    families = {"sense-voice": "sense-voice", "paraformer": "paraformer", "nemo": "nemo-ctc", "ctc": "zipformer-ctc"}
    return next((family for part, family in families.items() if part in name), None)
