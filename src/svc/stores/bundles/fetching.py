"""Downloads a bundle into a store of bundles: one process does, the others wait."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from svc.bundles.archive import Limits, metadata_of
from svc.bundles.download import Report, Source, download, forget
from svc.bundles.opening import open_archive
from svc.errors import InvalidBundle
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.locks import held
from svc.wire.bundle import Entry

PATIENCE = 86400.0


def fetch_into(
    store: BundleStore,
    entry: Entry,
    source: Source,
    *,
    durable: bool = False,
    report: Report | None = None,
    fetched: Callable[[Entry], object] = lambda _: None,
) -> Entry:
    """The bundle is here afterwards. Leaves nothing of a hostile one.

    What is only used here can be had again after a power failure; `durable` is for what may be all that there is.
    `fetched` is called, if nobody else was first, with what has just been kept and checked, before others go on.

    Raises RegistryFailed, BundleNotFound, InvalidBundle, InsufficientStorage.
    """
    folder = store.state / "downloads"
    name = hashlib.sha256(entry.key.encode()).hexdigest()[:32]
    with held(store.state / "locks" / f"download-{name}.lock", patience=PATIENCE):
        known = store.find(entry.key)
        if known is not None and store.is_whole(known):
            return known
        part, digest = download(entry, source, folder, name, report)
        try:
            _check(part, entry, store.limits)
            kept = store.adopt(part, entry, digest, durable=durable)
        finally:
            forget(folder, name)
        fetched(kept)
        return kept


def _check(part: Path, entry: Entry, limits: Limits) -> None:
    """Whether this is a whole bundle of that name: a hash that holds does not say that its members are sound."""
    with open_archive(part, limits) as archive:
        about = metadata_of(archive)
        if (about.model_id, about.version) != (entry.model_id, entry.version):
            raise InvalidBundle(f"The bundle of {entry.key} says it is {about.model_id}@{about.version}.")
        archive.verify()
