"""Describes the model in a folder, from its stt.json or else from its file names. Loads no model.

stt.json   name · engine · family · languages · licence · files {role: name} · options {…}
by names   encoder + decoder + joiner + tokens -> transducer      model.bin + config.json -> CTranslate2 (Whisper)
           an .ort pair + tokens -> moonshine                     model*.onnx + tokens    -> by the folder's name
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from svc.errors import SpeechFailed

MAX_MODEL_DESCRIPTION_BYTES = 1 << 20
VAD_FILE_NAME = "silero_vad.onnx"
MODEL_DESCRIPTION_FILE_NAME = "stt.json"


class NotASpeechModel(SpeechFailed):
    """The folder, or the bundle in it, is not a speech model."""


class RecognitionModel(msgspec.Struct, frozen=True):
    """A model on disk. `files` has absolute paths by role. Empty `languages` means unknown."""

    name: str
    engine: str
    family: str
    files: dict[str, str]
    languages: tuple[str, ...] = ()
    options: dict[str, Any] = {}


class _ModelDescription(msgspec.Struct):
    engine: str
    family: str
    files: dict[str, str]
    name: str | None = None
    languages: tuple[str, ...] = ()
    licence: str = ""
    options: dict[str, Any] = {}


def detect_model(folder: Path) -> RecognitionModel:
    """Return the model in a folder.

    Raises SpeechFailed if the model is incomplete, and NotASpeechModel if it is of another kind.
    """
    if not folder.is_dir():
        raise SpeechFailed(f"There is no model folder {folder.name!r}.")
    description = _read_description(folder) or _detect_from_file_names(folder)
    files: dict[str, str] = {}
    for role, file_name in description.files.items():
        path = folder / file_name
        if Path(file_name).name != file_name or not path.is_file():
            raise SpeechFailed(f"The model in {folder.name!r} has no file {file_name!r}.")
        files[role] = str(path)
    if "vad" not in files and (folder / VAD_FILE_NAME).is_file():
        files["vad"] = str(folder / VAD_FILE_NAME)
    return RecognitionModel(
        description.name or _read_model_name(folder),
        # Models that were added before this engine existed name sherpa-offline.
        "moonshine" if description.family == "moonshine" else description.engine,
        description.family,
        files,
        description.languages,
        description.options,
    )


def _read_description(folder: Path) -> _ModelDescription | None:
    path = folder / MODEL_DESCRIPTION_FILE_NAME
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_MODEL_DESCRIPTION_BYTES:
            raise SpeechFailed(f"The stt.json in {folder.name!r} is too large.")
        return msgspec.json.decode(path.read_bytes(), type=_ModelDescription)
    except (msgspec.DecodeError, OSError) as error:
        raise SpeechFailed(f"The stt.json in {folder.name!r} cannot be read: {error}.") from error


def _read_model_name(folder: Path) -> str:
    """Return the name in the folder's metadata, else the name of the folder."""
    try:
        metadata = msgspec.json.decode((folder / "model_metadata.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return folder.name
    model_id: object = metadata.get("model_id") if isinstance(metadata, dict) else None
    return model_id if isinstance(model_id, str) and model_id else folder.name


def _detect_from_file_names(folder: Path) -> _ModelDescription:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    tokens = _find_file(names, "tokens", ".txt")
    encoder, decoder = _find_file(names, "encoder", ".onnx"), _find_file(names, "decoder", ".onnx")
    if "model.bin" in names and "config.json" in names:
        return _ModelDescription("faster-whisper", "whisper", {"model": "model.bin", "config": "config.json"})
    if tokens and (pair := _find_ort_pair(names)):
        return _ModelDescription("moonshine", "moonshine", {**pair, "tokens": tokens})
    if tokens and encoder and decoder:
        files = {"encoder": encoder, "decoder": decoder, "tokens": tokens}
        if joiner := _find_file(names, "joiner", ".onnx"):
            engine = "sherpa-online" if _is_streaming(folder, encoder) else "sherpa-offline"
            return _ModelDescription(engine, "transducer", {**files, "joiner": joiner})
        family = "paraformer" if "paraformer" in _read_model_name(folder).lower() else "whisper"
        return _ModelDescription("sherpa-online" if family == "paraformer" else "sherpa-offline", family, files)
    model, family_name = _find_file(names, "model", ".onnx"), _family_from_name(_read_model_name(folder).lower())
    if tokens and model and family_name:
        return _ModelDescription("sherpa-offline", family_name, {"model": model, "tokens": tokens})
    raise NotASpeechModel(f"The folder {folder.name!r} is not a known speech model. Describe it in an stt.json.")


def _find_file(names: list[str], substring: str, suffix: str) -> str | None:
    """Return the name that contains `substring`. Prefers int8: smaller, and as accurate on a CPU."""
    matches = [name for name in names if substring in name.lower() and name.endswith(suffix)]
    return next((name for name in matches if "int8" in name), matches[0] if matches else None)


def _find_ort_pair(names: list[str]) -> dict[str, str] | None:
    encoder, decoder = _find_file(names, "encoder", ".ort"), _find_file(names, "decoder", ".ort")
    return {"encoder": encoder, "decoder": decoder} if encoder and decoder else None


def _is_streaming(folder: Path, encoder: str) -> bool:
    return "streaming" in _read_model_name(folder).lower() or "chunk" in encoder.lower()


def _family_from_name(name: str) -> str | None:
    families = {"sense-voice": "sense-voice", "paraformer": "paraformer", "nemo": "nemo-ctc", "ctc": "zipformer-ctc"}
    return next((family for part, family in families.items() if part in name), None)
