"""Encode the index that the registry serves, and cache it until a record changes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from svc.errors import BundleNotFound
from svc.stores.bundles.base import BundleDraft, BundleStore, is_served
from svc.wire.bundle import BundleEntry, entry_for_json

INDEX_GZIP_LEVEL = 4
"""gzip level. Higher levels gain little, since hashes do not compress."""


class IndexBody(msgspec.Struct, frozen=True):
    """The index in both encodings. The ETags differ because the bytes differ (RFC 9110, section 8.8.3)."""

    revision: str
    uncompressed: bytes
    gzipped: bytes
    etag: str

    def select_encoding(self, gzipped: bool) -> tuple[bytes, str]:
        """Return the body and its ETag."""
        return (self.gzipped, f'"{self.etag}-gzip"') if gzipped else (self.uncompressed, f'"{self.etag}"')


def served_path(entry: BundleEntry) -> str:
    """Return the URL path of the bundle, relative to `/bundles/`."""
    return BundleDraft(entry.model_id, entry.version, entry.target).path


class UpstreamIndex(Protocol):
    """Entries of an upstream registry that are not in the store."""

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]: ...

    def revision(self) -> str: ...


class RegistryIndex:
    """The index of a store, and of its upstream registry if configured."""

    def __init__(self, store: BundleStore, upstream: UpstreamIndex | None = None) -> None:
        self._store = store
        self._upstream = upstream
        self._cached_body: IndexBody | None = None
        self._encode_lock = asyncio.Lock()

    async def get_body(self) -> IndexBody:
        """Return the whole index."""
        revision = await asyncio.to_thread(self._revision)
        body = self._cached_body
        if body is None or body.revision != revision:
            async with self._encode_lock:
                body = self._cached_body
                if body is None or body.revision != revision:
                    body = self._cached_body = await asyncio.to_thread(self._encode)
        return body

    async def get_model_body(self, model_id: str) -> IndexBody:
        """Return the index of one model. Raises BundleNotFound."""
        return await asyncio.to_thread(self._encode, model_id)

    def _revision(self) -> str:
        return self._store.revision() + (f"/{self._upstream.revision()}" if self._upstream else "")

    def _encode(self, model_id: str | None = None) -> IndexBody:
        revision = self._revision()
        own_entries = self._store.entries(model_id)
        upstream_entries = self._upstream.entries(model_id) if self._upstream else ()
        merged = {entry.key: entry for entry in (*upstream_entries, *own_entries)}
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
