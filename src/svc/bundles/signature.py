"""Sign and verify bundles: Ed25519 (RFC 8032) over {id, version, platform, sha256, size}. Needs the extra `signing`.

A key is the 32 bytes of the public or private key in base64.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from svc.errors import InvalidBundle, UsageError
from svc.wire.bundle import BundleEntry, Signature, signed_statement

_NO_LINKS_ERRORS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of `link` on a file system without hard links, such as FAT."""


def make_key(path: Path) -> str:
    """Create the key file with mode 0600 if it is missing, and return the public key."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _create_key_file(path)
    return _encode_public_key(_load_private_key(path))


def _create_key_file(path: Path) -> None:
    """Create the complete file or none, even if the disk is full or another process creates it at the same time."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(base64.b64encode(Ed25519PrivateKey.generate().private_bytes_raw()) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:  # another process created the key first: use its key
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS_ERRORS:
                raise
            os.replace(temporary, path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sign(entry: BundleEntry, path: Path) -> Signature:
    """Sign an entry with the key in that file. Raises UsageError if the file is missing or invalid."""
    key = _load_private_key(path)
    return Signature(_encode_public_key(key), base64.b64encode(key.sign(signed_statement(entry))).decode())


def check(entry: BundleEntry, trusted: Iterable[str]) -> None:
    """Raise InvalidBundle unless one of the trusted keys has signed the entry."""
    trusted_keys = {_normalize_public_key(key): key for key in trusted}
    for signature in entry.signatures:
        if entry.sha256 is not None and signature.key in trusted_keys and is_valid(entry, signature):
            return
    problem = "is not signed" if not entry.signatures else "has no valid signature of a trusted key"
    raise InvalidBundle(f"{entry.key} is rejected: it {problem}.")


def is_valid(entry: BundleEntry, signature: Signature) -> bool:
    """Return whether the signature is valid for the entry."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signature.key, validate=True))
        key.verify(base64.b64decode(signature.value, validate=True), signed_statement(entry))
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def _normalize_public_key(key: str) -> str:
    try:
        raw = base64.b64decode(key.strip(), validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != 32:
        raise UsageError(
            f"{key[:60]!r} is not a public key: 32 bytes in base64, as printed by `svc registry sign-key`."
        )
    return base64.b64encode(raw).decode()


def _load_private_key(path: Path) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(base64.b64decode(path.read_bytes().strip(), validate=True))
    except FileNotFoundError:
        raise UsageError(f"There is no signing key at {path}; create one with: svc registry sign-key") from None
    except (ValueError, binascii.Error):
        raise UsageError(
            f"{path} does not contain a signing key. Restore the file, or remove it and create a new key with: "
            "svc registry sign-key"
        ) from None


def _encode_public_key(key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()
