"""The seam: what every store of bundles can do. All calls block; a server makes them in threads.

What is published never changes. Only `yanked` does, and `gc` removes only what no record names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from svc.bundles.archive import ArchiveLimits, read_metadata
from svc.bundles.metadata import BundleMetadata
from svc.bundles.open_archive import open_archive
from svc.bundles.reference import check_name
from svc.errors import InvalidBundle
from svc.stores.bundles.upload import BundleUpload
from svc.wire.bundle import BundleEntry, Signature


class BundleDraft(msgspec.Struct, frozen=True):
    """Under which name something is to be published."""

    model_id: str
    version: str
    platform: str
    signatures: tuple[Signature, ...] = ()

    @property
    def key(self) -> str:
        """`<model_id>/<version>/<platform>`."""
        return f"{self.model_id}/{self.version}/{self.platform}"

    @property
    def path(self) -> str:
        """Where the bundle lies, from the root."""
        return f"{self.key}/{self.model_id}.xyb"

    def validate(self) -> None:
        """Raises InvalidRequest for names that cannot be."""
        check_name("model_id", self.model_id)
        check_name("version", self.version)
        check_name("platform", self.platform)


class VerifyFinding(msgspec.Struct, frozen=True):
    """One result of `verify`: `state` is ok, damaged, missing, unlisted, added, mended or removed."""

    key: str
    state: str
    detail: str = ""


class BundleStore(Protocol):
    """A store of bundles."""

    work_dir: Path
    """A folder of this machine, for what is under way: `uploads`, `downloads`, `locks`."""

    limits: ArchiveLimits
    """What its bundles may unpack to."""

    @property
    def is_on_disk(self) -> bool:
        """Whether bundles are files of this machine, which `file` gives."""
        ...

    def refresh(self) -> None:
        """Notices what others have changed."""
        ...

    def list_unhashed(self) -> Sequence[BundleEntry]:
        """The records that have no hash, which are those of another tool."""
        ...

    def ensure_hash(self, entry: BundleEntry) -> BundleEntry:
        """The entry with its hash, which one of another tool may lack. Raises BundleNotFound."""
        ...

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]:
        """Every record, or those of one model, sorted by key."""
        ...

    def find(self, key: str) -> BundleEntry | None:
        """The record of `<model_id>/<version>/<platform>`."""
        ...

    def revision(self) -> str:
        """Changes whenever a record does; cheap."""
        ...

    def create_upload(self, size: int | None = None) -> BundleUpload:
        """A place for an upload of so many bytes. Raises InsufficientStorage."""
        ...

    def publish(self, upload: BundleUpload, draft: BundleDraft) -> tuple[BundleEntry, bool]:
        """Checks and keeps an upload; True when it is new. Raises AlreadyExists, InvalidBundle, InsufficientStorage.

        The upload is used up, whatever happens.
        """
        ...

    def set_yanked(self, key: str, yanked: bool) -> BundleEntry:
        """Withdraws a bundle, or takes that back. Raises BundleNotFound."""
        ...

    def location(self, entry: BundleEntry) -> str:
        """Where the bundle lies, for a person to read."""
        ...

    def import_file(self, path: Path, entry: BundleEntry, sha256: str, *, durable: bool = True) -> BundleEntry:
        """Keeps a downloaded file, whose hash was checked, as that entry. Raises AlreadyExists."""
        ...

    def is_complete(self, entry: BundleEntry) -> bool:
        """Whether the bundle's bytes are there in their full number."""
        ...

    def local_file(self, entry: BundleEntry) -> Path | None:
        """The bundle's file, where it is one that may be served."""
        ...

    def presigned_url(self, entry: BundleEntry) -> str | None:
        """A presigned address to read the bundle from, where there is such a thing."""
        ...

    def read_range(self, entry: BundleEntry, start: int, end: int) -> Iterator[bytes]:
        """The bundle's bytes from start up to end."""
        ...

    def verify(self, *, repair: bool = False) -> Iterator[VerifyFinding]:
        """Hashes everything again."""
        ...

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        """Removes what no record names, and gives the names."""
        ...

    def close(self) -> None:
        """Finishes what is under way."""
        ...


def validate_bundle(path: Path, draft: BundleDraft, limits: ArchiveLimits) -> BundleMetadata:
    """Whether the file is a whole bundle of that name. Raises InvalidBundle."""
    with open_archive(path, limits) as archive:
        metadata = read_metadata(archive)
        if (metadata.model_id, metadata.version) != (draft.model_id, draft.version):
            raise InvalidBundle(
                f"The bundle says it is {metadata.model_id}@{metadata.version}, not {draft.model_id}@{draft.version}."
            )
        archive.verify()
    return metadata
