"""Several servers on one bucket of a real S3 server."""

import hashlib
import http.client
import json
import os
import random
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import obstore
import pytest

from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.s3 import BucketStore
from svc.stores.bundles.upload import CompleteFile
from tests.fakes.bucket import READER, bucket_server
from tests.fakes.ports import closed_port
from tests.fakes.tcp_proxy import TcpProxy

from .conftest import make_bundle


@pytest.fixture(scope="module")
def bucket():
    with bucket_server() as environ:
        yield environ


@pytest.mark.slow
def test_bucket_two_servers_share_bundles(bucket, machine, tmp_path):
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
        output = json.loads(reader.run("registry", "pull", "m@1.0", "--registry", server.url, "--json").stdout)
        assert os.path.getsize(f"{output['path']}/w.bin") == 12 << 20
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


def test_bucket_unusable_at_start_exits_2(bucket, machine):
    wrong = machine("wrong", **{**bucket, "SVC_BLOB_URL": "s3://no-such-bucket/x", "AWS_SECRET_ACCESS_KEY": "wrong"})
    output = wrong.run("registry", "serve", "--port", "0", check=2).stderr
    assert "cannot be used" in output
    assert len(output.splitlines()) == 1
    missing = machine("missing", **{**bucket, "SVC_BLOB_URL": "s3://no-such-bucket/x"})
    for command in (("ls",), ("serve", "--port", "0")):
        assert "NoSuchBucket" in missing.run("registry", *command, check=2).stderr


def test_bucket_read_only_credentials_list_and_verify(bucket, machine, tmp_path):
    url = {"SVC_BLOB_URL": "s3://bundles/readable"}
    path = make_bundle(tmp_path / "m.xyb")
    machine("writer", **{**bucket, **url}).run("registry", "add", path)
    keys = {"AWS_ACCESS_KEY_ID": READER["accessKey"], "AWS_SECRET_ACCESS_KEY": READER["secretKey"]}
    reader = machine("reader", **{**bucket, **url, **keys})
    assert json.loads(reader.run("registry", "ls", "--json").stdout)[0]["model_id"] == "m"
    assert reader.run("registry", "verify").stdout.startswith("ok")
    assert "AccessDenied" in reader.run("registry", "add", path, check=2).stderr


def test_bucket_registry_commands_work(bucket, machine, tmp_path, monkeypatch):
    one = machine("one", **{**bucket, "SVC_BLOB_URL": "s3://bundles/commands"})
    path = make_bundle(tmp_path / "m.xyb", data=os.urandom(1 << 20))
    output = one.run("registry", "add", path).stdout
    assert "m/1.0/any added: s3://bundles/commands/blobs/" in output
    assert "already" in one.run("registry", "add", path).stdout
    one.run("registry", "add", make_bundle(tmp_path / "o.xyb", data=b"other"), check=1)
    (entry,) = json.loads(one.run("registry", "ls", "--json").stdout)
    assert entry["path"] in output
    one.run("registry", "yank", "m@1.0")
    assert json.loads(one.run("registry", "ls", "--json").stdout)[0]["yanked"]
    one.run("registry", "unyank", "m@1.0")
    assert one.run("registry", "verify").stdout.startswith("ok")
    assert one.run("registry", "gc").stdout == ""
    assert not (one.root / "index.json").exists(), "the bundle was written to the folder"
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    with BucketStore("s3://bundles/commands", tmp_path / "state", one.environ) as store:
        blob = entry["path"].removeprefix("s3://bundles/commands/")
        obstore.put(store.bucket, blob, path.read_bytes()[:-1] + b"x")
    assert one.run("registry", "verify", check=1).stdout.startswith("damaged")
    assert one.run("registry", "verify", "--repair").stdout.startswith("moved aside")
    assert one.run("registry", "verify", check=1).stdout.startswith("missing")
    assert "aside/" in one.run("registry", "gc").stdout
    one.run("registry", "add", path)
    assert one.run("registry", "verify").stdout.startswith("ok")


@pytest.mark.slow
def test_bucket_mirror_and_pull_through_work(bucket, machine, tmp_path):
    above = machine("above")
    above.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    source = above.serve()
    one = machine("mirror", **{**bucket, "SVC_BLOB_URL": "s3://bundles/mirror"})
    assert json.loads(one.run("registry", "mirror", source.url, "--json").stdout)["fetched"] == ["m/1.0/any"]
    assert json.loads(one.run("registry", "mirror", source.url, "--json").stdout)["present"] == ["m/1.0/any"]
    through = machine("through", **{**bucket, "SVC_BLOB_URL": "s3://bundles/through"})
    middle = through.serve("--upstream", source.url)
    machine("two").run("registry", "pull", "m", "--registry", middle.url)
    source.kill()
    machine("three").run("registry", "pull", "m@1.0", "--registry", middle.url)


def test_bucket_lost_bytes_with_proxy_return_502(bucket, machine, tmp_path, monkeypatch):
    url = "s3://bundles/lost"
    one = machine("one", SVC_REGISTRY_KEYS="k1", **{**bucket, "SVC_BLOB_URL": url})
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    server = one.serve("--proxy")
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    with BucketStore(url, tmp_path / "state", one.environ) as store:
        obstore.delete(store.bucket, store.entries()[0].path)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/bundles/m/1.0/any/m.xyb")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (502, "registry_error")


def test_bucket_unavailable_at_open_is_used_once_it_responds(bucket, tmp_path, monkeypatch):
    port = closed_port()
    for name, value in {**bucket, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
        monkeypatch.setenv(name, value)
    path = make_bundle(tmp_path / "m.xyb")
    with (
        BucketStore("s3://bundles/late", tmp_path / "state", os.environ, may_be_unavailable=True) as store,
        TcpProxy(urlsplit(bucket["AWS_ENDPOINT_URL"]).port, port=port),
    ):
        assert store.entries() == []
        upload = CompleteFile(path, hashlib.sha256(path.read_bytes()).hexdigest())
        entry, created = store.publish(upload, BundleDraft("m", "1.0", "any"))
        assert (created, store.entries()) == (True, [entry])


class S3WithoutConditionalWrites(ThreadingHTTPServer):
    """An S3 server that ignores `If-None-Match`, as some do."""

    daemon_threads = True


class S3Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Quiet."""

    def _respond(self):
        request_body = self.rfile.read(int(self.headers["content-length"] or 0))
        key = re.search(rb"<Key>.*</Key>", request_body)
        body = b"<DeleteResult><Deleted>%b</Deleted></DeleteResult>" % key[0] if key else b"<ListBucketResult/>"
        self.send_response(200)
        self.send_header("etag", '"x"')
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = _respond


def test_bucket_ignoring_if_none_match_is_rejected(bucket, machine, tmp_path):
    server = S3WithoutConditionalWrites(("127.0.0.1", 0), S3Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    one = machine("one", **{**bucket, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}"})
    for command in (("serve", "--port", "0"), ("add", make_bundle(tmp_path / "m.xyb"))):
        output = one.run("registry", *command, check=2).stderr
        assert "ignores If-None-Match" in output
        assert len(output.splitlines()) == 1
    server.shutdown()
    server.server_close()
