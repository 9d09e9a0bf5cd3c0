"""Signatures of published bundles, with the signing key of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from svc import plugins
from svc.bundles.digest import sha256_file
from svc.cli._folders import find_home
from svc.distribution import install_command
from svc.errors import CommandFailed
from svc.stores.bundles.base import BundleDraft
from svc.wire.bundle import BundleEntry, Signature


def load_signing_module() -> Any:
    """Import the signature module. Raises CommandFailed when the extra `signing` is not installed."""
    try:
        return plugins.load("bundles", "signature")
    except ImportError as error:
        raise CommandFailed(
            f"Signing needs the package cryptography; install it with: {install_command('signing')}"
        ) from error


def signing_key_path() -> Path:
    """Return the path of this machine's signing key."""
    return find_home() / "signing.key"


def sign_bundle(file: Path, draft: BundleDraft) -> Signature:
    """Sign a file under the name of the draft."""
    entry = BundleEntry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.platform,
        size_bytes=file.stat().st_size,
        path="",
        sha256=sha256_file(file),
    )
    signature: Signature = load_signing_module().sign(entry, signing_key_path())
    return signature


def require_signature(entry: BundleEntry, signature: Signature | None) -> None:
    """Raise CommandFailed if the published entry lacks the signature: a published entry never changes."""
    if signature is not None and signature not in entry.signatures:
        raise CommandFailed(
            f"{entry.key} was published before without this signature, and a published bundle does not change. "
            "To sign it, publish it as another version."
        )
