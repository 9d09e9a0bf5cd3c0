"""Open files of bundles that were asked for lately. A file that is open is answered without waiting for a thread."""

from __future__ import annotations

import os
import time
from collections import OrderedDict

from svc.errors import BundleNotFound
from svc.registry.catalog import is_served
from svc.stores.bundles.base import BundleStore
from svc.wire.bundle import Entry

OPEN_FILES = 256
TRUST_SECONDS = 1.0
"""So long an open file is taken to be the one that its name stands for."""


class Item:
    """An open bundle. Its descriptor is closed when nobody has the item any more."""

    __slots__ = ("__weakref__", "checked", "etag", "fd", "inode", "inside", "path", "size", "tail")

    def __init__(self, path: str, entry: Entry) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = path
        self.inside = entry.path
        """The path from the root."""
        self.size = entry.size_bytes
        self.etag = f'"sha256:{entry.sha256}"'
        status = os.fstat(self.fd)
        self.inode = status.st_ino
        self.checked = time.monotonic()
        if status.st_size != entry.size_bytes:
            raise BundleNotFound("The bundle's file is damaged; see: svc registry verify")
        self.tail = b""

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def is_current(self) -> bool:
        """Whether the name still stands for this file."""
        now = time.monotonic()
        if now - self.checked < TRUST_SECONDS:
            return True
        self.checked = now
        try:
            return os.stat(self.path).st_ino == self.inode
        except OSError:
            return False


class Shelf:
    """The open files, those not used for longest closed first."""

    def __init__(self, store: BundleStore) -> None:
        self._store = store
        self._items: OrderedDict[str, Item] = OrderedDict()

    def get(self, key: str) -> Item | None:
        """The open file of a key; does not block."""
        item = self._items.get(key)
        if item is None:
            return None
        if not item.is_current():
            del self._items[key]
            return None
        self._items.move_to_end(key)
        return item

    def put(self, key: str, item: Item) -> None:
        """Keeps an open file."""
        self._items[key] = item
        while len(self._items) > OPEN_FILES:
            self._items.popitem(last=False)

    def open(self, key: str) -> Item:
        """Looks it up and opens it, in a thread. Raises BundleNotFound."""
        entry = self._store.find(key)
        if entry is None or not is_served(entry):
            raise BundleNotFound(f"There is no bundle {key} here.")
        entry = self._store.hashed(entry)
        path = self._store.file(entry)
        if path is None:
            raise BundleNotFound(f"There is no bundle {key} here.")
        try:
            return Item(str(path), entry)
        except OSError as error:
            raise BundleNotFound(f"The file of {key} is missing; see: svc registry verify") from error

    def clear(self) -> None:
        """Closes everything."""
        self._items.clear()
