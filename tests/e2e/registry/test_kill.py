"""A short run of tests/soak/registry_kill.py, and a server killed during an upload."""

import http.client
import json
import os
import random

import pytest

from tests.soak.registry_kill import soak

from .conftest import make_bundle, until

pytestmark = pytest.mark.slow


def test_publish_killed_at_any_moment_loses_no_bundle(tmp_path):
    assert soak(tmp_path, kills=40, entries=50, seed=random.randrange(10**6)) > 40


def test_server_killed_during_upload_leaves_no_file(machine, tmp_path):
    one = machine(SVC_REGISTRY_KEYS="k1")
    server = one.serve()
    path = make_bundle(tmp_path / "m.xyb", data=os.urandom(4 << 20))
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("PUT", "/bundles/m/1.0/any/m.xyb")
    connection.putheader("authorization", "Bearer k1")
    connection.putheader("content-length", str(path.stat().st_size))
    connection.endheaders(path.read_bytes()[: 3 << 20])
    uploads = one.root / ".registry/uploads"
    until(lambda: sum(part.stat().st_size for part in uploads.glob("*.part")) > 1 << 20)
    server.kill()
    assert list(uploads.iterdir())
    server = one.serve()
    assert not list(uploads.iterdir())
    assert json.loads((one.root / "index.json").read_text()) == {}
    one.run("registry", "push", path, "--registry", server.url, SVC_REGISTRY_KEY="k1")
    assert one.run("registry", "verify").stdout.startswith("ok")


def test_publish_from_several_processes_keeps_one_bundle_per_key(machine, tmp_path):
    one = machine()
    paths = [make_bundle(tmp_path / f"{number}.xyb", version=str(number % 4)) for number in range(8)]
    publishers = [one.start("registry", "add", path) for path in paths]
    assert [publisher.wait(60) for publisher in publishers] == [0] * 8
    assert len(json.loads((one.root / "index.json").read_text())) == 4
    different = [make_bundle(tmp_path / f"d{n}.xyb", model_id="d", data=os.urandom(9)) for n in range(4)]
    publishers = [one.start("registry", "add", path) for path in different]
    assert sorted(publisher.wait(60) for publisher in publishers) == [0, 1, 1, 1]
