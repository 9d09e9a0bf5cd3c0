"""The client of a bundle registry against servers that lie: errors of ours, and bounded memory."""

import contextlib
import gzip
import json
import tracemalloc

import pytest
from tests.fakes.web import Answer, WebServer

from svc.bundles.registry_client import RegistryClient, RegistryUnreachable
from svc.errors import RegistryFailed, SvcError, UsageError
from svc.wire.bundle import BundleEntry

ENTRY = {"model_id": "m", "version": "1", "target": "any", "size_bytes": 1, "path": "x", "sha256": "0" * 64}


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:
        yield lambda answer: stack.enter_context(WebServer(answer))


def packed(data: bytes) -> Answer:
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
def test_redirect_to_a_malformed_address_is_a_registry_error(serve, location):
    server = serve(lambda asked: Answer(302, {"location": location.encode().decode("latin-1")}))
    with pytest.raises(RegistryFailed):
        RegistryClient(server.url).fetch_index()


def test_redirect_without_end_is_a_registry_error(serve):
    server = serve(lambda asked: Answer(302, {"location": "/index"}))
    with pytest.raises(RegistryFailed, match="redirects too often"):
        RegistryClient(server.url).fetch_index()


def test_redirect_to_bytes_beyond_ascii_asks_for_them_as_they_came(serve):
    def answer(asked):
        return Answer(307, {"location": "/é?ü"}) if asked.path == "/index" else Answer(body=b"{}")

    server = serve(answer)
    assert RegistryClient(server.url).fetch_index() == []
    assert server.asked[1].path == "/%E9?%FC"


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://host:99999", "http://u:p@host", "http://a..b", "ftp://host", ""]
)
def test_malformed_address_of_a_registry_is_a_usage_error(url):
    with pytest.raises(UsageError):
        RegistryClient(url)


def test_key_goes_to_the_own_origin_only(serve):
    third = serve(lambda asked: Answer(body=b"{}"))

    def answer(asked):
        where = {"/index": f"{server.url.upper().replace('HTTP', 'http')}/again", "/again": f"{third.url}/index"}
        return Answer(307, {"location": where[asked.path]})

    server = serve(answer)
    RegistryClient(server.url, key="k1").fetch_index()
    assert [asked.authorization for asked in server.asked] == ["Bearer k1", "Bearer k1"]
    assert [asked.authorization for asked in third.asked] == [None]


def test_index_that_unpacks_to_much_more_is_refused_in_little_memory(serve):
    bomb = packed(b'{"a":"' + b"x" * (128 << 20) + b'"}')
    assert len(bomb.body) < 1 << 20
    server = serve(lambda asked: bomb)
    tracemalloc.start()
    try:
        with pytest.raises(RegistryFailed, match="too large"):
            RegistryClient(server.url).fetch_index()
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_index_that_is_large_and_packed_as_usual_is_read(serve):
    entries = {f"m{number}/1/any": ENTRY | {"model_id": f"m{number}"} for number in range(60_000)}
    data = json.dumps(entries).encode()
    assert len(data) > 8 << 20
    answer = packed(data)
    assert len(RegistryClient(serve(lambda asked: answer).url).fetch_index()) == 60_000


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_index_that_is_cut_is_unreachable(serve, cut):
    whole = packed(json.dumps({"m/1/any": ENTRY}).encode())
    server = serve(lambda asked: whole._replace(body=whole.body[:-cut]))
    with pytest.raises(RegistryUnreachable):
        RegistryClient(server.url).fetch_index()


def test_index_that_is_no_gzip_is_a_registry_error(serve):
    server = serve(lambda asked: Answer(headers={"content-encoding": "gzip"}, body=b"plain"))
    with pytest.raises(RegistryFailed, match="decompressed"):
        RegistryClient(server.url).fetch_index()


def test_unusable_entries_are_skipped_and_named(serve):
    body = b'{"a/1/any":%s,"b\xff":1,"m/1/any":%s,"c/1/any":{"model_id":"\xff"}}' % (
        b"[" * 100_000 + b"]" * 100_000,
        json.dumps(ENTRY).encode(),
    )
    told = []
    found = RegistryClient(serve(lambda asked: Answer(body=body)).url).fetch_index(warn=told.append)
    assert [entry.key for entry in found] == ["m/1/any"]
    (said,) = told
    assert all(name in said for name in ("a/1/any", "b\\\\xff", "c/1/any"))


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'{"error": {"message": "\xff"}}', b'{"error": 1}'])
def test_error_that_is_none_is_a_registry_error(serve, body):
    remote = RegistryClient(serve(lambda asked: Answer(418, body=body)).url)
    for ask in (
        remote.fetch_index,
        lambda: remote.set_yanked("m/1/any", True),
        lambda: remote.publish("m/1/any", 1, [b"x"]),
    ):
        with pytest.raises(RegistryFailed, match="418"):
            ask()


@pytest.mark.parametrize("body", [b"\xff", b"", b"[" * 100_000, b'{"model_id": "\xff"}'])
def test_answer_of_a_publish_that_cannot_be_read_is_a_registry_error(serve, body):
    remote = RegistryClient(serve(lambda asked: Answer(body=body)).url)
    with pytest.raises(RegistryFailed):
        remote.publish("m/1/any", 1, [b"x"])


def test_error_message_holds_no_escape_sequence(serve):
    body = json.dumps({"error": {"message": "\x1b[2Jgone\u202e", "code": "bundle_not_found"}}).encode()
    with pytest.raises(SvcError) as caught:
        RegistryClient(serve(lambda asked: Answer(404, body=body)).url).read_range(BundleEntry(**ENTRY), 0, 1)
    assert caught.value.message.endswith("\\u001b[2Jgone\\u202e")
