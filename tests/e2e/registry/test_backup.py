"""`svc backup --bundles` and `svc restore` with registries that run, and with bundles of any valid shape."""

import fcntl

import pytest

from svc.stores.bundles.folder_use import hold_folder_use
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
