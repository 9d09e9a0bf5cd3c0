"""Authorize requests, and find bundles, for all connections of a registry."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Protocol

from svc.allowed_hosts import AllowedHosts, host_not_allowed_error
from svc.errors import AuthenticationFailed, BundleNotFound
from svc.registry.hashing import EntryHasher
from svc.registry.index import RegistryIndex, UpstreamIndex
from svc.registry.metrics import RegistryCounters
from svc.registry.open_files import OpenFile, OpenFileCache
from svc.registry.traces import RegistryTracer
from svc.security import Keyring, secret_from_headers
from svc.stores.bundles.base import BundleStore, is_served
from svc.wire.bundle import BundleEntry


class UpstreamRegistry(UpstreamIndex, Protocol):
    """An upstream registry, whose bundles are downloaded on demand."""

    async def fetch(self, key: str) -> None:
        """Download a bundle into the store. Raises BundleNotFound and RegistryFailed."""
        ...


class RegistryService:
    """The state that connections share. `is_private`: reading needs a key. `accel_prefix`: for X-Accel-Redirect."""

    def __init__(
        self,
        store: BundleStore,
        keyring: Keyring,
        *,
        is_private: bool = False,
        accel_prefix: str | None = None,
        upstream: UpstreamRegistry | None = None,
        hosts: AllowedHosts | None = None,
        cors_origins: tuple[str, ...] = (),
        tracer: RegistryTracer | None = None,
    ) -> None:
        """`hosts` are the accepted `Host` values of requests without a key, `cors_origins` the pages that may read."""
        self.store = store
        self.index = RegistryIndex(store, upstream)
        self.open_files = OpenFileCache(store)
        self.hasher = EntryHasher(store)
        self.counters = RegistryCounters()
        self.hosts = hosts or AllowedHosts("")
        self.cors_origins = cors_origins
        self.tracer = tracer
        """Makes the spans of requests. None if traces are not exported."""
        self.is_private = is_private
        self.accel_prefix = accel_prefix
        self._keyring = keyring
        self._upstream = upstream
        self._pending_opens: dict[str, asyncio.Task[OpenFile]] = {}
        self._cached_date_header = (0, b"")

    def try_authorize_read(self, authorization: str) -> bool:
        """Return False if the key is not cached. Raises AuthenticationFailed and PermissionDenied."""
        if not self.is_private:
            return True
        key = self._keyring.lookup_cached(secret_from_headers(authorization))
        if key is not None:
            key.require_scope("registry:read")
        return key is not None

    async def authorize_read(self, authorization: str) -> None:
        """Raise AuthenticationFailed, PermissionDenied, or RateLimited if the key cannot be checked."""
        if self.is_private:
            (await self._keyring.authenticate(secret_from_headers(authorization))).require_scope("registry:read")

    async def authorize_write(self, authorization: str) -> None:
        """Raise AuthenticationFailed, PermissionDenied, or RateLimited if the key cannot be checked."""
        (await self._keyring.authenticate(secret_from_headers(authorization))).require_scope("registry:write")

    async def check_host(self, hosts: list[str], authorization: str) -> None:
        """Raise MisdirectedRequest for a `Host` that requests without a key may not use."""
        if self.is_private or self.hosts.allows(hosts):  # a private registry requires a key anyway
            return
        try:
            await self._keyring.authenticate(secret_from_headers(authorization))
        except AuthenticationFailed:
            raise host_not_allowed_error() from None

    async def authorize_metrics(self, authorization: str) -> None:
        """Raise AuthenticationFailed, PermissionDenied, or RateLimited if the key cannot be checked."""
        (await self._keyring.authenticate(secret_from_headers(authorization))).require_scope("metrics")

    async def get_open_file(self, key: str) -> OpenFile:
        """Return the open file of a bundle. Concurrent calls open it once. Raises BundleNotFound."""
        task = self._pending_opens.get(key)
        if task is None:
            task = self._pending_opens[key] = asyncio.create_task(self._open_file(key))
            task.add_done_callback(lambda _: self._pending_opens.pop(key, None))
        return await asyncio.shield(task)

    async def get_entry(self, key: str) -> BundleEntry:
        """Return the record of a bundle that may be served, with its hash. Raises BundleNotFound."""
        entry = await asyncio.to_thread(self.store.find, key)
        if entry is None and self._upstream is not None:
            await self._upstream.fetch(key)
            entry = await asyncio.to_thread(self.store.find, key)
        if entry is None or not is_served(entry):
            raise BundleNotFound(f"There is no bundle {key} here.")
        return await asyncio.to_thread(self.store.ensure_hash, entry)

    def refresh(self) -> None:
        """Import changes of other tools. Blocks."""
        self.store.refresh()

    async def _open_file(self, key: str) -> OpenFile:
        try:
            file = await asyncio.to_thread(self.open_files.open, key)
        except BundleNotFound:
            if self._upstream is None:
                raise
            await self._upstream.fetch(key)
            file = await asyncio.to_thread(self.open_files.open, key)
        self.open_files.put(key, file)
        return file

    def date_header_line(self) -> bytes:
        """Return the Date header line, cached for a second."""
        now = int(time.time())
        if self._cached_date_header[0] != now:
            self._cached_date_header = (now, f"date: {formatdate(now, usegmt=True)}\r\n".encode())
        return self._cached_date_header[1]
