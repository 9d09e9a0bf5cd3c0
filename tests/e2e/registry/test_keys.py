"""A command without a valid registry key names the environment variable to set."""

import pytest

from tests.e2e.registry.conftest import make_bundle


@pytest.mark.parametrize("action", ["push", "yank", "unyank"])
def test_write_command_without_key_names_variable(machine, tmp_path, action):
    path = make_bundle(tmp_path / "m.xyb")
    what = path if action == "push" else "m@1.0"
    stderr = machine().run("registry", action, what, "--registry", "http://127.0.0.1:9", check=1).stderr
    assert "SVC_REGISTRY_KEY" in stderr
    assert "header" not in stderr
    assert stderr.count("\n") == 1


def test_push_unknown_key_names_variable(machine, tmp_path):
    path = make_bundle(tmp_path / "m.xyb")
    one = machine(SVC_REGISTRY_KEYS="k1")
    url = one.serve().url
    stderr = one.run("registry", "push", path, "--registry", url, check=1, SVC_REGISTRY_KEY="k2").stderr
    assert f"{url}: " in stderr
    assert "SVC_REGISTRY_KEY" in stderr
    assert "k2" not in stderr


def test_pull_private_registry_without_key_names_variable(machine):
    one = machine(SVC_REGISTRY_KEYS="k1")
    stderr = one.run("registry", "pull", "m@1.0", "--registry", one.serve("--private").url, check=1).stderr
    assert "SVC_REGISTRY_KEY" in stderr
