"""The bundles of `/v1/admin/bundles`: the record of each, its signature state, and a summary of its metadata."""

from __future__ import annotations

import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from svc.bundles.metadata import BundleMetadata
from svc.bundles.open_archive import open_archive
from svc.bundles.remote_metadata import read_remote_metadata
from svc.errors import InvalidBundle, SvcError
from svc.stores.bundles.base import BundleStore
from svc.wire.bundle import BundleEntry, Signature

SUMMARY_TIME_BUDGET_SECONDS: Final = 0.2
"""Seconds in which a list reads metadata that is not cached. Later bundles are listed without a summary."""
MAX_CACHED_SUMMARIES: Final = 4096
MAX_SUMMARY_CHARACTERS: Final = 2000
"""Maximum characters of a text in a summary."""
MAX_SHOWN_LANGUAGES: Final = 100
MAX_SHOWN_FILES: Final = 1000
"""Maximum files in the details of a bundle."""

SignatureState = Literal["valid", "unsigned", "unknown_key", "invalid", "unchecked"]


class BundleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The customary fields of a bundle's metadata."""

    type: str
    """The type of the engine that runs the model."""
    description: str | None
    """One line for people."""
    task: str | None
    """The task of the model, from the bundle's author."""
    license: str | None
    """The licence of the model, from the bundle's author."""
    author: str | None
    """The author of the model, from the bundle's author."""
    languages: list[str]
    """The languages of the model, from the bundle's author."""


class BundleState(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle in the registry folder or bucket of this gateway."""

    key: str
    """`<model_id>/<version>/<platform>`."""
    model_id: str
    """The name of the model."""
    version: str
    """The version."""
    platform: str
    """The platform, such as `linux-x86_64` or `any`."""
    size_bytes: int
    """Bytes of the bundle."""
    sha256: str | None
    """The SHA-256 in hex. Null until it is computed."""
    created: str | None
    """When the bundle was published: ISO 8601, UTC. Null if another tool wrote the record."""
    yanked: bool
    """Whether the bundle is withdrawn: left out of `latest` and of version ranges."""
    signature: SignatureState
    """`valid`: by a key of SVC_TRUSTED_KEYS. `unknown_key`: correct, but by no such key. `invalid`: not correct.
    `unchecked`: the package for signatures is not installed."""
    signature_keys: list[str]
    """The public keys of the signatures, in base64."""
    summary: BundleSummary | None
    """The summary of the metadata. Null if it cannot be read, or not yet."""
    pull_command: str
    """The command that downloads the bundle from this registry."""


class BundleFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a bundle."""

    path: str
    """The path in the bundle."""
    size_bytes: int
    """Bytes, unpacked."""


class BundleDetail(BundleState, frozen=True, kw_only=True):
    """A bundle with its metadata and its files."""

    metadata: dict[str, Any] | None
    """The fields of `model_metadata.json` that the program knows. Null if it cannot be read."""
    files: list[BundleFile] | None
    """The files, at most 1000, in the order of paths. Null for a bundle in a bucket, or one that cannot be read."""
    file_count: int | None
    """The number of all files."""
    unpacked_bytes: int | None
    """Bytes of all files, unpacked."""
    problem: str | None
    """Why the bundle cannot be read."""


class BundleViews:
    """Builds the views of one store. The metadata of published bundles is cached, as it never changes. Blocks."""

    def __init__(self, store: BundleStore, trusted_keys: Iterable[str], registry_url: str | None) -> None:
        self._store = store
        self._trusted_keys = frozenset(trusted_keys)
        self._registry_url = registry_url
        self._summaries: OrderedDict[tuple[str, str | None, int], BundleSummary | None] = OrderedDict()
        self._lock = threading.Lock()

    def list_states(self, entries: Iterable[BundleEntry]) -> list[BundleState]:
        """Return the states of bundles."""
        deadline = time.monotonic() + SUMMARY_TIME_BUDGET_SECONDS
        return [
            BundleState(**self._fields(entry, self._summarize(entry, may_read=time.monotonic() < deadline)))
            for entry in entries
        ]

    def has_summary(self, entry: BundleEntry) -> bool:
        """Return whether the summary of a bundle is cached."""
        with self._lock:
            return _cache_key(entry) in self._summaries

    def load_summary(self, entry: BundleEntry) -> None:
        """Read the metadata of a bundle into the cache."""
        self._summarize(entry, may_read=True)

    def describe(self, entry: BundleEntry) -> BundleDetail:
        """Return a bundle with its metadata and files."""
        metadata, sizes, problem = None, None, None
        try:
            metadata = self._read_metadata(entry)
            path = self._store.local_file(entry)
            if path is not None:
                with open_archive(path, self._store.limits) as archive:
                    sizes = archive.file_sizes
        except SvcError as error:
            problem = error.message
        except OSError:
            problem = "The file of the bundle cannot be read."
        fields = self._fields(entry, None if metadata is None else _summarize(metadata))
        return BundleDetail(
            **fields,
            metadata=None if metadata is None else msgspec.to_builtins(metadata),
            files=None
            if sizes is None
            else [BundleFile(path=name, size_bytes=sizes[name]) for name in sorted(sizes)[:MAX_SHOWN_FILES]],
            file_count=None if sizes is None else len(sizes),
            unpacked_bytes=None if sizes is None else sum(sizes.values()),
            problem=problem,
        )

    def _fields(self, entry: BundleEntry, summary: BundleSummary | None) -> dict[str, Any]:
        return {
            "key": entry.key,
            "model_id": entry.model_id,
            "version": entry.version,
            "platform": entry.target,
            "size_bytes": entry.size_bytes,
            "sha256": entry.sha256,
            "created": entry.created,
            "yanked": entry.yanked,
            "signature": signature_state(entry, self._trusted_keys),
            "signature_keys": [signature.key for signature in entry.signatures],
            "summary": summary,
            "pull_command": _pull_command(entry, self._registry_url),
        }

    def _summarize(self, entry: BundleEntry, *, may_read: bool) -> BundleSummary | None:
        cache_key = _cache_key(entry)
        with self._lock:
            if cache_key in self._summaries:
                self._summaries.move_to_end(cache_key)
                return self._summaries[cache_key]
        if not may_read:
            return None
        summary = None
        try:
            metadata = self._read_metadata(entry)
            summary = None if metadata is None else _summarize(metadata)
        except InvalidBundle:  # the details say why
            pass
        except (SvcError, OSError):  # it may be readable later
            return None
        with self._lock:
            self._summaries[cache_key] = summary
            if len(self._summaries) > MAX_CACHED_SUMMARIES:
                self._summaries.popitem(last=False)
        return summary

    def _read_metadata(self, entry: BundleEntry) -> BundleMetadata | None:
        def read(start: int, length: int) -> bytes:
            return b"".join(self._store.read_range(entry, start, start + length))

        return read_remote_metadata(read, entry.size_bytes)


def _cache_key(entry: BundleEntry) -> tuple[str, str | None, int]:
    return entry.key, entry.sha256, entry.size_bytes


def signature_state(entry: BundleEntry, trusted_keys: Collection[str]) -> SignatureState:
    """Return the state of a bundle's signatures. One valid signature of a trusted key is enough."""
    if not entry.signatures:
        return "unsigned"
    is_valid = _load_signature_check()
    if is_valid is None:
        return "unchecked"
    valid = [signature for signature in entry.signatures if entry.sha256 and is_valid(entry, signature)]
    if any(signature.key in trusted_keys for signature in valid):
        return "valid"
    return "unknown_key" if valid else "invalid"


def _load_signature_check() -> Callable[[BundleEntry, Signature], bool] | None:
    """Return the check, or None without the extra that it needs."""
    try:
        from svc.bundles.signature import is_valid  # noqa: PLC0415 needs an extra
    except ImportError:
        return None
    return is_valid


def _summarize(metadata: BundleMetadata) -> BundleSummary:
    more: Mapping[str, Any] = metadata.metadata or {}
    languages = more.get("languages", more.get("language"))
    languages = [languages] if isinstance(languages, str) else languages if isinstance(languages, list) else []
    return BundleSummary(
        type=metadata.type[:MAX_SUMMARY_CHARACTERS],
        description=_text(metadata.description),
        task=_text(more.get("task")),
        license=_text(more.get("licence", more.get("license"))),
        author=_text(more.get("author")),
        languages=[each[:MAX_SUMMARY_CHARACTERS] for each in languages[:MAX_SHOWN_LANGUAGES] if isinstance(each, str)],
    )


def _text(value: object) -> str | None:
    return value[:MAX_SUMMARY_CHARACTERS] if isinstance(value, str) else None


def _pull_command(entry: BundleEntry, registry_url: str | None) -> str:
    words = ["svc", "registry", "pull", f"{entry.model_id}@{entry.version}", "--platform", entry.target]
    if registry_url is not None:
        words += ["--registry", registry_url]
    return shlex.join(words)
