"""What there is: the index as it is served, made anew when a record has changed."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from svc.errors import BundleNotFound
from svc.stores.bundles.base import BundleDraft, BundleStore
from svc.wire.bundle import BundleEntry, entry_for_json

INDEX_GZIP_LEVEL = 4
"""Of gzip: the hashes in an index do not shrink, whatever one spends."""


class IndexBody(msgspec.Struct, frozen=True):
    """One form of the index. The tags differ, since the bytes do."""

    revision: str
    uncompressed: bytes
    gzipped: bytes
    etag: str

    def select_encoding(self, gzipped: bool) -> tuple[bytes, str]:
        """The bytes and their tag."""
        return (self.gzipped, f'"{self.etag}-gzip"') if gzipped else (self.uncompressed, f'"{self.etag}"')


def is_served(entry: BundleEntry) -> bool:
    """An entry of another tool whose bundle lies outside the root is used locally and never served."""
    return not entry.path.startswith("/")


def served_path(entry: BundleEntry) -> str:
    """Where the bundle is over HTTP, from `/bundles/`."""
    return BundleDraft(entry.model_id, entry.version, entry.target).path


class UpstreamIndex(Protocol):
    """Entries that are not in the store: those of an upstream registry."""

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]: ...

    def revision(self) -> str: ...


class RegistryIndex:
    """The index of a store, and of an upstream registry if there is one."""

    def __init__(self, store: BundleStore, upstream: UpstreamIndex | None = None) -> None:
        self._store = store
        self._upstream = upstream
        self._cached_body: IndexBody | None = None
        self._encode_lock = asyncio.Lock()

    async def get_body(self) -> IndexBody:
        """The whole index."""
        revision = await asyncio.to_thread(self._revision)
        body = self._cached_body
        if body is None or body.revision != revision:
            async with self._encode_lock:
                body = self._cached_body
                if body is None or body.revision != revision:
                    body = self._cached_body = await asyncio.to_thread(self._encode)
        return body

    async def get_model_body(self, model_id: str) -> IndexBody:
        """The index of one model. Raises BundleNotFound."""
        return await asyncio.to_thread(self._encode, model_id)

    def _revision(self) -> str:
        return self._store.revision() + (f"/{self._upstream.revision()}" if self._upstream else "")

    def _encode(self, model_id: str | None = None) -> IndexBody:
        revision = self._revision()
        own = self._store.entries(model_id)
        others = self._upstream.entries(model_id) if self._upstream else ()
        merged = {entry.key: entry for entry in (*others, *own)}
        entries = [entry for _, entry in sorted(merged.items()) if is_served(entry)]
        if model_id is not None and not entries:
            raise BundleNotFound(f"There is no model {model_id} here.")
        uncompressed = msgspec.json.encode({entry.key: entry_for_json(entry, served_path(entry)) for entry in entries})
        gzipped = gzip.compress(uncompressed, INDEX_GZIP_LEVEL, mtime=0)
        return IndexBody(
            revision=revision,
            uncompressed=uncompressed,
            gzipped=gzipped,
            etag=hashlib.sha256(uncompressed).hexdigest()[:32],
        )
