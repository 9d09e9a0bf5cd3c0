"""Commands and a server in a registry folder that cannot be written: a file system that is mounted read-only."""

import json
import os
import shutil
import subprocess
import urllib.request

import pytest

from .conftest import make_bundle
from .test_health import put


@pytest.fixture
def read_only(tmp_path):
    """A function that returns a folder with the contents of another, which nobody may change."""
    folder = tmp_path / "read-only"
    folder.mkdir()

    def mount(source):
        shutil.copytree(source, folder, dirs_exist_ok=True)
        commands = (["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", folder])
        for command in commands:
            if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("needs to mount a folder read-only, as root does")
        return folder

    yield mount
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def test_registry_read_only_folder_reads_and_explains_writes(machine, read_only, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "a.xyb", "a", "1"))
    one.run("registry", "pull", "a@1")
    server = one.serve()
    one.run("registry", "add", make_bundle(tmp_path / "b.xyb", "b", "1"))
    assert (one.root / ".registry/records.sqlite-wal").stat().st_size  # has the second record
    (tmp_path / "copy").mkdir()
    shutil.copytree(one.root, tmp_path / "copy", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-shm"))
    server.kill()
    two = machine("two", SVC_REGISTRY_KEYS="k1", SVC_REGISTRY_ROOT=str(root := read_only(tmp_path / "copy")))
    assert [line.split()[0] for line in two.run("registry", "ls").stdout.splitlines()] == ["MODEL", "a", "b"]
    assert two.run("registry", "verify").stdout.split() == ["ok", "a/1/any", "ok", "b/1/any"]
    assert two.run("registry", "pull", "a@1").stdout == f"a@1 {root}/a/1/any/content\n"
    advice = "is on a read-only file system. To write elsewhere, set SVC_REGISTRY_ROOT, or SVC_HOME.\n"
    assert advice in two.run("registry", "gc", check=1).stderr
    assert f"svc: {root}/signing.key {advice}" in two.run("registry", "sign-key", check=1, SVC_HOME=str(root)).stderr
    bundle = make_bundle(tmp_path / "c.xyb", "c", "1")
    assert "svc: The registry's records cannot be written: check " in two.run("registry", "yank", "a@1", check=1).stderr
    assert "svc: The registry's folder cannot be written: check " in two.run("registry", "add", bundle, check=1).stderr
    server = two.serve()
    with urllib.request.urlopen(f"{server.url}/index", timeout=20) as response:
        assert sorted(json.load(response)) == ["a/1/any", "b/1/any"]
    status, body = put(server, "/bundles/c/1/any/c.xyb", bundle.read_bytes())
    assert (status, body["error"]["message"].partition(":")[0]) == (500, "The registry's folder cannot be written")
    server.process.terminate()
    log = server.process.communicate(timeout=20)[1].decode()
    assert f"({root}/.registry/uploads/" in log
    assert "Traceback" not in log
