"""Resolves a reference to a model on this machine.

parse -> platform -> local registry -> else download, verified -> unpack beside it -> model_metadata.json

A version that is named exactly and is here asks nothing of the network. For `latest` and prefixes the registry is
asked, and what is here answers when it cannot be reached.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from svc import plugins
from svc.bundles import listing, metadata
from svc.bundles.archive import Limits
from svc.bundles.download import HttpSource, Report, Side, Sink, Source
from svc.bundles.peek import peek
from svc.bundles.platform import fallbacks
from svc.bundles.reference import Reference, choose, parse
from svc.bundles.remote import TIMEOUT, Remote, Unreachable
from svc.distribution import install_command
from svc.errors import BundleNotFound, CommandFailed, UsageError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.fetching import fetch_into
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.projection import FILE, read_foreign
from svc.stores.bundles.unpacking import is_unpacked
from svc.wire.bundle import Entry

NO_REGISTRY = "here, and no registry is named: set SVC_REGISTRY_URL, or see svc models ls"


class Bundle(msgspec.Struct, frozen=True):
    """A model on this machine: `path` is the folder of its files."""

    reference: str
    path: Path
    metadata: metadata.Metadata
    entry: Entry | None = None


class Options(msgspec.Struct, frozen=True):
    """How to resolve. `registry` is an HTTP address or `file://<path>`; None looks at this machine only."""

    root: Path
    registry: str | None = None
    key: str | None = None
    platform: str | None = None
    trusted_keys: tuple[str, ...] = ()
    limits: Limits | None = None
    timeout: float = TIMEOUT
    """Seconds without a byte from the registry."""
    report: Report | None = None
    warn: Callable[[str], None] = warnings.warn
    file: bool = False
    """The bundle's file is wanted as well, not its content alone."""


def resolve(text: str, options: Options) -> Bundle:
    """The bundle that a reference means, on this machine afterwards.

    Raises InvalidRequest for no reference, BundleNotFound, RegistryFailed, InvalidBundle, InsufficientStorage.
    """
    reference = parse(text)
    try:
        store = FolderStore(options.root, options.limits)
    except OSError:  # it may be read only: what is unpacked there can still be used
        return _read_only(reference, options)
    with store:
        local = store.entries(reference.model_id)
        platforms = fallbacks(options.platform)
        entry = choose(reference, local, platforms)
        if options.file and options.registry and entry is not None and not store.is_whole(entry):
            _fetch_file(store, entry, options)
        if entry is not None and entry.version == reference.version and _is_here(store, entry):
            return _load(store.unpack(entry), entry)
        found = _look_further(reference, store, local, platforms, options)
        if isinstance(found, Bundle):
            return found
        return _load(store.unpack(found), found)


def _is_here(store: FolderStore, entry: Entry) -> bool:
    return store.is_whole(entry) or is_unpacked(store.content(entry), entry.sha256)


def _fetch_file(store: FolderStore, entry: Entry, options: Options) -> None:
    """The file that a record here has lost. When the registry cannot be reached, its content may still do."""
    try:
        for there in entries_at(options, entry.model_id):
            if (there.key, there.sha256) == (entry.key, entry.sha256):
                copy(store, there, options)
    except Unreachable as error:
        options.warn(error.message)


def _look_further(
    reference: Reference,
    store: FolderStore,
    local: Iterable[Entry],
    platforms: tuple[str, ...],
    options: Options,
) -> Entry | Bundle:
    """Asks the registry, if there is one to ask. Raises BundleNotFound, RegistryFailed."""
    here = {entry.key: entry for entry in local if _is_here(store, entry)}
    if (bare := _bare(reference, options.root, platforms)) is not None and not here:
        return bare
    there: dict[str, Entry] = {}
    if options.registry is not None:
        try:
            there = {entry.key: entry for entry in entries_at(options, reference.model_id)}
        except Unreachable as error:
            if choose(reference, here.values(), platforms) is None:
                raise
            options.warn(f"{error.message} The newest version that is here is used.")
    entry = choose(reference, {**here, **there}.values(), platforms)
    if entry is None:
        where = f"here or at {options.registry}" if options.registry else NO_REGISTRY
        raise BundleNotFound(f"There is no bundle {reference} for {' or '.join(platforms)} {where}.")
    return here.get(entry.key) or _fetch(store, entry, options)


def _bare(reference: Reference, root: Path, platforms: tuple[str, ...]) -> Bundle | None:
    """Content that was put there without a bundle."""
    for platform in platforms if reference.version is not None else ():
        folder = root / reference.model_id / str(reference.version) / platform / "content"
        if is_unpacked(folder, None):
            return _load(folder, None, f"{reference.model_id}@{reference.version}")
    return None


def _load(folder: Path, entry: Entry | None, reference: str = "") -> Bundle:
    about = metadata.parse((folder / metadata.FILE).read_bytes())
    return Bundle(f"{entry.model_id}@{entry.version}" if entry else reference, folder, about, entry)


def _read_only(reference: Reference, options: Options) -> Bundle:
    platforms = fallbacks(options.platform)
    entries = _entries_of_folder(options.root, reference.model_id)
    entry = choose(reference, entries, platforms)
    if entry is not None and is_unpacked(folder := options.root / entry.key / "content", entry.sha256):
        return _load(folder, entry)
    if (bare := _bare(reference, options.root, platforms)) is not None:
        return bare
    raise BundleNotFound(f"There is no unpacked {reference} in {options.root}, and it cannot be written to.")


# registries


def entries_at(options: Options, model_id: str | None = None) -> list[Entry]:
    """What the registry has. Raises RegistryFailed, UsageError."""
    if (folder := _folder_of(options.registry or "")) is not None:
        return _entries_of_folder(folder, model_id)
    return Remote(options.registry or "", key=options.key, timeout=options.timeout).index(model_id, options.warn)


def _folder_of(registry: str) -> Path | None:
    parts = urlsplit(registry)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost", "~", "."):
        raise UsageError(f"{registry!r} names a host; a folder is file:///PATH.")
    folder = Path(unquote(f"{parts.netloc}{parts.path}".removeprefix("localhost"))).expanduser()
    if not folder.is_dir():
        raise Unreachable(f"There is no folder {folder}.")
    return folder


def _entries_of_folder(root: Path, model_id: str | None) -> list[Entry]:
    """From its index.json, and from what lies in the layout without being named there."""
    root = root.absolute()
    try:
        members = listing.split((root / FILE).read_bytes()).members
    except (OSError, ValueError):
        members = {}
    found: dict[str, Entry] = {}
    for key, raw in members.items():
        if model_id is None or key.startswith(f"{model_id}/"):
            try:
                found[key] = read_foreign(key, raw, root)
            except (OSError, ValueError):
                continue
    for path in root.glob(f"{model_id or '[!.]*'}/*/*/*.xyb"):
        name, version, target = path.relative_to(root).parts[:3]
        if path.stem == name:
            size = path.stat().st_size
            entry = Entry(model_id=name, version=version, target=target, size_bytes=size, path=str(path))
            found.setdefault(entry.key, entry)
    return list(found.values())


class FolderSource:
    """A registry that is a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fetch(self, entry: Entry, start: int, side: Side, sink: Sink) -> None:
        with (self._root / entry.path).open("rb") as file:
            file.seek(start)
            while sink.fill(file.readinto, entry.size_bytes - sink.size):
                pass
            if sink.size < entry.size_bytes:
                raise ConnectionError("its file is shorter than its index says")


def copy(store: BundleStore, entry: Entry, options: Options) -> Entry:
    """Downloads into the store, to stay; one process does, the others wait. Leaves nothing of a hostile bundle."""
    source = _checked_source(store, entry, options)
    return fetch_into(store, entry, source, durable=True, report=options.report)


def _fetch(store: FolderStore, entry: Entry, options: Options) -> Entry:
    """Downloads and unpacks, for use here."""

    def unpack(kept: Entry) -> None:
        store.unpack(kept, trusted=True)

    source = _checked_source(store, entry, options)
    return fetch_into(store, entry, source, report=options.report, fetched=unpack)


def _checked_source(store: BundleStore, entry: Entry, options: Options) -> Source:
    check_trust(entry, options.trusted_keys)
    if shutil.disk_usage(store.state).free < entry.size_bytes:
        options.warn(f"The disk has less room than the {entry.size_bytes} bytes of {entry.key}.")
    return _source(options)


def _source(options: Options) -> Source:
    folder = _folder_of(options.registry or "")
    if folder is not None:
        return FolderSource(folder)
    return HttpSource(Remote(options.registry or "", key=options.key, timeout=options.timeout))


def check_trust(entry: Entry, trusted_keys: tuple[str, ...]) -> None:
    """With trusted keys, one of them must have signed the entry. Raises InvalidBundle."""
    if trusted_keys:
        try:
            signature: Any = plugins.load("bundles", "signature")
        except ImportError as error:
            raise CommandFailed(f"Trusted keys need the package cryptography: {install_command('signing')}") from error
        signature.check(entry, trusted_keys)


def look_into(entry: Entry, options: Options) -> metadata.Metadata | None:
    """What a bundle says of itself, without downloading it; None when that cannot be told. Raises InvalidBundle."""
    folder = _folder_of(options.registry or "")
    if folder is not None:
        with (folder / entry.path).open("rb") as file:
            return peek(lambda start, length: os.pread(file.fileno(), length, start), entry.size_bytes)
    remote = Remote(options.registry or "", key=options.key, timeout=options.timeout)
    try:
        return peek(lambda start, length: remote.part(entry, start, length), entry.size_bytes)
    except Unreachable:  # it answers, but not for parts of a file
        return None
