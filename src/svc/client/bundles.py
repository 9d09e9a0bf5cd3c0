"""Resolves a reference to a bundle on this machine.

parse -> platform -> local registry folder -> else download and verify -> extract -> model_metadata.json

An exact version that is installed needs no network. For `latest` and version prefixes the client queries the registry,
and uses the newest installed version if the registry is unreachable.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from svc import plugins
from svc.bundles import index_parser, metadata
from svc.bundles.archive import ArchiveLimits
from svc.bundles.download import (
    DOWNLOAD_BLOCK_BYTES,
    REGISTRY_TIMEOUT_SECONDS,
    BundleSource,
    DownloadProgress,
    DownloadState,
    PartialFile,
)
from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import BundleReference, describe_yanked, list_other_platforms, parse_reference, select_entry
from svc.bundles.registry_url import check_folder_host
from svc.bundles.remote_metadata import read_remote_metadata
from svc.distribution import install_command
from svc.errors import BundleNotFound, CommandFailed, RegistryUnreachable, UsageError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.fetch import fetch_into
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.folder_use import open_folder
from svc.stores.bundles.index_json import INDEX_FILE_NAME, read_external_entry
from svc.stores.bundles.unpacked_content import is_unpacked
from svc.wire.bundle import BundleEntry

if TYPE_CHECKING:
    from svc.bundles.registry_client import RegistryClient

NO_REGISTRY_MESSAGE = "on this machine, and no registry is configured: set SVC_REGISTRY_URL, or see svc models ls"


class Bundle(msgspec.Struct, frozen=True):
    """A bundle on this machine. `path` is the folder of its files."""

    reference: str
    path: Path
    metadata: metadata.BundleMetadata
    entry: BundleEntry | None = None


class ResolveOptions(msgspec.Struct, frozen=True):
    """Options for resolving. `registry` is a URL or `file://<path>`. None uses only this machine."""

    root: Path
    registry: str | None = None
    key: str | None = None
    platform: str | None = None
    trusted_keys: tuple[str, ...] = ()
    limits: ArchiveLimits | None = None
    timeout: float = REGISTRY_TIMEOUT_SECONDS
    """The longest wait for a byte from the registry, in seconds."""
    report: DownloadProgress | None = None
    warn: Callable[[str], None] = warnings.warn
    needs_archive: bool = False
    """Whether the bundle's archive is needed, not only its content."""


def read_trusted_keys(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the public keys of `SVC_TRUSTED_KEYS`. Raises UsageError if it is set and has none.

    Without keys, unsigned bundles are accepted. A list of empty entries must not have this effect by mistake.
    """
    text = environ.get("SVC_TRUSTED_KEYS", "")
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    if text and not keys:
        raise UsageError("SVC_TRUSTED_KEYS is set, but has no key. Unset it to accept bundles without a signature.")
    return keys


def resolve_bundle(text: str, options: ResolveOptions) -> Bundle:
    """Return the bundle of a reference. Downloads it if necessary.

    Raises InvalidRequest for an invalid reference, BundleNotFound, RegistryFailed, InvalidBundle and
    InsufficientStorage.
    """
    reference = parse_reference(text)
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(open_folder(options.root, options.limits))
        except OSError:  # the folder may be read-only: its extracted bundles can still be used
            return _resolve_read_only(reference, options)
        local_entries = store.entries(reference.model_id)
        platforms = compatible_platforms(options.platform)
        entry = select_entry(reference, local_entries, platforms)
        if options.needs_archive and options.registry and entry is not None and not store.is_complete(entry):
            _restore_bundle_file(store, entry, options)
        if entry is not None and entry.version == reference.version and _is_local(store, entry):
            return _load_bundle(store.unpack(entry), entry)
        resolved = _find_bundle(reference, store, local_entries, platforms, options)
        if isinstance(resolved, Bundle):
            return resolved
        return _load_bundle(store.unpack(resolved), resolved)


def _is_local(store: FolderStore, entry: BundleEntry) -> bool:
    return store.is_complete(entry) or is_unpacked(store.content_dir(entry), entry.sha256)


def _restore_bundle_file(store: FolderStore, entry: BundleEntry, options: ResolveOptions) -> None:
    """Download an archive that is missing although its entry exists. Warns if the registry is unreachable."""
    try:
        for remote_entry in list_entries(options, entry.model_id):
            if (remote_entry.key, remote_entry.sha256) == (entry.key, entry.sha256):
                download_bundle(store, remote_entry, options)
    except RegistryUnreachable as error:
        options.warn(error.message)


def _find_bundle(
    reference: BundleReference,
    store: FolderStore,
    local_entries: Iterable[BundleEntry],
    platforms: tuple[str, ...],
    options: ResolveOptions,
) -> BundleEntry | Bundle:
    """Find the bundle locally and in the registry. Raises BundleNotFound and RegistryFailed."""
    local_by_key = {entry.key: entry for entry in local_entries if _is_local(store, entry)}
    if (unpacked := _find_unpacked(reference, options.root, platforms)) is not None and not local_by_key:
        return unpacked
    remote_by_key: dict[str, BundleEntry] = {}
    if options.registry is not None:
        try:
            remote_by_key = {entry.key: entry for entry in list_entries(options, reference.model_id)}
        except RegistryUnreachable as error:
            if select_entry(reference, local_by_key.values(), platforms) is None:
                raise
            options.warn(f"{error.message} Using the newest installed version.")
    known_entries = {**local_by_key, **remote_by_key}.values()
    entry = select_entry(reference, known_entries, platforms)
    if entry is None:
        if yanked := describe_yanked(reference, known_entries, platforms):
            raise BundleNotFound(yanked)
        locations = f"on this machine or at {options.registry}" if options.registry else NO_REGISTRY_MESSAGE
        others = list_other_platforms(reference, known_entries)
        hint = f" Other platforms have it: {others}." if others else ""
        raise BundleNotFound(f"There is no bundle {reference} for {' or '.join(platforms)} {locations}.{hint}")
    return local_by_key.get(entry.key) or _download_and_unpack(store, entry, options)


def _find_unpacked(reference: BundleReference, root: Path, platforms: tuple[str, ...]) -> Bundle | None:
    """Return content that was added to the folder without an archive."""
    for platform in platforms if reference.version is not None else ():
        folder = root / reference.model_id / str(reference.version) / platform / "content"
        if is_unpacked(folder, None):
            return _load_bundle(folder, None, f"{reference.model_id}@{reference.version}")
    return None


def _load_bundle(folder: Path, entry: BundleEntry | None, reference: str = "") -> Bundle:
    bundle_metadata = metadata.parse_metadata((folder / metadata.METADATA_FILE).read_bytes())
    return Bundle(f"{entry.model_id}@{entry.version}" if entry else reference, folder, bundle_metadata, entry)


def _resolve_read_only(reference: BundleReference, options: ResolveOptions) -> Bundle:
    platforms = compatible_platforms(options.platform)
    entries = _list_folder_entries(options.root, reference.model_id)
    entry = select_entry(reference, entries, platforms)
    if entry is not None and is_unpacked(folder := options.root / entry.key / "content", entry.sha256):
        return _load_bundle(folder, entry)
    if (unpacked := _find_unpacked(reference, options.root, platforms)) is not None:
        return unpacked
    raise BundleNotFound(f"There is no extracted {reference} in {options.root}, and the folder is read-only.")


# registries


def list_entries(options: ResolveOptions, model_id: str | None = None) -> list[BundleEntry]:
    """Return the entries of the registry. Raises RegistryFailed and UsageError."""
    if (folder := _registry_folder(options.registry or "")) is not None:
        return _list_folder_entries(folder, model_id)
    return _open_registry(options).fetch_index(model_id, options.warn)


def _open_registry(options: ResolveOptions) -> RegistryClient:
    """Import the HTTP library at the first use of a registry: the servers import this module."""
    client: RegistryClient = plugins.load("bundles", "registry_client").RegistryClient(
        options.registry or "", key=options.key, timeout=options.timeout
    )
    return client


def _registry_folder(registry: str) -> Path | None:
    try:
        parts = urlsplit(registry)
    except ValueError:  # the registry client reports it
        return None
    if parts.scheme != "file":
        return None
    check_folder_host(registry, parts.netloc)
    folder = Path(unquote(f"{parts.netloc}{parts.path}".removeprefix("localhost"))).expanduser()
    if not folder.is_dir():
        raise RegistryUnreachable(f"There is no folder {folder}.")
    return folder


def _list_folder_entries(root: Path, model_id: str | None) -> list[BundleEntry]:
    """Return the entries of the folder's index.json, and bundles in its layout that are not in the index."""
    root = root.absolute()
    try:
        members = index_parser.split_index((root / INDEX_FILE_NAME).read_bytes()).entries
    except (OSError, ValueError):
        members = {}
    entries: dict[str, BundleEntry] = {}
    for key, raw in members.items():
        if model_id is None or key.startswith(f"{model_id}/"):
            try:
                entries[key] = read_external_entry(key, raw, root)
            except (OSError, ValueError):
                continue
    for path in root.glob(f"{model_id or '[!.]*'}/*/*/*.xyb"):
        name, version, target = path.relative_to(root).parts[:3]
        if path.stem == name:
            size = path.stat().st_size
            entry = BundleEntry(model_id=name, version=version, target=target, size_bytes=size, path=str(path))
            entries.setdefault(entry.key, entry)
    return list(entries.values())


class FolderSource:
    """A registry in a local folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        with (self._root / entry.path).open("rb") as file:
            file.seek(start)
            partial_file.receive(iter(lambda: file.read(DOWNLOAD_BLOCK_BYTES), b""))


def download_bundle(
    store: BundleStore, entry: BundleEntry, options: ResolveOptions, source: BundleSource | None = None
) -> BundleEntry:
    """Download a bundle durably. Only one process downloads it, and others wait. Keeps nothing of an invalid bundle.

    `source` is that of `open_source`, for several bundles. Without it, each call opens the registry.
    """
    check_trust(entry, options.trusted_keys)
    return fetch_into(store, entry, source or open_source(options), durable=True, on_progress=options.report)


def _download_and_unpack(store: FolderStore, entry: BundleEntry, options: ResolveOptions) -> BundleEntry:
    """Download and extract a bundle for use on this machine."""

    def unpack(stored_entry: BundleEntry) -> None:
        store.unpack(stored_entry, trusted=True)

    check_trust(entry, options.trusted_keys)
    return fetch_into(store, entry, open_source(options), on_progress=options.report, on_fetched=unpack)


def open_source(options: ResolveOptions) -> BundleSource:
    """Return the source of the registry's bundles. Reuse it: it loads the certificate authorities, which is slow."""
    folder = _registry_folder(options.registry or "")
    if folder is not None:
        return FolderSource(folder)
    source: BundleSource = _open_registry(options).bundle_source()
    return source


def check_trust(entry: BundleEntry, trusted_keys: tuple[str, ...]) -> None:
    """Check that a trusted key has signed the entry, if there are trusted keys. Raises InvalidBundle."""
    if trusted_keys:
        try:
            signature: Any = plugins.load("bundles", "signature")
        except ImportError as error:
            raise CommandFailed(f"Trusted keys need an extra. Install it with: {install_command('signing')}") from error
        signature.check(entry, trusted_keys)


def read_bundle_metadata(entry: BundleEntry, options: ResolveOptions) -> metadata.BundleMetadata | None:
    """Read the metadata of a bundle without a download. None if it cannot be read. Raises InvalidBundle."""
    folder = _registry_folder(options.registry or "")
    if folder is not None:
        with (folder / entry.path).open("rb") as file:
            return read_remote_metadata(lambda start, length: os.pread(file.fileno(), length, start), entry.size_bytes)
    remote = _open_registry(options)
    try:
        return read_remote_metadata(lambda start, length: remote.read_range(entry, start, length), entry.size_bytes)
    except RegistryUnreachable:  # the registry does not serve byte ranges
        return None
