"""The registry client with hostile servers: it raises the project's errors and uses bounded memory."""

import contextlib
import datetime
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tracemalloc

import pytest
from tests.fakes.certificate import certificate, context
from tests.fakes.forward_proxy import ForwardProxy
from tests.fakes.ports import closed_port
from tests.fakes.web import Answer, WebServer

from svc.bundles.download import download
from svc.bundles.registry_client import RegistryClient
from svc.errors import InsufficientStorage, RegistryFailed, RegistryUnreachable, SvcError, UsageError
from svc.wire.bundle import BundleEntry

ENTRY = {"model_id": "m", "version": "1", "target": "any", "size_bytes": 1, "path": "x", "sha256": "0" * 64}


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:
        yield lambda answer, *options: stack.enter_context(WebServer(answer, *options))


def gzipped(data: bytes) -> Answer:
    return Answer(headers={"content-encoding": "gzip"}, body=gzip.compress(data))


@pytest.mark.parametrize(
    "location",
    [
        "http://[::1",
        "http://[v7.x]/",
        "http://host:99999999/",
        "http://host:port/",
        "http://",
        "http:///path",
        "//",
        "http://a..b/",
        f"http://{'a' * 70}.test/",
        "http://.localhost/",
        "http://a\u202eb/",
        "ftp://host/",
        "file:///etc/passwd",
        "http://127.0.0.1:1/é\x7f x",
        "javascript:alert(1)",
    ],
)
def test_registry_client_redirect_to_malformed_url_raises_registry_failed(serve, location):
    server = serve(lambda request: Answer(302, {"location": location.encode().decode("latin-1")}))
    with pytest.raises(RegistryFailed):
        RegistryClient(server.url).fetch_index()


def test_registry_client_redirect_loop_raises_registry_failed(serve):
    server = serve(lambda request: Answer(302, {"location": "/index"}))
    with pytest.raises(RegistryFailed, match="redirects too often"):
        RegistryClient(server.url).fetch_index()


def test_registry_client_redirect_to_non_ascii_path_is_percent_encoded(serve):
    def answer(request):
        return Answer(307, {"location": "/é?ü"}) if request.path == "/index" else Answer(body=b"{}")

    server = serve(answer)
    assert RegistryClient(server.url).fetch_index() == []
    assert server.requests[1].path == "/%C3%A9?%C3%BC"


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://host:99999",
        "http://host:0",
        "http://u:p@host",
        "http://a..b",
        "http://host?x=1",
        "http://host#x",
        "ftp://host",
        "",
    ],
)
def test_registry_client_malformed_url_raises_usage_error(url):
    with pytest.raises(UsageError):
        RegistryClient(url)


@pytest.mark.parametrize("key", ["kéy", "two\nlines"])
def test_registry_client_key_that_is_no_header_raises_usage_error_without_it(key):
    with pytest.raises(UsageError, match="SVC_REGISTRY_KEY") as caught:
        RegistryClient("http://127.0.0.1:1", key=key)
    assert key not in str(caught.value)


def test_download_etag_that_is_not_ascii_is_not_sent_back(serve, tmp_path):
    content = bytes(range(200)) * 1000

    def answer(request):
        half = len(content) // 2 if len(server.requests) == 1 else len(content)
        headers = {"etag": '"\xe9"', "content-length": str(len(content)), "connection": "close"}
        return Answer(headers=headers, body=content[:half])

    server = serve(answer)
    entry = BundleEntry(
        model_id="m",
        version="1",
        target="any",
        size_bytes=len(content),
        path="m/1/any/m.xyb",
        sha256=hashlib.sha256(content).hexdigest(),
    )
    source = RegistryClient(server.url).bundle_source()
    with contextlib.suppress(RegistryFailed):
        download(entry, source, tmp_path, "m")
    path, _ = download(entry, source, tmp_path, "m")
    assert path.read_bytes() == content


def test_download_larger_than_free_space_fails_without_request(serve, tmp_path):
    server = serve(lambda request: Answer(body=b"x"))
    entry = BundleEntry(model_id="m", version="1", target="any", size_bytes=1 << 60, path="x", sha256="0" * 64)
    (tmp_path / "m.part").write_bytes(b"received")
    (tmp_path / "m.json").write_text(json.dumps({"size": entry.size_bytes, "sha256": entry.sha256}))
    with pytest.raises(InsufficientStorage, match=f"m/1/any needs {(1 << 60) - 8} more"):
        download(entry, RegistryClient(server.url).bundle_source(), tmp_path, "m")
    assert server.requests == []
    assert (tmp_path / "m.part").read_bytes() == b"received"


def test_registry_client_key_is_sent_to_same_origin_only(serve):
    other_host = serve(lambda request: Answer(body=b"{}"))

    def answer(request):
        where = {"/index": f"{server.url.upper().replace('HTTP', 'http')}/again", "/again": f"{other_host.url}/index"}
        return Answer(307, {"location": where[request.path]})

    server = serve(answer)
    RegistryClient(server.url, key="k1").fetch_index()
    assert [request.authorization for request in server.requests] == ["Bearer k1", "Bearer k1"]
    assert [request.authorization for request in other_host.requests] == [None]


def test_fetch_index_decompression_bomb_is_rejected_in_bounded_memory(serve):
    bomb = gzipped(b'{"a":"' + b"x" * (128 << 20) + b'"}')
    assert len(bomb.body) < 1 << 20
    server = serve(lambda request: bomb)
    tracemalloc.start()
    try:
        with pytest.raises(RegistryFailed, match="too large"):
            RegistryClient(server.url).fetch_index()
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_fetch_index_large_compressed_index_is_read(serve):
    entries = {f"m{number}/1/any": ENTRY | {"model_id": f"m{number}"} for number in range(60_000)}
    data = json.dumps(entries).encode()
    assert len(data) > 8 << 20
    answer = gzipped(data)
    assert len(RegistryClient(serve(lambda request: answer).url).fetch_index()) == 60_000


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_fetch_index_truncated_body_raises_registry_unreachable(serve, cut):
    whole = gzipped(json.dumps({"m/1/any": ENTRY}).encode())
    server = serve(lambda request: whole._replace(body=whole.body[:-cut]))
    with pytest.raises(RegistryUnreachable):
        RegistryClient(server.url).fetch_index()


def test_fetch_index_invalid_gzip_raises_registry_failed(serve):
    server = serve(lambda request: Answer(headers={"content-encoding": "gzip"}, body=b"plain"))
    with pytest.raises(RegistryFailed, match="decompressed"):
        RegistryClient(server.url).fetch_index()


def test_fetch_index_unusable_entries_are_skipped_with_warning(serve):
    body = b'{"a/1/any":%s,"b\xff":1,"m/1/any":%s,"c/1/any":{"model_id":"\xff"}}' % (
        b"[" * 100_000 + b"]" * 100_000,
        json.dumps(ENTRY).encode(),
    )
    warnings = []
    found = RegistryClient(serve(lambda request: Answer(body=body)).url).fetch_index(warn=warnings.append)
    assert [entry.key for entry in found] == ["m/1/any"]
    (warning,) = warnings
    assert all(name in warning for name in ("a/1/any", "b\\\\xff", "c/1/any"))


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'{"error": {"message": "\xff"}}', b'{"error": 1}'])
def test_registry_client_malformed_error_body_raises_registry_failed(serve, body):
    remote = RegistryClient(serve(lambda request: Answer(418, body=body)).url)
    for call in (
        remote.fetch_index,
        lambda: remote.set_yanked("m/1/any", True),
        lambda: remote.publish("m/1/any", 1, [b"x"]),
    ):
        with pytest.raises(RegistryFailed, match="418"):
            call()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (502, b"<html>Bad Gateway</html>", "it returned status 502."),
        (502, b'{"error": {"code": "registry_error", "message": "The bucket is down."}}', "The bucket is down."),
        (500, b"", "it returned status 500."),
    ],
)
def test_fetch_index_5xx_raises_registry_unreachable(serve, status, body, message):
    server = serve(lambda request: Answer(status, body=body))
    with pytest.raises(RegistryUnreachable) as caught:
        RegistryClient(server.url).fetch_index("m")
    assert caught.value.message == f"{server.url}: {message}"


@pytest.mark.parametrize("body", [b"\xff", b"", b"[" * 100_000, b'{"model_id": "\xff"}'])
def test_publish_malformed_response_raises_registry_failed(serve, body):
    remote = RegistryClient(serve(lambda request: Answer(body=body)).url)
    with pytest.raises(RegistryFailed):
        remote.publish("m/1/any", 1, [b"x"])


def test_registry_client_error_text_escapes_control_characters(serve):
    body = json.dumps({"error": {"message": "\x1b[2Jgone\u202e", "code": "bundle_not_found"}}).encode()
    with pytest.raises(SvcError) as caught:
        RegistryClient(serve(lambda request: Answer(404, body=body)).url).read_range(BundleEntry(**ENTRY), 0, 1)
    assert caught.value.message.endswith("\\u001b[2Jgone\\u202e")


def test_registry_client_uses_proxy_and_authority_of_environment(serve, tmp_path, monkeypatch):
    file = certificate(tmp_path, "localhost")
    server = serve(lambda request: Answer(body=b"{}"), context(file), "localhost")
    with ForwardProxy(tmp_path, "user:pass-word") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(RegistryUnreachable, match="certificate verify failed"):
            RegistryClient(server.url).fetch_index()
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert RegistryClient(server.url, key="k1").fetch_index() == []
        assert proxy.requests == [f"CONNECT {server.host} HTTP/1.1"] * 2
    assert [request.authorization for request in server.requests] == ["Bearer k1"]


def test_registry_client_is_not_imported_by_servers():
    script = (
        "import sys, svc.app.gateway, svc.app.registry, svc.cli.up, svc.cli.gateway, svc.cli.registry.serve\n"
        "assert not {'httpx2', 'httpcore2'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_registry_unreachable_error_says_what_to_check():
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(RegistryUnreachable) as caught:
        RegistryClient(url).fetch_index()
    expected = f"The registry {url} cannot be reached: Connection refused. Check its address, and whether it runs."
    assert caught.value.message == expected


def test_registry_with_expired_certificate_names_the_clock(serve, tmp_path, monkeypatch):
    file = certificate(tmp_path, "localhost", valid_days=-1)
    server = serve(lambda request: Answer(body=b"{}"), context(file), "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    today = datetime.datetime.now(datetime.UTC).date()
    with pytest.raises(RegistryUnreachable, match="certificate has expired") as caught:
        RegistryClient(server.url).fetch_index()
    found = re.search(r"; the clock of this machine says (\d{4}-\d\d-\d\d)\.$", caught.value.message)
    assert found, caught.value.message
    assert abs(datetime.date.fromisoformat(found[1]) - today).days <= 1


def test_registry_unreachable_proxy_is_named(serve, monkeypatch):
    server, proxy = serve(lambda request: Answer(body=b"{}")), f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(RegistryUnreachable) as caught:
        RegistryClient(server.url).fetch_index()
    reason = f"the proxy at {proxy} cannot be reached: Connection refused"
    assert caught.value.message == f"The registry {server.url} cannot be reached: {reason}."
