"""Finds models that Ollama has downloaded. Its files are used in place.

<models>/manifests/<host>/<namespace>/<model>/<tag>   a manifest in JSON, as in an OCI registry
<models>/blobs/sha256-<hex>                           the layers: weights, template, licence
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from svc.errors import CommandFailed
from svc.stores.model_files.install import ModelFiles, suggest_name

DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG = "registry.ollama.ai", "library", "latest"
SERVICE_MODELS_FOLDER = Path("/usr/share/ollama/.ollama/models")
"""The folder of Ollama's service on Linux, which runs as a user of its own."""
WEIGHTS_LAYER = "application/vnd.ollama.image.model"
LICENCE_LAYER = "application/vnd.ollama.image.license"
MAX_LICENCE_BYTES = 4096
MAX_LISTED_OLLAMA_MODELS = 20
_NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class OllamaLayer(msgspec.Struct, rename={"media_type": "mediaType"}):
    """One file of a model."""

    media_type: str
    digest: Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size: int


class OllamaManifest(msgspec.Struct):
    """The layers of a model."""

    layers: list[OllamaLayer]


def find_ollama_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of Ollama's models: `OLLAMA_MODELS`, else that of the user, else that of the service."""
    if configured := environ.get("OLLAMA_MODELS"):
        return Path(configured).expanduser()
    own = Path("~/.ollama/models").expanduser()
    return own if own.is_dir() or not SERVICE_MODELS_FOLDER.is_dir() else SERVICE_MODELS_FOLDER


def ollama_files(reference: str, environ: Mapping[str, str]) -> ModelFiles:
    """Return the files of `NAME[:TAG]`, which Ollama has downloaded. Raises CommandFailed."""
    folder = find_ollama_folder(environ)
    path, _, tag = reference.partition(":")
    *prefix, name = path.split("/")
    tag = tag or DEFAULT_TAG
    host, namespace = (*((DEFAULT_HOST, DEFAULT_NAMESPACE)[: 2 - len(prefix)]), *prefix)[:2]
    parts = (host, namespace, name, tag)
    if len(prefix) > 2 or not all(_NAME_PART.fullmatch(part) for part in parts):
        raise CommandFailed(f"{reference[:100]!r} is not the name of an Ollama model, such as llama3.2:1b.")
    manifest_path = folder.joinpath("manifests", *parts)
    try:
        manifest = msgspec.json.decode(manifest_path.read_bytes(), type=OllamaManifest)
    except (FileNotFoundError, NotADirectoryError):
        raise CommandFailed(_describe_missing(reference, folder)) from None
    except OSError as error:
        raise CommandFailed(f"{manifest_path} cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{manifest_path} is not a manifest of Ollama: {error}.") from error
    layers = [layer for layer in manifest.layers if layer.media_type == WEIGHTS_LAYER]
    if not layers:
        raise CommandFailed(f"The Ollama model {reference} has no weights on this machine.")
    blobs = tuple(_find_blob(folder, layer, reference) for layer in layers)
    digest = layers[0].digest.partition(":")[2]
    return ModelFiles(
        source=f"ollama:{path}:{tag}",
        name=suggest_name(name if tag == DEFAULT_TAG else f"{name}-{tag}"),
        paths=blobs,
        file_names=tuple(f"{suggest_name(name)}{f'-{number}' if number else ''}.gguf" for number in range(len(blobs))),
        description=f"{path}:{tag} from Ollama",
        licence=_read_licence(folder, manifest),
        sha256=digest,
    )


def _find_blob(folder: Path, layer: OllamaLayer, reference: str) -> Path:
    path = folder / "blobs" / layer.digest.replace(":", "-")
    if not path.is_file() or path.stat().st_size != layer.size:
        raise CommandFailed(f"A file of the Ollama model {reference} is missing or incomplete: {path}. Pull it again.")
    return path


def _read_licence(folder: Path, manifest: OllamaManifest) -> str:
    """Return the first line of the licence, or empty text."""
    for layer in manifest.layers:
        if layer.media_type == LICENCE_LAYER:
            try:
                with (folder / "blobs" / layer.digest.replace(":", "-")).open("rb") as file:
                    text = file.read(MAX_LICENCE_BYTES).decode("utf-8", "replace")
            except OSError:
                return ""
            return next((" ".join(line.split())[:100] for line in text.splitlines() if line.strip()), "")
    return ""


def _describe_missing(reference: str, folder: Path) -> str:
    names = sorted(
        f"{path.parent.name}:{path.name}"
        for path in folder.glob(f"manifests/{DEFAULT_HOST}/{DEFAULT_NAMESPACE}/*/*")
        if path.is_file()
    )
    if not names:
        return (
            f"There are no Ollama models in {folder}. Set OLLAMA_MODELS to another folder, "
            f"or download the model with: ollama pull {reference}"
        )
    listed = ", ".join(names[:MAX_LISTED_OLLAMA_MODELS])
    return f"Ollama has not downloaded {reference}. It has: {listed}. Download it with: ollama pull {reference}"
