"""Verification of a folder of bundles."""

import errno
from pathlib import Path

from tests.e2e.registry.conftest import make_bundle

from svc.bundles.archive import limits_from_environ
from svc.bundles.digest import sha256_file
from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.folder_use import open_folder
from svc.stores.bundles.upload import CompleteFile


def test_verify_bundle_that_cannot_be_read_does_not_advise_a_download(tmp_path, monkeypatch):
    file = make_bundle(tmp_path / "m.xyb")
    stat = Path.stat

    def deny(path, **options):
        if path.name == "m.xyb":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    with open_folder(tmp_path / "registry", limits_from_environ({})) as store:
        store.publish(CompleteFile(file, sha256_file(file)), BundleDraft("m", "1.0", "any"))
        monkeypatch.setattr(Path, "stat", deny)  # root is denied nothing
        (finding,) = store.verify()
    assert finding.state == "missing"
    assert finding.detail.endswith("m.xyb: Permission denied; check its owner and its permissions")
