"""What there is: the index as it is served, made anew when a record has changed."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from svc.errors import BundleNotFound
from svc.stores.bundles.base import BundleStore, Draft
from svc.wire.bundle import Entry, shown

LEVEL = 4
"""Of gzip: the hashes in an index do not shrink, whatever one spends."""


class Body(msgspec.Struct, frozen=True):
    """One form of the index. The tags differ, since the bytes do."""

    revision: str
    plain: bytes
    packed: bytes
    etag: str

    def form(self, gzipped: bool) -> tuple[bytes, str]:
        """The bytes and their tag."""
        return (self.packed, f'"{self.etag}-gzip"') if gzipped else (self.plain, f'"{self.etag}"')


def is_served(entry: Entry) -> bool:
    """An entry of another tool whose bundle lies outside the root is used locally and never served."""
    return not entry.path.startswith("/")


def served_path(entry: Entry) -> str:
    """Where the bundle is over HTTP, from `/bundles/`."""
    return Draft(entry.model_id, entry.version, entry.target).path


class More(Protocol):
    """Entries that are not in the store: those of an upstream registry."""

    def entries(self, model_id: str | None = None) -> Sequence[Entry]: ...

    def revision(self) -> str: ...


class Catalog:
    """The index of a store, and of an upstream registry if there is one."""

    def __init__(self, store: BundleStore, upstream: More | None = None) -> None:
        self._store = store
        self._upstream = upstream
        self._body: Body | None = None
        self._making = asyncio.Lock()

    async def index(self) -> Body:
        """The whole index."""
        revision = await asyncio.to_thread(self._revision)
        body = self._body
        if body is None or body.revision != revision:
            async with self._making:
                body = self._body
                if body is None or body.revision != revision:
                    body = self._body = await asyncio.to_thread(self._make)
        return body

    async def index_of(self, model_id: str) -> Body:
        """The index of one model. Raises BundleNotFound."""
        return await asyncio.to_thread(self._make, model_id)

    def _revision(self) -> str:
        return self._store.revision() + (f"/{self._upstream.revision()}" if self._upstream else "")

    def _make(self, model_id: str | None = None) -> Body:
        revision = self._revision()
        own = self._store.entries(model_id)
        others = self._upstream.entries(model_id) if self._upstream else ()
        merged = {entry.key: entry for entry in (*others, *own)}
        entries = [entry for _, entry in sorted(merged.items()) if is_served(entry)]
        if model_id is not None and not entries:
            raise BundleNotFound(f"There is no model {model_id} here.")
        plain = msgspec.json.encode({entry.key: shown(entry, served_path(entry)) for entry in entries})
        packed = gzip.compress(plain, LEVEL, mtime=0)
        return Body(revision=revision, plain=plain, packed=packed, etag=hashlib.sha256(plain).hexdigest()[:32])
