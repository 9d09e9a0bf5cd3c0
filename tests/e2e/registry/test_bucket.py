"""Several servers on one bucket of a real S3 server."""

import http.client
import json
import os
import random

import pytest

from tests.fakes.bucket import bucket_server

from .conftest import make_bundle


@pytest.fixture(scope="module")
def bucket():
    with bucket_server() as environ:
        yield environ


def test_two_servers_on_one_bucket(bucket, machine, tmp_path):
    one, two = (machine(name, SVC_REGISTRY_KEYS="k1", **bucket) for name in ("one", "two"))
    redirecting, proxying = one.serve(), two.serve("--proxy")
    path = make_bundle(tmp_path / "m.xyb", data=random.Random(1).randbytes(12 << 20))
    client = machine("client", SVC_REGISTRY_KEY="k1")
    client.run("registry", "push", path, "--registry", redirecting.url)
    assert "already" in client.run("registry", "push", path, "--registry", proxying.url).stdout
    other = make_bundle(tmp_path / "o.xyb", data=b"other")
    assert "other bytes" in client.run("registry", "push", other, "--registry", proxying.url, check=1).stderr
    for server, name in ((redirecting, "a"), (proxying, "b")):
        reader = machine(f"reader-{name}")
        said = json.loads(reader.run("registry", "pull", "m@1.0", "--registry", server.url, "--json").stdout)
        assert os.path.getsize(f"{said['path']}/w.bin") == 12 << 20
    connection = http.client.HTTPConnection("127.0.0.1", redirecting.port)
    connection.request("GET", "/bundles/m/1.0/any/m.xyb")
    answer = connection.getresponse()
    assert answer.status == 307
    assert bucket["AWS_ENDPOINT_URL"] in answer.headers["location"]
    answer.read()
    connection = http.client.HTTPConnection("127.0.0.1", proxying.port)
    connection.request("GET", "/bundles/m/1.0/any/m.xyb", headers={"range": "bytes=5-1000004"})
    answer = connection.getresponse()
    assert answer.status == 206
    assert answer.read() == path.read_bytes()[5:1000005]


def test_a_bucket_that_cannot_be_used_is_refused_at_the_start(bucket, machine):
    wrong = machine("wrong", **{**bucket, "SVC_BLOB_URL": "s3://no-such-bucket/x", "AWS_SECRET_ACCESS_KEY": "wrong"})
    said = wrong.run("registry", "serve", "--port", "0", check=2).stderr
    assert "cannot be used" in said
    assert len(said.splitlines()) == 1
