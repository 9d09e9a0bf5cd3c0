"""`svc backup --bundles` and `svc restore` with registries that run, and with bundles of any valid shape."""

import fcntl
import json
import os
import zipfile

import pytest

from svc.app.backup import create_backup
from svc.stores.bundles.folder_use import hold_folder_use
from svc.stores.bundles.install import remove_installed
from tests.e2e.registry.conftest import make_bundle


def backed_up(machine, tmp_path, **environ):
    """Return a machine with a database, one bundle, and a backup of both in b.tar."""
    one = machine(**environ)
    one.run("migrate")
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    one.run("backup", "--bundles", tmp_path / "b.tar")
    return one


def test_restore_with_running_registry_is_refused_and_keeps_its_bundles(machine, tmp_path):
    one = backed_up(machine, tmp_path, SVC_REGISTRY_KEYS="k", SVC_REGISTRY_KEY="k")
    server = one.serve()
    second = one.serve()  # several registries share one folder
    refused = one.run("restore", "--force", tmp_path / "b.tar", check=1)
    assert f"A registry uses {one.root}" in refused.stderr
    server.kill()
    one.run("restore", "--force", tmp_path / "b.tar", check=1)
    one.run("registry", "push", make_bundle(tmp_path / "n.xyb", version="2.0"), "--registry", second.url)
    second.kill()
    assert " 2.0 " in one.run("registry", "ls").stdout
    one.run("restore", "--force", tmp_path / "b.tar")
    assert " 2.0 " not in one.run("registry", "ls").stdout


@pytest.mark.parametrize("name", ["registry", "link", "parent/registry"])
def test_restore_with_registry_of_another_path_is_refused(machine, tmp_path, name):
    one = backed_up(machine, tmp_path)
    (tmp_path / "link").symlink_to(one.root)
    (tmp_path / "parent").symlink_to(one.home)
    with hold_folder_use(one.root if name == "registry" else tmp_path / name):
        assert "A registry uses" in one.run("restore", "--force", tmp_path / "b.tar", check=1).stderr
    one.run("restore", "--force", tmp_path / "b.tar")


def test_registry_commands_during_restore_are_refused(machine, tmp_path):
    one = backed_up(machine, tmp_path)
    with (one.home / "registry.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for command in (["verify"], ["gc"], ["ls"], ["pull", "m@1.0"], ["serve", "--port", "0"]):
            assert "svc restore replaces" in one.run("registry", *command, check=1).stderr
    assert " 1.0 " in one.run("registry", "ls").stdout


def test_backup_includes_folder_of_blob_url_and_refuses_bucket(machine, tmp_path):
    backed_up(machine, tmp_path, SVC_BLOB_URL=(tmp_path / "blobs").as_uri())
    assert (tmp_path / "blobs/m/1.0/any/m.xyb").is_file()
    two = restored(machine, tmp_path)
    assert two.run("registry", "verify").stdout == "ok          m/1.0/any\n"
    bucket = two.run("backup", "--bundles", tmp_path / "c.tar", check=2, SVC_BLOB_URL="s3://bundles")
    assert "SVC_BLOB_URL names a bucket" in bucket.stderr


def restored(machine, tmp_path):
    """Return a new machine with the backup in b.tar, whose bundles are all valid."""
    two = machine("two")
    two.run("restore", tmp_path / "b.tar")
    two.run("registry", "verify")
    return two


def test_bundle_with_long_names_is_backed_up_and_restored(machine, tmp_path):
    one = machine()
    one.run("migrate")
    member = "中" * 80 + ".bin"
    path = tmp_path / "long.xyb"
    make_bundle(path, model_id="m" * 128, version="1" * 120, files=["w.bin", member])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(member, b"long")
    one.run("registry", "add", path)
    one.run("registry", "pull", f"{'m' * 128}@{'1' * 120}")
    one.run("backup", "--bundles", tmp_path / "b.tar")
    two = restored(machine, tmp_path)
    folder = two.root / ("m" * 128) / ("1" * 120) / "any"
    assert (folder / "content" / member).read_bytes() == b"long"
    assert (folder / f"{'m' * 128}.xyb").read_bytes() == path.read_bytes()


def test_bundles_behind_links_are_in_the_backup(machine, tmp_path):
    one = machine()
    one.run("migrate")
    disk = tmp_path / "disk"
    disk.mkdir()
    one.root.mkdir()
    (one.root / "folder-link").symlink_to(disk)  # a model on another disk
    for name in ("folder-link", "file-link"):
        one.run("registry", "add", make_bundle(tmp_path / f"{name}.xyb", model_id=name))
    one.run("registry", "pull", "folder-link@1.0")
    bundle = one.root / "file-link" / "1.0" / "any" / "file-link.xyb"
    bundle.rename(tmp_path / "moved.xyb")
    bundle.symlink_to(tmp_path / "moved.xyb")
    assert not one.run("backup", "--bundles", tmp_path / "b.tar").stderr
    two = restored(machine, tmp_path)
    for name in ("folder-link", "file-link"):
        copy = two.root / name / "1.0" / "any" / f"{name}.xyb"
        assert copy.read_bytes() == (tmp_path / f"{name}.xyb").read_bytes()
        assert copy.resolve().is_relative_to(two.root)
    assert (two.root / "folder-link" / "1.0" / "any" / "content" / "w.bin").is_file()


def test_what_is_not_in_the_backup_is_named(machine, tmp_path):
    one = backed_up(machine, tmp_path)
    outside = make_bundle(tmp_path / "outside.xyb", model_id="outside")
    entry = {"model_id": "outside", "version": "1.0", "target": "any", "path": str(outside)}
    index = json.loads((one.root / "index.json").read_bytes())
    index["outside/1.0/any"] = entry | {"size_bytes": outside.stat().st_size}
    (one.root / "index.json").write_text(json.dumps(index))
    one.run("registry", "add", make_bundle(tmp_path / "gone.xyb", model_id="gone"))
    (one.root / "gone" / "1.0" / "any" / "gone.xyb").unlink()
    (one.root / "elsewhere").symlink_to(tmp_path)
    (one.root / "a\\b.txt").touch()
    (one.home / "recipes").mkdir()
    (one.home / "recipes" / "my\\recipe.toml").touch()
    (one.home / "recipes" / os.fsdecode(b"caf\xe9.toml")).touch()
    (one.home / "recipes" / "linked.toml").symlink_to(tmp_path / "b.tar")
    warnings = one.run("backup", "--bundles", "--force", tmp_path / "b.tar").stderr.splitlines()
    for text in ("outside/1.0/any", "gone/1.0/any", "elsewhere", "a\\\\b.txt", "my\\\\recipe", "caf\\udce9", "linked"):
        assert any(text in line and "is not in the backup" in line for line in warnings), (text, warnings)
    assert len(warnings) == 7
    two = machine("two")
    two.run("restore", tmp_path / "b.tar")
    assert (two.root / "m" / "1.0" / "any" / "m.xyb").is_file()


def test_bundle_removed_during_the_backup_is_not_in_its_records(machine, tmp_path):
    one = backed_up(machine, tmp_path)
    for name in ("a", "z"):
        one.run("registry", "add", make_bundle(tmp_path / f"{name}.xyb", model_id=name))
        one.run("registry", "pull", f"{name}@1.0")
    warnings = []

    def remove_bundles(label, done, total):
        if label == "archive" and not warnings:  # the list is complete, and the first file is written
            remove_installed("z/1.0/any", one.root)
            (one.root / "a" / "1.0" / "any" / "content" / "w.bin").unlink(missing_ok=True)

    create_backup(
        one.home,
        one.home / "svc.db",
        tmp_path / "b.tar",
        registry_root=one.root,
        overwrite=True,
        on_progress=remove_bundles,
        on_warning=warnings.append,
    )
    assert warnings == ["z/1.0/any is not in the backup: it was removed meanwhile."]
    two = restored(machine, tmp_path)
    assert two.run("registry", "ls").stdout.count(" 1.0 ") == 2
    two.run("registry", "pull", "a@1.0")
    assert (two.root / "a" / "1.0" / "any" / "content" / "w.bin").read_bytes() == b"weights"
