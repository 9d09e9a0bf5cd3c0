"""Bundles in an OCI registry."""

import json
import os

import pytest

from tests.fakes.oci import OciServer

from .conftest import make_bundle


@pytest.fixture
def oci():
    server = OciServer()
    yield server
    server.shutdown()
    server.server_close()


def test_oci_pull_interrupted_by_digest_or_tag_resumes(oci, machine, tmp_path):
    one = machine(SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    path = make_bundle(tmp_path / "m.xyb", data=os.urandom(2 << 20))
    output = one.run("registry", "push", path, "--oci", f"{oci.host}/team/m:1.0", "--json").stdout
    pinned = json.loads(output)["reference"]
    refused = one.run("registry", "push", path, "--oci", pinned, check=2).stderr
    assert "has a digest, which a push cannot choose" in refused
    assert "latest" not in oci.contents
    oci.cut, oci.statuses = 1 << 20, [503, 429]
    for name, reference in (("two", pinned), ("three", f"{oci.host}/team/m:1.0")):
        two = machine(name, SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
        pulled = json.loads(two.run("registry", "pull", f"oci://{reference}", "--json").stdout)
        assert os.path.getsize(f"{pulled['path']}/w.bin") == 2 << 20
        assert (two.root / "m/1.0/any/m.xyb").read_bytes() == path.read_bytes()
    assert any(requested_range and requested_range != "bytes=0-" for requested_range in oci.ranges), (
        "the pull did not resume"
    )


def test_oci_pull_content_not_matching_digest_is_rejected(oci, machine, tmp_path):
    one = machine(SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    path = make_bundle(tmp_path / "m.xyb", data=os.urandom(100_000))
    pinned = json.loads(one.run("registry", "push", path, "--oci", f"{oci.host}/team/m:1", "--json").stdout)
    layer = f"sha256:{pinned['sha256']}"
    oci.contents[layer] = bytes(len(oci.contents[layer]))
    output = one.run("registry", "pull", f"oci://{pinned['reference']}", check=1).stderr
    assert "do not match" in output
    oci.contents[pinned["digest"]] = oci.contents[pinned["digest"]].replace(b'"m"', b'"n"')
    assert "sent a manifest that is not" in one.run("registry", "pull", f"oci://{pinned['reference']}", check=1).stderr
    assert not (one.root / "m").exists()
    wrong = machine("wrong", SVC_OCI_USER="u", SVC_OCI_PASSWORD="bad")
    wrong.run("registry", "pull", f"oci://{pinned['reference']}", check=1)
    wrong.run("registry", "pull", "oci://no reference", check=2)
