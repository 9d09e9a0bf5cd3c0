"""Downloads models from the Hugging Face Hub into the cache of huggingface_hub.

This module needs the extra `hub`.

`HF_TOKEN`, `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_CACHE` have the meaning that they have there
(https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).

<cache>/models--OWNER--REPO/blobs/<sha256>            a complete, verified file
<cache>/models--OWNER--REPO/blobs/svc-<sha256>.part   the bytes received so far, which the next call continues
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_hf_file_metadata,
    get_session,
    get_token,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)

from svc.bundles.download import DownloadState, PartialFile, download, remove_partial_files
from svc.errors import CommandFailed, InsufficientStorage, RegistryFailed, RegistryUnreachable, UsageError
from svc.file_lock import hold_lock
from svc.outbound_http import describe_http_error, find_environment_proxy
from svc.stores.model_files.install import (
    ModelFiles,
    describe_missing,
    describe_size,
    first_shard,
    group_shards,
    missing_shards,
    suggest_name,
)
from svc.wire.bundle import BundleEntry

HUB_TIMEOUT_SECONDS = 30.0
"""The longest wait for a byte from the Hub."""
LOCK_WAIT_SECONDS = 3600.0
RESERVED_CACHE_BYTES = 64 << 20
"""Free space that a download leaves on the disk."""
PREFERRED_QUANTS = (
    *("Q4_K_M", "Q4_K_S", "Q4_K_XL", "Q4_K", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K"),
    *("Q8_0", "MXFP4", "BF16", "F16", "FP16", "F32"),
)
"""Quantisations in the order of preference: four bits have the best quality for their size on a CPU."""
MAX_LISTED_REFERENCES = 40
WHISPER_FILES = (
    *("model.bin", "config.json", "tokenizer.json", "preprocessor_config.json"),
    *("vocabulary.json", "vocabulary.txt"),
)
"""Files of a Whisper model in CTranslate2's format. The first two are required."""
_QUANT = re.compile(
    r"(?:^|[-_.])((?:IQ|Q|TQ)\d(?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|BF16|FP?16|FP?32)(?=$|[-_.])", re.IGNORECASE
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)

HubProgress = Callable[[str, int, int], None]
"""Called with the current step, its bytes so far and its total bytes."""


class HubVariant(msgspec.Struct, frozen=True):
    """One model of a repository: a file, or the parts of a split file."""

    files: tuple[str, ...]
    quant: str
    """The quantisation in the file name, or empty text."""
    size_bytes: int

    @property
    def label(self) -> str:
        return self.quant or self.files[0]

    def __str__(self) -> str:
        return f"{self.label} ({describe_size(self.size_bytes)})"


class _HubFile(msgspec.Struct, frozen=True):
    size: int
    sha256: str | None


class HubRepository(msgspec.Struct, frozen=True):
    """The metadata and files of a repository."""

    name: str
    commit: str
    licence: str
    files: dict[str, _HubFile]

    def variants(self) -> list[HubVariant]:
        """Return the GGUF models, the smallest first. Image encoders and calibration data are no models."""
        variants = [
            HubVariant(parts, _find_quant(first), sum(self.files[part].size for part in parts))
            for first, parts in group_shards(self._gguf_names()).items()
        ]
        return sorted(variants, key=lambda variant: variant.size_bytes)

    def find_incomplete(self, selector: str) -> tuple[str, ...]:
        """Return the missing parts of the split model that has this part or quantisation. Empty for another one.

        Without a selector, it is any incomplete model.
        """
        wanted = first_shard(selector).lower()
        for first, missing in missing_shards(self._gguf_names()).items():
            if not selector or wanted in (first.lower(), Path(first).name.lower(), _find_quant(first).lower()):
                return missing
        return ()

    def _gguf_names(self) -> list[str]:
        return [
            name
            for name in self.files
            if name.lower().endswith(".gguf") and not re.search("mmproj|imatrix", name, re.IGNORECASE)
        ]


def _find_quant(name: str) -> str:
    """Return the quantisation in the name of a GGUF file, or empty text."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", Path(name).name, flags=re.IGNORECASE)
    match = _QUANT.search(stem)
    return match[1].upper() if match else ""


def parse_hub_reference(text: str) -> tuple[str, str]:
    """Return repository and selector of `OWNER/REPO[:FILE_OR_QUANT]`. Raises UsageError."""
    repository, _, selector = text.partition(":")
    if not _REPOSITORY.fullmatch(repository) or ".." in text or "--" in repository:
        raise UsageError(
            f"{text[:100]!r} is not a repository of the Hub, such as hf:OWNER/REPO or hf:OWNER/REPO:Q4_K_M."
        )
    return repository, selector


def hub_files(reference: str, on_progress: HubProgress) -> tuple[ModelFiles, HubVariant | None, list[HubVariant]]:
    """Download the model of `OWNER/REPO[:FILE_OR_QUANT]`, unless it is in the cache.

    Returns its files, and for a GGUF model what was chosen, and all variants. Raises CommandFailed and UsageError.
    """
    repository_name, selector = parse_hub_reference(reference)
    with _hub_errors(repository_name):
        repository = _read_repository(repository_name)
        variants = repository.variants()
        if not variants and not selector and (speech := select_speech_files(repository.files)):
            return _download_speech_model(repository, speech, on_progress), None, []
        variant = select_variant(repository, variants, selector)
        _check_space(repository, variant.files)
        paths = tuple(_fetch_file(repository, file, on_progress) for file in variant.files)
    base_name = repository_name.partition("/")[2]
    is_default = variant == _default_variant(variants)
    return (
        ModelFiles(
            source=f"hf:{repository_name}:{variant.files[0]}",
            name=suggest_name(base_name if is_default else f"{suggest_name(base_name)}-{variant.label}"),
            paths=paths,
            file_names=tuple(Path(file).name for file in variant.files),
            description=f"{base_name} {variant.quant}".strip(),
            licence=repository.licence,
            sha256=repository.files[variant.files[0]].sha256,
            version=repository.commit[:12] or "1",
        ),
        variant,
        variants,
    )


def select_speech_files(names: Collection[str]) -> tuple[str, ...]:
    """Return the files of a speech model that an engine of this project knows, or nothing.

    That is Whisper in CTranslate2's format, or models of sherpa-onnx. If there are several precisions, int8 is chosen.
    """
    names = sorted(name for name in names if "/" not in name)
    if WHISPER_FILES[0] in names and WHISPER_FILES[1] in names:
        return tuple(name for name in WHISPER_FILES if name in names)
    tokens = _find_speech_file(names, "tokens", ".txt")
    parts = [_find_speech_file(names, role, ".onnx") for role in ("encoder", "decoder", "joiner")]
    pair = [_find_speech_file(names, role, ".ort") for role in ("encoder", "decoder")]
    single = _find_speech_file(names, "model", ".onnx")
    if tokens is None:
        return ()
    for chosen, required in ((pair, 2), (parts, 2), ([single], 1)):
        if all(chosen[:required]):
            return (*(name for name in chosen if name), tokens)
    return ()


def _find_speech_file(names: Sequence[str], role: str, suffix: str) -> str | None:
    matches = [name for name in names if role in name.lower() and name.endswith(suffix)]
    return next((name for name in matches if "int8" in name), matches[0] if matches else None)


def _download_speech_model(repository: HubRepository, names: Sequence[str], on_progress: HubProgress) -> ModelFiles:
    _check_space(repository, names)
    base_name = repository.name.partition("/")[2]
    return ModelFiles(
        source=f"hf:{repository.name}",
        name=suggest_name(base_name),
        paths=tuple(_fetch_file(repository, name, on_progress) for name in names),
        file_names=tuple(names),
        description=f"{base_name}, speech to text",
        licence=repository.licence,
        version=repository.commit[:12] or "1",
        is_speech=True,
    )


def select_variant(repository: HubRepository, variants: Sequence[HubVariant], selector: str) -> HubVariant:
    """Return the variant with this file name or quantisation, or the default one. Raises CommandFailed.

    Each part of a split model selects it.
    """
    name = repository.name
    if not selector and variants:
        return _default_variant(variants)
    wanted = first_shard(selector).lower()
    for variant in variants:
        if wanted in (variant.quant.lower(), variant.files[0].lower(), Path(variant.files[0]).name.lower()):
            return variant
    listed = ", ".join(map(str, variants[:MAX_LISTED_REFERENCES]))
    if missing := repository.find_incomplete(selector):
        advice = f"Choose another: {listed}." if variants else "Ask its owner for them, or choose another repository."
        raise CommandFailed(f"The model is split, and {describe_missing(missing)} {name}. {advice}")
    if not variants:
        raise CommandFailed(
            f"{name} has neither a GGUF file nor a speech model that is known here. "
            f"Look for a repository whose name ends in GGUF, such as {name}-GGUF."
        )
    raise CommandFailed(f"{name} has no {selector!r}. It has: {listed}.")


def _default_variant(variants: Sequence[HubVariant]) -> HubVariant:
    for quant in PREFERRED_QUANTS:
        for variant in variants:
            if variant.quant == quant:
                return variant
    return variants[0]


def _read_repository(name: str) -> HubRepository:
    info = HfApi().model_info(name, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS)
    card: Any = info.card_data
    licence = card.get("license_name") or card.get("license") if card is not None else None
    licence = licence or next(
        (tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")), ""
    )
    files = {
        file.rfilename: _HubFile(file.size or 0, file.lfs.sha256 if file.lfs is not None else None)
        for file in info.siblings or ()
    }
    return HubRepository(name, info.sha or "main", str(licence), files)


def _cache_folder(repository: HubRepository) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{repository.name.replace('/', '--')}"


def _check_space(repository: HubRepository, names: Sequence[str]) -> None:
    folder = _cache_folder(repository)
    missing = 0
    for name in names:
        file = repository.files[name]
        blob = folder / "blobs" / (file.sha256 or "")
        partial = folder / "blobs" / f"svc-{file.sha256}.part"
        if not blob.is_file():
            missing += file.size - (partial.stat().st_size if partial.is_file() else 0)
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if missing + RESERVED_CACHE_BYTES > free:
        raise CommandFailed(
            f"Not enough free space in {existing}: the download needs {describe_size(missing)}, "
            f"{describe_size(free)} are free. Set HF_HOME to a folder on another disk."
        )


def _fetch_file(repository: HubRepository, name: str, on_progress: HubProgress) -> Path:
    """Return the path of a file in the cache. Download and verify it first if needed."""
    cached = try_to_load_from_cache(repository.name, name, revision=repository.commit)
    if isinstance(cached, str):
        return Path(cached)
    sha256 = repository.files[name].sha256
    if sha256 is not None and re.fullmatch("[0-9a-f]{64}", sha256):
        blobs = _cache_folder(repository) / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        with hold_lock(
            blobs / f"svc-{sha256}.lock",
            timeout_seconds=LOCK_WAIT_SECONDS,
            on_wait=lambda: on_progress("waiting for another svc that downloads this file", 0, 0),
        ):
            if not (blobs / sha256).is_file():
                url = hf_hub_url(repository.name, name, revision=repository.commit)
                get_hf_file_metadata(url, token=get_token(), timeout=HUB_TIMEOUT_SECONDS)  # is access granted?
                _download_blob(url, name, repository.files[name].size, sha256, blobs, on_progress)
    # Finds the blob in the cache, and adds the links to it.
    return Path(hf_hub_download(repository.name, name, revision=repository.commit))


def _download_blob(url: str, name: str, size: int, sha256: str, blobs: Path, on_progress: HubProgress) -> None:
    entry = BundleEntry(model_id=name, version="", target="", size_bytes=size, path="", sha256=sha256)
    label = f"fetching {Path(name).name}"
    try:
        path, _ = download(
            entry, _HubSource(url), blobs, f"svc-{sha256}", lambda done, total: on_progress(label, done, total)
        )
    except InsufficientStorage as error:
        raise CommandFailed(f"{error.message} Free space, and run the command again: it continues.") from error
    except RegistryUnreachable as error:
        raise CommandFailed(f"{error.message} Run the command again: it continues.") from error
    except RegistryFailed as error:
        if "match" in error.message:
            raise CommandFailed(f"{name} does not have the SHA-256 that the Hub states. It was deleted.") from error
        raise CommandFailed(f"The download of {name} was interrupted. Run the command again: it continues.") from error
    os.replace(path, blobs / sha256)
    remove_partial_files(blobs, f"svc-{sha256}")


class _HubSource:
    """Sends the bytes of a file of the Hub from any offset."""

    def __init__(self, url: str) -> None:
        self._url = url

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        headers = {"accept-encoding": "identity"}
        if token := get_token():
            headers["authorization"] = f"Bearer {token}"
        if start:
            headers["range"] = f"bytes={start}-"
        try:
            # The client drops the token when a redirect leads to another host.
            with get_session().stream(
                "GET", self._url, headers=headers, follow_redirects=True, timeout=HUB_TIMEOUT_SECONDS
            ) as response:
                status = response.status_code
                if status in (408, 416, 429) or status >= 500:
                    raise ConnectionError(f"the Hub returned status {status}")
                if status not in (200, 206):
                    raise CommandFailed(f"The Hub returned status {status} for {entry.model_id}.")
                if start and not _continues_at(response, start):
                    partial_file.restart()
                partial_file.receive(response.iter_raw())
        except httpx2.TransportError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error


def _continues_at(response: httpx2.Response, start: int) -> bool:
    content_range = response.headers.get("content-range", "")
    return response.status_code == 206 and content_range.startswith(f"bytes {start}-")


@contextlib.contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Raise CommandFailed with the next step for the errors of huggingface_hub."""
    page = f"{constants.ENDPOINT}/{repository}"
    has_token = get_token() is not None
    try:
        yield
    except errors.GatedRepoError as error:
        advice = "with the account of HF_TOKEN" if has_token else "and set HF_TOKEN to a token of your account"
        raise CommandFailed(f"{repository} is gated: accept its terms at {page} {advice}.") from error
    except errors.RepositoryNotFoundError as error:
        advice = (
            "HF_TOKEN may not read it" if has_token else "if it is private, set HF_TOKEN to a token that may read it"
        )
        raise CommandFailed(f"The Hub has no repository {repository}. Check the name; {advice}.") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise CommandFailed(
                f"The Hub denies access to {repository} (status {status}): set HF_TOKEN to a token that may read it."
            ) from error
        raise CommandFailed(f"The Hub could not be used: it returned status {status} for {repository}.") from error
    except errors.OfflineModeIsEnabled as error:
        raise CommandFailed("HF_HUB_OFFLINE is set, so that nothing is downloaded. Unset it.") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:  # a proxy or portal answers in its place
        raise CommandFailed(
            f"The Hub at {constants.ENDPOINT} sent an invalid response for {repository}. Check HF_ENDPOINT and proxies."
        ) from error
    except httpx2.HTTPError as error:
        reason = describe_http_error(error, find_environment_proxy(constants.ENDPOINT))
        raise CommandFailed(
            f"The Hub at {constants.ENDPOINT} cannot be reached: {reason}. Check the network and HF_ENDPOINT."
        ) from error
