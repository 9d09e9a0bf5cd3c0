"""A signature covers every identifying field of one entry."""

import base64
import errno
import os
import resource

import msgspec
import pytest

from svc.bundles import signature
from svc.errors import InvalidBundle, UsageError
from svc.wire.bundle import BundleEntry, Signature

ENTRY = BundleEntry(model_id="m", version="1", target="any", size_bytes=10, path="x", sha256="a" * 64)


@pytest.fixture
def signed(tmp_path):
    """A signed entry, and the public key."""
    public = signature.make_key(tmp_path / "key")
    return msgspec.structs.replace(ENTRY, signatures=(signature.sign(ENTRY, tmp_path / "key"),)), public


def test_check_signed_entry_is_accepted(signed):
    entry, public = signed
    signature.check(entry, [public])
    signature.check(msgspec.structs.replace(entry, path="elsewhere", created="2030-01-01T00:00:00Z"), [public])


@pytest.mark.parametrize(
    "change", [{"model_id": "n"}, {"version": "2"}, {"target": "ios-arm64"}, {"size_bytes": 11}, {"sha256": "b" * 64}]
)
def test_check_changed_field_is_rejected(signed, change):
    entry, public = signed
    with pytest.raises(InvalidBundle):
        signature.check(msgspec.structs.replace(entry, **change), [public])


def test_check_foreign_or_missing_signature_is_rejected(signed, tmp_path):
    entry, public = signed
    stranger = signature.make_key(tmp_path / "stranger")
    for forged in (
        (),
        (signature.sign(ENTRY, tmp_path / "stranger"),),
        (Signature(public, signature.sign(ENTRY, tmp_path / "stranger").value),),
        (Signature(public, "no base64!"), Signature(public, base64.b64encode(b"short").decode())),
    ):
        with pytest.raises(InvalidBundle):
            signature.check(msgspec.structs.replace(entry, signatures=forged), [public])
    with pytest.raises(InvalidBundle):
        signature.check(entry, [stranger])
    with pytest.raises(InvalidBundle):
        signature.check(msgspec.structs.replace(entry, sha256=None), [public])
    with pytest.raises(UsageError):
        signature.check(entry, ["no key"])


def test_make_key_failed_write_leaves_no_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            signature.make_key(tmp_path / "key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert signature.make_key(tmp_path / "key") == signature.make_key(tmp_path / "key")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_make_key_file_system_without_links_creates_the_file(tmp_path, monkeypatch):
    def deny(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source))

    monkeypatch.setattr(os, "link", deny)
    assert signature.make_key(tmp_path / "key") == signature.make_key(tmp_path / "key")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_sign_empty_key_file_error_says_what_to_do(tmp_path):
    (tmp_path / "key").touch()
    with pytest.raises(UsageError, match="remove it and create a new key with: svc registry sign-key"):
        signature.make_key(tmp_path / "key")
