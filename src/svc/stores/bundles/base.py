"""The seam: what every store of bundles can do. All calls block; a server makes them in threads.

What is published never changes. Only `yanked` does, and `gc` removes only what no record names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from svc.bundles.archive import Limits, metadata_of
from svc.bundles.metadata import Metadata
from svc.bundles.opening import open_archive
from svc.bundles.reference import check_name
from svc.errors import InvalidBundle
from svc.stores.bundles.spool import Spool
from svc.wire.bundle import Entry, Signature


class Draft(msgspec.Struct, frozen=True):
    """Under which name something is to be published."""

    model_id: str
    version: str
    target: str
    signatures: tuple[Signature, ...] = ()

    @property
    def key(self) -> str:
        """`<model_id>/<version>/<platform>`."""
        return f"{self.model_id}/{self.version}/{self.target}"

    @property
    def path(self) -> str:
        """Where the bundle lies, from the root."""
        return f"{self.key}/{self.model_id}.xyb"

    def check(self) -> None:
        """Raises InvalidRequest for names that cannot be."""
        check_name("model_id", self.model_id)
        check_name("version", self.version)
        check_name("platform", self.target)


class Finding(msgspec.Struct, frozen=True):
    """One result of `verify`: `state` is ok, damaged, missing, unlisted, added, mended or removed."""

    key: str
    state: str
    detail: str = ""


class BundleStore(Protocol):
    """A store of bundles."""

    state: Path
    """A folder of this machine, for what is under way: `uploads`, `downloads`, `locks`."""

    limits: Limits
    """What its bundles may unpack to."""

    @property
    def on_disk(self) -> bool:
        """Whether bundles are files of this machine, which `file` gives."""
        ...

    def refresh(self) -> None:
        """Notices what others have changed."""
        ...

    def unhashed(self) -> Sequence[Entry]:
        """The records that have no hash, which are those of another tool."""
        ...

    def hashed(self, entry: Entry) -> Entry:
        """The entry with its hash, which one of another tool may lack. Raises BundleNotFound."""
        ...

    def entries(self, model_id: str | None = None) -> Sequence[Entry]:
        """Every record, or those of one model, sorted by key."""
        ...

    def find(self, key: str) -> Entry | None:
        """The record of `<model_id>/<version>/<platform>`."""
        ...

    def revision(self) -> str:
        """Changes whenever a record does; cheap."""
        ...

    def spool(self, size: int | None = None) -> Spool:
        """A place for an upload of so many bytes. Raises InsufficientStorage."""
        ...

    def publish(self, spool: Spool, draft: Draft) -> tuple[Entry, bool]:
        """Checks and keeps an upload; True when it is new. Raises AlreadyExists, InvalidBundle, InsufficientStorage.

        The upload is used up, whatever happens.
        """
        ...

    def set_yanked(self, key: str, yanked: bool) -> Entry:
        """Withdraws a bundle, or takes that back. Raises BundleNotFound."""
        ...

    def where(self, entry: Entry) -> str:
        """Where the bundle lies, for a person to read."""
        ...

    def adopt(self, path: Path, entry: Entry, sha256: str, *, durable: bool = True) -> Entry:
        """Keeps a downloaded file, whose hash was checked, as that entry. Raises AlreadyExists."""
        ...

    def is_whole(self, entry: Entry) -> bool:
        """Whether the bundle's bytes are there in their full number."""
        ...

    def file(self, entry: Entry) -> Path | None:
        """The bundle's file, where it is one that may be served."""
        ...

    def address(self, entry: Entry) -> str | None:
        """A presigned address to read the bundle from, where there is such a thing."""
        ...

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """The bundle's bytes from start up to end."""
        ...

    def verify(self, *, repair: bool = False) -> Iterator[Finding]:
        """Hashes everything again."""
        ...

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        """Removes what no record names, and gives the names."""
        ...

    def close(self) -> None:
        """Finishes what is under way."""
        ...


def check_bundle(path: Path, draft: Draft, limits: Limits) -> Metadata:
    """Whether the file is a whole bundle of that name. Raises InvalidBundle."""
    with open_archive(path, limits) as archive:
        about = metadata_of(archive)
        if (about.model_id, about.version) != (draft.model_id, draft.version):
            raise InvalidBundle(
                f"The bundle says it is {about.model_id}@{about.version}, not {draft.model_id}@{draft.version}."
            )
        archive.verify()
    return about
