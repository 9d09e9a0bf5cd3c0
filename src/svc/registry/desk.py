"""Who may do what, and where an answer comes from: what all connections of a registry share."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Protocol

from svc.errors import AuthenticationFailed, BundleNotFound
from svc.loopback import AllowedHosts, misdirected
from svc.registry.catalog import Catalog, More, is_served
from svc.registry.hashing import Hashing
from svc.registry.metrics import Counters
from svc.registry.shelf import Item, Shelf
from svc.security import Keyring, bearer
from svc.stores.bundles.base import BundleStore
from svc.wire.bundle import Entry


class Upstream(More, Protocol):
    """Another registry, whose bundles are brought here when they are asked for."""

    async def fetch(self, key: str) -> None:
        """Brings a bundle into the store. Raises BundleNotFound, RegistryFailed."""
        ...


class Desk:
    """`private`: reading needs a key. `accel`: the address prefix under which a proxy finds the files itself."""

    def __init__(
        self,
        store: BundleStore,
        keyring: Keyring,
        *,
        private: bool = False,
        accel: str | None = None,
        upstream: Upstream | None = None,
        hosts: AllowedHosts | None = None,
    ) -> None:
        """`hosts`: the `Host` values of requests without a key; None allows any."""
        self.store = store
        self.catalog = Catalog(store, upstream)
        self.shelf = Shelf(store)
        self.hashing = Hashing(store)
        self.counters = Counters()
        self.hosts = hosts or AllowedHosts("")
        self.private = private
        self.accel = accel
        self._keyring = keyring
        self._upstream = upstream
        self._opening: dict[str, asyncio.Task[Item]] = {}
        self._date = (0, b"")

    def may_read_now(self, authorization: str) -> bool:
        """False when the key is not in memory: ask `may_read`. Raises AuthenticationFailed, PermissionDenied."""
        if not self.private:
            return True
        key = self._keyring.look(bearer(authorization))
        if key is not None:
            key.require("registry:read")
        return key is not None

    async def may_read(self, authorization: str) -> None:
        """Raises AuthenticationFailed, PermissionDenied, RateLimited when nobody can say."""
        if self.private:
            (await self._keyring.authenticate(bearer(authorization))).require("registry:read")

    async def may_write(self, authorization: str) -> None:
        """Raises AuthenticationFailed, PermissionDenied, RateLimited when nobody can say."""
        (await self._keyring.authenticate(bearer(authorization))).require("registry:write")

    async def check_host(self, hosts: list[str], authorization: str) -> None:
        """Raises MisdirectedRequest for a `Host` that is not allowed in a request without a key."""
        if self.private or self.hosts.allows(hosts):  # a private registry wants a key anyway
            return
        try:
            await self._keyring.authenticate(bearer(authorization))
        except AuthenticationFailed:
            raise misdirected() from None

    async def may_watch(self, authorization: str) -> None:
        """Raises AuthenticationFailed, PermissionDenied, RateLimited when nobody can say."""
        (await self._keyring.authenticate(bearer(authorization))).require("metrics")

    async def item(self, key: str) -> Item:
        """The open file of a bundle, opened once however many ask for it. Raises BundleNotFound."""
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._open(key))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(task)

    async def entry(self, key: str) -> Entry:
        """The record of a bundle that may be served, with its hash. Raises BundleNotFound."""
        entry = await asyncio.to_thread(self.store.find, key)
        if entry is None and self._upstream is not None:
            await self._upstream.fetch(key)
            entry = await asyncio.to_thread(self.store.find, key)
        if entry is None or not is_served(entry):
            raise BundleNotFound(f"There is no bundle {key} here.")
        return await asyncio.to_thread(self.store.hashed, entry)

    def refresh(self) -> None:
        """Takes in what another tool has written; blocks."""
        self.store.refresh()

    async def _open(self, key: str) -> Item:
        try:
            item = await asyncio.to_thread(self.shelf.open, key)
        except BundleNotFound:
            if self._upstream is None:
                raise
            await self._upstream.fetch(key)
            item = await asyncio.to_thread(self.shelf.open, key)
        self.shelf.put(key, item)
        return item

    def date_line(self) -> bytes:
        """The Date header's line, made once a second."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, f"date: {formatdate(now, usegmt=True)}\r\n".encode())
        return self._date[1]
