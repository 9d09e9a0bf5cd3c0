"""Produces each message that names an extra, in a process where none is installed: `python -m tests.missing_extras`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import io
import json
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PACKAGES = (
    *(
        "av",
        "cryptography",
        "espeakng_loader",
        "faster_whisper",
        "hiredis",
        "huggingface_hub",
        "obstore",
        "onnxruntime",
    ),
    *(
        "PIL",
        "psycopg",
        "python_multipart",
        "ray",
        "redis",
        "sherpa_onnx",
        "soundfile",
        "soxr",
        "tokenizers",
        "xllamacpp",
    ),
)
MODEL_FILES = (
    *("model.onnx", "tokens.txt", "encoder.int8.onnx", "decoder.int8.onnx"),
    *("preprocess.onnx", "encode.int8.onnx", "uncached_decode.int8.onnx", "cached_decode.int8.onnx"),
)


def call(module: str, function: str, *arguments: Any) -> str:
    """Return the error of a call, else what it logs, returns, or yields."""
    target: Any = importlib.import_module(module)
    for part in function.split("."):
        target = getattr(target, part)
    log = io.StringIO()
    try:
        with redirect_stderr(log):
            result = target(*arguments)
            if inspect.iscoroutine(result):
                asyncio.run(result)
    except Exception as error:
        return str(getattr(error, "message", repr(error)))
    if isinstance(result, str):
        return result
    return log.getvalue() or " ".join(f"{entry.detail} {entry.advice}" for entry in result)


def main() -> None:
    """Print the messages by their module, as JSON."""
    for package in PACKAGES:
        sys.modules[package] = None  # type: ignore[assignment]  # neither imported nor found
    with tempfile.TemporaryDirectory() as path:
        sys.stdout.write(json.dumps(produce_messages(Path(path))))


def produce_messages(folder: Path) -> dict[str, str]:
    (folder / "tts.json").write_text(json.dumps({"engine": "espeak"}))
    for name in MODEL_FILES:
        (folder / name).write_bytes(b"x")
    metadata = SimpleNamespace(
        execution_template={"type": "Onnx", "model_file": "model.onnx"},
        preprocessing=[],
        postprocessing=[],
        files=["model.onnx"],
        model_id="m",
        version="1",
    )
    bundle = SimpleNamespace(metadata=metadata, path=folder, reference="m@1")
    bucket = SimpleNamespace(environ={"SVC_BLOB_URL": "s3://bucket/prefix"}, registry_root=folder)
    local = SimpleNamespace(model="m", enabled=False)
    settings = SimpleNamespace(local=local, home=folder, speech=SimpleNamespace(default_model="m"))
    arguments = SimpleNamespace(ray="auto", pipeline="p", jobs=1)
    found: dict[str, str] = {}

    def add(module: str, function: str, *values: Any) -> None:
        found[module] = f"{found.get(module, '')} {call(module, function, *values)}"

    add("svc.cli.transcribe", "_create_converter", SimpleNamespace(sample_rate=8000, channels=1))
    del sys.modules["soxr"]  # of the same extra: without it, the modules of voices cannot be imported at all
    add("svc.cli._doctor_checks", "check_extras")
    blob_store = importlib.import_module("svc.cli._doctor_checks").check_blob_store(bucket)
    found["svc.cli._doctor_checks"] += f" {blob_store.detail} {blob_store.advice}"
    add("svc.cli._model_files", "_download", "hf:owner/name")
    add("svc.cli.registry._signing", "load_signing_module")
    add("svc.cli.run", "_open_cluster", arguments, "")
    add("svc.cli.up", "_required_models", settings)
    add("svc.client.bundles", "check_trust", None, ("key",))
    add("svc.gateway.local_model.supervisor", "_check_prerequisites", None)
    for stage in ("generation", "onnx", "recognition"):
        add(f"svc.pipeline.stages.{stage}", "make", None, bundle)
    add("svc.speech.audio_files", "_check_kind_supported", "flac")
    add("svc.speech.model_catalog", "SpeechModelCatalog.resolve", None, None)
    add("svc.speech.synthesis.encoders", "SndfileEncoder", "flac")
    add("svc.speech.synthesis.voice", "read_description", folder, "m@1")
    add("svc.speech.upload_endpoint", "transcribe_upload", None, None, None)
    del sys.modules["onnxruntime"]  # a worker starts only if it is installed
    add("svc.speech.worker", "_client_message", ImportError("no", name="sherpa_onnx"))
    add("svc.stores.bundles.factory", "open_store", folder, bucket.environ)
    add("svc.stores.database.factory", "open_database", "postgresql://host/name")
    add("svc.stores.redis.factory", "open_redis", "redis://host")
    return found


if __name__ == "__main__":
    main()
