"""Find the language and embedding models that are installed on this machine. Loads no model.

$SVC_HOME/models/<name>/                              added from a file, the Hugging Face Hub or Ollama
<registry>/<model_id>/<version>/<platform>/content/   made by a recipe, or pulled

Both have a `model_metadata.json` whose type is `Gguf`. The first wins.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from svc.bundles.gguf import GgufHeader, read_gguf_header
from svc.bundles.metadata import METADATA_FILE, VOICE_FILE_NAME, BundleMetadata, parse_metadata
from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import BundleReference, select_entry
from svc.errors import SvcError
from svc.settings import Settings
from svc.stores.bundles.content_index import BundleContentIndex
from svc.wire.bundle import BundleEntry

log = logging.getLogger("svc.local")

MODEL_TYPE = "Gguf"
SPEECH_TYPE = "Speech"
MAX_DEFAULT_CONTEXT_TOKENS = 8192
MAX_DEFAULT_EMBEDDING_TOKENS = 2048
"""For an embedding model: memory grows with it more than for a chat model."""
LocalModelKind = Literal["chat", "embedding"]


class AddedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of any kind in `$SVC_HOME/models`."""

    name: str
    folder: Path
    version: str
    task: str
    """`chat`, `embedding` or `speech-to-text`."""
    licence: str
    source: str
    """Where it came from, such as `hf:OWNER/REPO:FILE`."""
    description: str
    size_bytes: int
    """Bytes of its files, or 0 if one is missing."""
    missing_file: Path | None
    """A file that its folder links to, and that does not exist."""


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """An installed model. Its file may be damaged or missing."""

    name: str
    path: Path
    """The GGUF file."""
    kind: LocalModelKind = "chat"
    context_window: int = MAX_DEFAULT_CONTEXT_TOKENS
    """Tokens of prompt and response together, unless the settings have another number."""
    sampling: Mapping[str, Any] = {}
    """Defaults for requests, see `Sampling`."""
    version: str = "1"
    description: str = ""
    licence: str = ""
    source: str = ""
    """Where it came from, such as `hf:OWNER/REPO:FILE`, or empty text for a recipe or bundle."""
    size_bytes: int = 0
    """Bytes of all of its files."""
    header: GgufHeader | None = None
    """The header of the file, or None if it cannot be read."""

    def memory_bytes(self, context_tokens: int) -> int:
        """Return the estimated memory of the loaded model."""
        return self.size_bytes + (self.header.working_memory_bytes(context_tokens) if self.header else 0)


def models_folder(home: Path) -> Path:
    """Return the folder of models that do not come from the registry."""
    return home / "models"


def find_local_models(settings: Settings) -> dict[str, LocalModel]:
    """Return the installed models by name."""
    found: dict[str, LocalModel] = {}
    for folder in (*_added_folders(settings.home), *_bundle_folders(settings.registry_root)):
        if (model := read_local_model(folder)) is not None:
            found.setdefault(model.name, model)
    return found


def find_added_models(home: Path) -> list[AddedModel]:
    """Return the models that come from files, the Hugging Face Hub or Ollama."""
    found = (read_added_model(folder) for folder in _added_folders(home))
    return [model for model in found if model is not None]


def read_added_model(folder: Path) -> AddedModel | None:
    """Return the model in a folder, or None if it has another origin."""
    try:
        metadata = parse_metadata((folder / METADATA_FILE).read_bytes())
    except (OSError, SvcError):
        return None
    details = metadata.metadata or {}
    if not isinstance(details.get("source"), str):
        return None
    paths = [folder / name for name in metadata.files if Path(name).name == name]
    missing = next((path for path in paths if not path.is_file()), None)
    return AddedModel(
        name=metadata.model_id,
        folder=folder,
        version=metadata.version,
        task=str(details.get("task") or ""),
        licence=str(details.get("licence") or ""),
        source=details["source"],
        description=metadata.description or "",
        size_bytes=0 if missing else sum(path.stat().st_size for path in paths),
        missing_file=missing.readlink() if missing is not None and missing.is_symlink() else missing,
    )


def installed_kinds(settings: Settings) -> dict[str, str]:
    """Return the kind of each installed model and voice, and of `[local] model`, which may not be installed yet."""
    voices = dict.fromkeys(BundleContentIndex(settings.registry_root).models_with_file(VOICE_FILE_NAME), "speech")
    kinds = {**voices, settings.local.model: "chat"}
    if settings.local.enabled:
        kinds |= {name: str(model.kind) for name, model in find_local_models(settings).items()}
    return kinds


def read_local_model(folder: Path) -> LocalModel | None:
    """Return the model in a folder, or None if it is of another type or its metadata is invalid."""
    try:
        metadata = parse_metadata((folder / METADATA_FILE).read_bytes())
    except (OSError, SvcError):
        return None
    file_name = metadata.execution_template.get("model_file")
    if metadata.type != MODEL_TYPE or not isinstance(file_name, str) or Path(file_name).name != file_name:
        return None
    return _describe(metadata, folder / file_name)


def _describe(metadata: BundleMetadata, path: Path) -> LocalModel:
    template, details = metadata.execution_template, metadata.metadata or {}
    try:
        stat = path.stat()
        names = {Path(name).name for name in metadata.files if name.endswith(".gguf")} - {path.name}
        parts = [path.with_name(name) for name in names]
        size = stat.st_size + sum(part.stat().st_size for part in parts)
        header = _read_header(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, SvcError) as error:
        log.info("%s: %s", path, error)
        size, header = 0, None
    is_embedding = details.get("task") == "embedding" or (header is not None and header.is_embedding)
    context = template.get("context_length")
    if not isinstance(context, int) or context < 1:
        limit = MAX_DEFAULT_EMBEDDING_TOKENS if is_embedding else MAX_DEFAULT_CONTEXT_TOKENS
        context = min((header.context_length if header else None) or limit, limit)
    sampling = template.get("sampling")
    return LocalModel(
        name=metadata.model_id,
        path=path,
        kind="embedding" if is_embedding else "chat",
        context_window=context,
        sampling=sampling if isinstance(sampling, dict) else {},
        version=metadata.version,
        description=metadata.description or "",
        licence=str(details.get("licence") or ""),
        source=str(details.get("source") or ""),
        size_bytes=size,
        header=header,
    )


@functools.lru_cache(maxsize=256)
def _read_header(path: Path, mtime_ns: int, size: int) -> GgufHeader:
    """Read a header once for each version of the file."""
    return read_gguf_header(path)


def _added_folders(home: Path) -> Iterator[Path]:
    for metadata in sorted(models_folder(home).glob(f"*/{METADATA_FILE}")):
        if not metadata.parent.name.startswith("."):
            yield metadata.parent


def _bundle_folders(root: Path) -> Iterator[Path]:
    """Yield the unpacked folder of the newest version of each bundle for this platform."""
    by_model: dict[str, list[BundleEntry]] = {}
    for metadata in root.glob(f"*/*/*/content/{METADATA_FILE}"):
        model, version, platform = metadata.relative_to(root).parts[:3]
        if not model.startswith("."):
            by_model.setdefault(model, []).append(
                BundleEntry(model_id=model, version=version, target=platform, size_bytes=0, path=str(metadata.parent))
            )
    for name in sorted(by_model):
        entry = select_entry(BundleReference(name), by_model[name], compatible_platforms())
        if entry is not None:
            yield Path(entry.path)
