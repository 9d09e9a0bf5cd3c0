"""The registry server over a socket: responses of the connection handler and of the application."""

import concurrent.futures
import gzip
import http.client
import json
import os
import random
import socket
import time
from http import HTTPStatus

import pytest

from .conftest import Server, make_bundle, until


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """One server for all tests, with a large and a small bundle."""
    from .conftest import Machine

    folder = tmp_path_factory.mktemp("http")
    one = Machine(folder / "home", SVC_REGISTRY_KEYS="k1", SVC_API_KEYS="chatter")
    one.home.mkdir()
    big = make_bundle(folder / "big.xyb", "big", data=random.Random(2).randbytes(9 << 20))
    small = make_bundle(folder / "small.xyb", "small")
    one.run("registry", "add", big)
    one.run("registry", "add", small)
    server = one.serve()
    yield server, {"big": big.read_bytes(), "small": small.read_bytes()}, one
    one.stop()


def ask(server: Server, method: str, path: str, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer, answer.read()


def test_http_random_ranges_return_exact_bytes(registry):
    server, data, _ = registry
    picks = random.Random(3)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for name in ("big", "small") * 20:
        whole = data[name]
        start = picks.randrange(len(whole))
        end = min(len(whole), start + picks.choice([1, 100, 65536, 65537, 1 << 20, 8 << 20]))
        connection.request("GET", f"/bundles/{name}/1.0/any/{name}.xyb", headers={"range": f"bytes={start}-{end - 1}"})
        answer = connection.getresponse()
        assert answer.status == 206
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(whole)}"
        assert answer.read() == whole[start:end]


def test_http_parallel_downloads_are_complete(registry):
    server, data, _ = registry
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda _: ask(server, "GET", "/bundles/big/1.0/any/big.xyb")[1], range(32))
        assert all(answer == data["big"] for answer in answers)


def test_http_head_and_conditional_requests_return_standard_status(registry):
    server, data, _ = registry
    path = "/bundles/big/1.0/any/big.xyb"
    answer, body = ask(server, "HEAD", path)
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["content-length"]) == len(data["big"])
    assert "immutable" in answer.headers["cache-control"]
    tag = answer.headers["etag"]
    assert tag.startswith('"sha256:')
    assert ask(server, "GET", path, if_none_match=tag)[0].status == 304
    assert ask(server, "GET", path, range=f"bytes={1 << 30}-")[0].status == 416
    assert ask(server, "GET", path, range="bytes=0-1", if_range='"x"')[0].status == 200


@pytest.mark.parametrize("name", ["big", "small"])
def test_http_range_forms_return_206_416_or_200(registry, name):
    server, data, _ = registry
    path, whole = f"/bundles/{name}/1.0/any/{name}.xyb", data[name]
    size, tag = len(whole), ask(server, "HEAD", path)[0].headers["etag"]
    for range_spec, expected in (
        ("0-0", whole[:1]),
        ("-5", whole[-5:]),
        (f"-{size + 9}", whole),
        (f"{size - 3}-", whole[-3:]),
    ):
        answer, body = ask(server, "GET", path, range=f"bytes={range_spec}")
        assert (answer.status, body) == (206, expected), range_spec
        start = size - len(expected) if range_spec != "0-0" else 0
        assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/{size}"
        assert answer.headers["etag"] == tag
    for range_spec in (f"{size}-", f"{size + 7}-{size + 9}", "-0"):
        answer, body = ask(server, "GET", path, range=f"bytes={range_spec}")
        assert (answer.status, body, answer.headers["content-range"]) == (416, b"", f"bytes */{size}")
    for range_spec in ("bytes=0-1,5-6", "bytes=5-2", "lines=0-1", "bytes=-", "bytes=a-b"):
        answer, body = ask(server, "GET", path, range=range_spec)
        assert (answer.status, body) == (200, whole), range_spec


def test_http_if_range_requires_strong_match(registry):
    server, data, _ = registry
    path = "/bundles/big/1.0/any/big.xyb"
    tag = ask(server, "HEAD", path)[0].headers["etag"]
    answer, body = ask(server, "GET", path, range="bytes=7-9", if_range=tag)
    assert (answer.status, body) == (206, data["big"][7:10])
    for other in (f"W/{tag}", tag.strip('"'), tag[:-2] + '"', '"x"', "Sat, 21 Nov 2099 08:00:00 GMT"):
        answer, body = ask(server, "GET", path, range="bytes=7-9", if_range=other)
        assert (answer.status, body) == (200, data["big"]), other
    for tags in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        assert ask(server, "GET", path, if_none_match=tags)[0].status == 304, tags
        assert ask(server, "HEAD", path, if_none_match=tags)[0].status == 304, tags
    assert ask(server, "GET", path, if_none_match='"x"')[0].status == 200
    answer, body = ask(server, "HEAD", path, range="bytes=7-9")
    assert (answer.status, answer.headers["content-length"], body) == (200, str(len(data["big"])), b"")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/bundles/big/9/any/big.xyb", 404, "bundle_not_found"),
        ("GET", "/bundles/big/1.0/any/other.xyb", 404, "bundle_not_found"),
        ("GET", "/bundles/-big/1.0/any/-big.xyb", 400, "invalid_request"),
        ("GET", "/bundles/big/1.0/any/../big.xyb", 404, "not_found"),
        ("GET", "/bundles/%2e%2e/1.0/any/%2e%2e.xyb", 400, "invalid_request"),
        ("GET", "/index/gone", 404, "bundle_not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("DELETE", "/bundles/big/1.0/any/big.xyb", 405, "method_not_allowed"),
        ("PUT", "/bundles/big/1.0/any/big.xyb", 401, "authentication_error"),
        ("POST", "/bundles/big/1.0/any/yank", 401, "authentication_error"),
    ],
)
def test_http_errors_have_gateway_error_format(registry, method, path, status, code):
    answer, body = ask(registry[0], method, path, b"x" if method == "PUT" else None)
    assert (answer.status, answer.reason) == (status, HTTPStatus(status).phrase)
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("DELETE", "/bundles/big/1.0/any/big.xyb", "GET, HEAD, PUT"), ("POST", "/index", "GET, HEAD")],
)
def test_http_wrong_method_returns_405_with_allow(registry, method, path, allow):
    answer, _ = ask(registry[0], method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allow)


def test_http_index_supports_gzip_and_etag(registry):
    server, _, _ = registry
    answer, body = ask(server, "GET", "/index")
    index = json.loads(body)
    assert index["big/1.0/any"]["path"] == "big/1.0/any/big.xyb"
    packed, small = ask(server, "GET", "/index", accept_encoding="gzip")
    assert json.loads(gzip.decompress(small)) == index
    assert packed.headers["etag"] != answer.headers["etag"]
    assert ask(server, "GET", "/index", if_none_match=packed.headers["etag"])[0].status == 304
    one, _ = ask(server, "GET", "/index/big")
    assert list(json.loads(ask(server, "GET", "/index/big")[1])) == ["big/1.0/any"]
    assert ask(server, "GET", "/index/big", if_none_match=one.headers["etag"])[0].status == 304
    assert ask(server, "GET", "/index", if_none_match=one.headers["etag"])[0].status == 200
    packed, small = ask(server, "GET", "/index/big", accept_encoding="gzip")
    assert list(json.loads(gzip.decompress(small))) == ["big/1.0/any"]


def test_http_put_returns_status_for_each_outcome(registry, tmp_path):
    server, _, _ = registry
    data = make_bundle(tmp_path / "p.xyb", "put", "1").read_bytes()
    path = "/bundles/put/1/any/put.xyb"
    assert ask(server, "PUT", path, data, authorization="Bearer wrong")[0].status == 401
    assert ask(server, "PUT", path, b"no bundle", authorization="Bearer k1")[0].status == 400
    assert ask(server, "PUT", path, data[:-9], authorization="Bearer k1")[0].status == 400
    assert ask(server, "PUT", path, iter([data[:7], data[7:]]), authorization="bearer k1")[0].status == 201
    assert ask(server, "PUT", path, data, authorization="Bearer k1")[0].status == 200
    other = make_bundle(tmp_path / "q.xyb", "put", "1", data=b"other").read_bytes()
    answer, body = ask(server, "PUT", path, other, authorization="Bearer k1")
    assert (answer.status, json.loads(body)["error"]["code"]) == (409, "already_exists")
    assert ask(server, "PUT", path.replace("/1/", "/2/"), data, authorization="Bearer k1")[0].status == 400
    assert ask(server, "GET", path)[1] == data
    assert ask(server, "POST", "/bundles/put/1/any/yank", authorization="Bearer k1")[0].status == 200
    assert json.loads(ask(server, "GET", "/index")[1])["put/1/any"]["yanked"] is True
    assert ask(server, "POST", "/bundles/put/1/any/unyank", authorization="Bearer k1")[0].status == 200


def test_http_put_version_latest_is_rejected_before_the_body(registry):
    server, _, _ = registry
    head = "PUT /bundles/m/latest/any/m.xyb HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer k1\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"{head}content-length: 1000000000\r\n\r\n".encode())
        response = connection.recv(4096)
    assert response.startswith(b"HTTP/1.1 400 ")


def test_http_pipelined_requests_are_answered_in_order(registry):
    server, data, _ = registry
    lines = b"".join(
        f"GET /{path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        for path in ("health", "bundles/big/1.0/any/big.xyb", "bundles/small/1.0/any/small.xyb", "health")
    )
    with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        sock.sendall(lines)
        sock.settimeout(10)
        got = b""
        while got.count(b'"status":"ok"') < 2:
            data_read = sock.recv(1 << 20)
            assert data_read
            got += data_read
    assert data["big"] in got
    assert got.index(data["big"]) < got.index(data["small"])


def test_http_stalled_and_disconnected_clients_do_not_block_others(registry):
    server, data, _ = registry
    line = b"GET /bundles/big/1.0/any/big.xyb HTTP/1.1\r\nhost: localhost\r\n\r\n"
    stuck = []
    for number in range(100):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(line)
        if number % 2:
            sock.close()
        else:
            stuck.append(sock)
    began = time.monotonic()
    assert ask(server, "GET", "/bundles/big/1.0/any/big.xyb")[1] == data["big"]
    assert ask(server, "GET", "/health")[0].status == 200
    assert time.monotonic() - began < 5
    got = b""
    stuck[0].settimeout(10)
    while len(got) < len(data["big"]):
        data_read = stuck[0].recv(1 << 20)
        assert data_read
        got += data_read
    assert got.split(b"\r\n\r\n", 1)[1] == data["big"][: len(got.split(b"\r\n\r\n", 1)[1])]
    for sock in stuck:
        sock.close()
    deadline = time.monotonic() + 10
    folder = f"/proc/{server.process.pid}/fd"
    while len(os.listdir(folder)) > 40:
        assert time.monotonic() < deadline, "descriptors are left open"
        time.sleep(0.05)


def test_http_endless_head_closes_connection(registry):
    with socket.create_connection(("127.0.0.1", registry[0].port), 10) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|[Bb]roken|abort"):
            _send_headers(sock)


def _send_headers(sock):
    for _ in range(1000):
        sock.sendall(b"x-header: " + b"a" * 1000 + b"\r\n")
        time.sleep(0.001)


def test_http_private_registry_without_key_returns_401(registry):
    one = registry[2]
    server = one.serve("--private")
    for path in ("/index", "/bundles/big/1.0/any/big.xyb"):
        answer, body = ask(server, "GET", path)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert json.loads(body)["error"]["code"] == "authentication_error"
        assert ask(server, "GET", path, authorization="Bearer k1")[0].status == 200
    assert ask(server, "GET", "/health")[0].status == 200


def test_http_issued_key_scopes_are_enforced(registry, tmp_path):
    one = registry[2]
    server = one.serve("--private")
    path, data = "/bundles/issued/1/any/issued.xyb", make_bundle(tmp_path / "i.xyb", "issued", "1").read_bytes()

    def issue(scope):
        return json.loads(one.run("keys", "create", "--name", scope, "--scope", scope, "--json").stdout)

    reader, writer, chatter = (issue(scope) for scope in ("registry:read", "registry:write", "chat"))
    big = "/bundles/big/1.0/any/big.xyb"
    for key, read, write in ((reader, 200, 403), (chatter, 403, 403), (writer, 403, 201), ({"key": "no"}, 401, 401)):
        bearer = f"Bearer {key['key']}"
        assert ask(server, "GET", big, authorization=bearer)[0].status == read
        assert ask(server, "GET", "/index", authorization=bearer)[0].status == read
        assert ask(server, "PUT", path, data, authorization=bearer)[0].status == write
    one.run("keys", "revoke", reader["id"])
    until(lambda: ask(server, "GET", big, authorization=f"Bearer {reader['key']}")[0].status == 401, 20)


def test_http_index_json_entry_outside_root_is_not_served(registry, tmp_path):
    server, _, one = registry
    inside = one.root / "tool/1/any/tool.xyb"
    inside.parent.mkdir(parents=True)
    make_bundle(inside, "tool", "1")
    outside = make_bundle(tmp_path / "out.xyb", "out", "1")
    index = json.loads((one.root / "index.json").read_text())
    for name, path in (("tool", "tool/1/any/tool.xyb"), ("out", str(outside))):
        size = os.path.getsize(outside if name == "out" else inside)
        entry = {"model_id": name, "version": "1", "target": "any", "size_bytes": size, "path": path}
        index[f"{name}/1/any"] = entry
    (one.root / "index.json").write_text(json.dumps(index))
    answer, body = ask(server, "GET", "/bundles/tool/1/any/tool.xyb") if _listed(server, "tool") else (None, b"")
    assert body == inside.read_bytes()
    assert answer.headers["etag"].startswith('"sha256:')
    assert not _listed(server, "out")
    assert ask(server, "GET", "/bundles/out/1/any/out.xyb")[0].status == 404
    assert "out" in one.run("registry", "ls").stdout
    one.run("registry", "pull", "out@1")


def _listed(server: Server, name: str) -> bool:
    return f"{name}/1/any" in json.loads(ask(server, "GET", "/index")[1])


def test_http_gateway_key_can_read_but_not_write(registry):
    server, data, _ = registry
    for method, path in (("PUT", "/bundles/new/1.0/any/new.xyb"), ("POST", "/bundles/small/1.0/any/yank")):
        answer, body = ask(server, method, path, data["small"], authorization="Bearer chatter")
        assert (answer.status, b"registry:write" in body) == (403, True)
    assert ask(server, "GET", "/bundles/small/1.0/any/small.xyb", authorization="Bearer chatter")[1] == data["small"]
