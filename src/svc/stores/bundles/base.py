"""Define the interface of bundle stores. All calls block, so a server runs them in threads.

Published bundles are immutable, except for `yanked`. `gc` removes only files without a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from svc.bundles.archive import ArchiveLimits, read_metadata
from svc.bundles.metadata import BundleMetadata
from svc.bundles.open_archive import open_archive
from svc.bundles.reference import LATEST_VERSION, check_name
from svc.errors import InvalidBundle, InvalidRequest
from svc.stores.bundles.upload import BundleUpload, CompleteFile
from svc.wire.bundle import BundleEntry, Signature


class BundleDraft(msgspec.Struct, frozen=True):
    """The name under which a bundle is published."""

    model_id: str
    version: str
    platform: str
    signatures: tuple[Signature, ...] = ()

    @property
    def key(self) -> str:
        """Return `<model_id>/<version>/<platform>`."""
        return f"{self.model_id}/{self.version}/{self.platform}"

    @property
    def path(self) -> str:
        """Return the path of the bundle, relative to the root."""
        return f"{self.key}/{self.model_id}.xyb"

    def validate(self) -> None:
        """Raise InvalidRequest for an invalid name."""
        check_name("model_id", self.model_id)
        check_name("version", self.version)
        check_name("platform", self.platform)

    def validate_new(self) -> None:
        """Raise InvalidRequest for a name that no new bundle may have: no reference selects a version `latest`."""
        self.validate()
        if self.version == LATEST_VERSION:
            raise InvalidRequest(
                f"The version {LATEST_VERSION!r} is reserved: {self.model_id}@{LATEST_VERSION} selects the newest "
                "version. Choose a version such as 1.0.0 in model_metadata.json.",
                param="version",
            )


def is_served(entry: BundleEntry) -> bool:
    """Return whether servers show the entry. A bundle of another tool outside the root is for local use only."""
    return not entry.path.startswith("/")


class VerifyFinding(msgspec.Struct, frozen=True):
    """One result of `verify`. `state` is ok, damaged, missing, unlisted, added, mended or removed."""

    key: str
    state: str
    detail: str = ""


class BundleStore(Protocol):
    """A store of bundles."""

    work_dir: Path
    """A local folder for work in progress: `uploads`, `downloads`, `locks`."""

    limits: ArchiveLimits
    """The limits of a bundle's unpacked content."""

    @property
    def is_on_disk(self) -> bool:
        """Return whether bundles are local files, which `local_file` returns."""
        ...

    def refresh(self) -> None:
        """Pick up changes of other processes."""
        ...

    def list_unhashed(self) -> Sequence[BundleEntry]:
        """Return the records without a hash, which other tools wrote."""
        ...

    def ensure_hash(self, entry: BundleEntry) -> BundleEntry:
        """Return the entry with its hash, computed if it is missing. Raises BundleNotFound."""
        ...

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]:
        """Return every record, or those of one model, sorted by key."""
        ...

    def find(self, key: str) -> BundleEntry | None:
        """Return the record of `<model_id>/<version>/<platform>`, or None."""
        ...

    def revision(self) -> str:
        """Return a token that changes with every record change. Cheap to call."""
        ...

    def create_upload(self, size: int | None = None) -> BundleUpload:
        """Create an upload of `size` bytes. Raises InsufficientStorage."""
        ...

    def publish(self, upload: BundleUpload | CompleteFile, draft: BundleDraft) -> tuple[BundleEntry, bool]:
        """Check and publish an upload. Returns its entry, and whether it is new.

        The upload is consumed, even after an error. Raises AlreadyExists, InvalidBundle and InsufficientStorage.
        """
        ...

    def set_yanked(self, key: str, yanked: bool) -> BundleEntry:
        """Set or clear the yanked flag of a bundle. Raises BundleNotFound."""
        ...

    def location(self, entry: BundleEntry) -> str:
        """Return the location of the bundle for display."""
        ...

    def import_file(self, path: Path, entry: BundleEntry, sha256: str, *, durable: bool = True) -> BundleEntry:
        """Store a downloaded and verified file under that entry. Raises AlreadyExists."""
        ...

    def is_complete(self, entry: BundleEntry) -> bool:
        """Return whether the bundle's bytes exist with the right size."""
        ...

    def local_file(self, entry: BundleEntry) -> Path | None:
        """Return the bundle's file, or None if the store has no local file that may be served."""
        ...

    def presigned_url(self, entry: BundleEntry) -> str | None:
        """Return a presigned URL of the bundle, or None if the store does not support it."""
        ...

    def read_range(self, entry: BundleEntry, start: int, end: int) -> Iterator[bytes]:
        """Yield the bundle's bytes from `start` to `end`, exclusive."""
        ...

    def verify(self, *, repair: bool = False) -> Iterator[VerifyFinding]:
        """Hash every bundle again, and yield the results."""
        ...

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        """Remove files without a record, and yield their names."""
        ...

    def close(self) -> None:
        """Finish pending work, and release resources."""
        ...


def validate_bundle(path: Path, draft: BundleDraft, limits: ArchiveLimits) -> BundleMetadata:
    """Check that the file is a valid bundle of that name. Raises InvalidBundle."""
    with open_archive(path, limits) as archive:
        metadata = read_metadata(archive)
        if (metadata.model_id, metadata.version) != (draft.model_id, draft.version):
            raise InvalidBundle(
                f"The bundle says it is {metadata.model_id}@{metadata.version}, not {draft.model_id}@{draft.version}."
            )
        archive.verify()
    return metadata
