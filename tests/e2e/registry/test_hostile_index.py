"""Unreadable index entries, from another tool or an upstream registry, do not affect other bundles."""

import contextlib
import hashlib
import http.client
import json
import os
import sqlite3
import time

import pytest

from tests.fakes.web import Answer, WebServer

from .conftest import make_bundle, until

DAMAGED = {
    "invalid UTF-8": b'"bad/1/any":{"model_id":"\xff"}',
    "invalid UTF-8 in the key": b'"bad\xff":{"model_id":"bad"}',
    "deep nesting": b'"bad/1/any":' + b"[" * 100_000 + b"]" * 100_000,
    "nesting that a parser just takes": b'"bad/1/any":{"x":' + b"[" * 900 + b"]" * 900 + b"}",
    "a lone surrogate": b'"bad/1/any":{"model_id":"\\ud800"}',
    "a size beyond any file": b'"bad/1/any":{"model_id":"bad","version":"1","target":"any","path":"x","size_bytes":%d}'
    % 10**30,
}
each_damaged_member = pytest.mark.parametrize("member", DAMAGED.values(), ids=DAMAGED)


def ask(port, path):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


@each_damaged_member
def test_index_json_damaged_entry_is_logged_and_others_are_served(machine, tmp_path, member):
    one = machine(SVC_REGISTRY_KEYS="k1")
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    server = one.serve()
    inside = one.root / "tool/1/any/tool.xyb"
    inside.parent.mkdir(parents=True)
    make_bundle(inside, "tool", "1")
    entry = {"model_id": "tool", "version": "1", "target": "any", "path": "tool/1/any/tool.xyb"}
    tool = json.dumps(entry | {"size_bytes": inside.stat().st_size}).encode()
    (one.root / "index.json").write_bytes(b'{%s,"tool/1/any":%s}' % (member, tool))
    assert ask(server.port, "/index")[0] == 200
    until(lambda: set(json.loads(ask(server.port, "/index")[1])) == {"m/1.0/any", "tool/1/any"})
    for name, version in (("m", "1.0"), ("tool", "1")):
        assert ask(server.port, f"/bundles/{name}/{version}/any/{name}.xyb")[0] == 200
    assert ask(server.port, "/bundles/bad/1/any/bad.xyb")[0] == 404
    again = json.loads((one.root / "index.json").read_bytes())
    assert {"m/1.0/any", "tool/1/any"} <= set(again), "the rewritten index is readable"
    assert one.run("registry", "ls").stdout.count("any") == 2
    folder = machine("two").run("registry", "pull", "tool@1", "--registry", f"file://{one.root}")
    assert "tool@1" in folder.stdout
    server.process.terminate()
    log = server.process.communicate(timeout=20)[1]
    assert b"bad" in log
    assert b"Traceback" not in log


def test_index_json_written_in_two_steps_is_imported(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    server = one.serve()
    path = one.root / "tool/1/any/tool.xyb"
    path.parent.mkdir(parents=True)
    make_bundle(path, "tool", "1")
    entry = {"model_id": "tool", "version": "1", "target": "any", "path": "tool/1/any/tool.xyb"}
    data = json.dumps({"tool/1/any": entry | {"size_bytes": path.stat().st_size}})
    with (one.root / "index.json").open("w") as file:
        file.write(data[:20])
        file.flush()
        assert list(json.loads(ask(server.port, "/index")[1])) == ["m/1.0/any"]
        file.write(data[20:])
    until(lambda: set(json.loads(ask(server.port, "/index")[1])) == {"m/1.0/any", "tool/1/any"})
    assert not list(one.root.glob("index.json.unreadable*"))


def test_index_json_invalid_is_renamed_and_rewritten(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    (one.root / "index.json").write_bytes(b"no JSON")
    os.utime(one.root / "index.json", (time.time() - 60,) * 2)
    assert "m" in one.run("registry", "ls").stdout
    assert [file.read_bytes() for file in one.root.glob("index.json.unreadable*")] == [b"no JSON"]
    assert "m/1.0/any" in json.loads((one.root / "index.json").read_bytes())


@each_damaged_member
def test_upstream_index_damaged_entry_is_skipped_and_logged_once(machine, tmp_path, member):
    data = make_bundle(tmp_path / "m.xyb").read_bytes()
    entry = {"model_id": "m", "version": "1.0", "target": "any", "size_bytes": len(data), "path": "x"}
    index = b'{%s,"m/1.0/any":%s}' % (member, json.dumps(entry).encode())
    with WebServer(lambda request: Answer(body=index if request.path.startswith("/index") else data)) as upstream:
        one = machine()
        server = one.serve("--upstream", upstream.url)
        status, body = ask(server.port, "/index")
        assert (status, list(json.loads(body))) == (200, ["m/1.0/any"])
        assert ask(server.port, "/bundles/bad/1/any/bad.xyb")[0] == 404
        assert ask(server.port, "/bundles/m/1.0/any/m.xyb") == (200, data)
        two = machine("two")
        done = two.run("registry", "pull", "m@1.0", "--registry", upstream.url)
        assert done.stderr.count("\n") == 1
        assert "bad" in done.stderr
        server.process.terminate()
        log = server.process.communicate(timeout=20)[1]
        assert log.count(b"are skipped") == 1, "the warning is logged once"
        assert b"Traceback" not in log


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"m":', b"[" * 100_000], ids=repr)
def test_upstream_index_invalid_returns_502(machine, body):
    with WebServer(lambda request: Answer(body=body)) as upstream:
        server = machine().serve("--upstream", upstream.url)
        assert ask(server.port, "/index") == (200, b"{}")
        status, answer = ask(server.port, "/bundles/m/1/any/m.xyb")
        error = json.loads(answer)["error"]
        assert (status, error["code"]) == (502, "registry_error")
        assert "the index of the upstream registry could not be read" in error["message"]
        assert upstream.url not in error["message"]
        done = machine("two").run("registry", "pull", "m@1", "--registry", upstream.url, check=1)
        assert done.stderr.startswith("svc: ")
        assert done.stderr.count("\n") == 1


def serve_one(data: bytes, **about):
    """An upstream whose index lists `data` as m@1.0."""
    entry = {"model_id": "m", "version": "1.0", "target": "any", "size_bytes": len(data), "path": "x"}
    index = json.dumps({"m/1.0/any": entry | about}).encode()
    return WebServer(lambda request: Answer(body=index if request.path.startswith("/index") else data))


@pytest.mark.parametrize(
    ("data", "about", "what"),
    [
        (b"no bundle at all", {}, "is damaged"),
        (b"PK\x03\x04" + bytes(200), {}, "is damaged"),
        (b"other bytes", {"sha256": "0" * 64}, "does not match its index"),
    ],
)
def test_upstream_bundle_damaged_returns_502(machine, data, about, what):
    with serve_one(data, **about) as upstream:
        server = machine().serve("--upstream", upstream.url)
        status, answer = ask(server.port, "/bundles/m/1.0/any/m.xyb")
        error = json.loads(answer)["error"]
        assert (status, error["code"], error["type"]) == (502, "registry_error", "api_error")
        assert "m/1.0/any" in error["message"]
        assert what in error["message"]
        assert upstream.url not in error["message"]


def test_upstream_index_without_the_bundle_returns_404(machine):
    with serve_one(b"x") as upstream:
        server = machine().serve("--upstream", upstream.url)
        status, answer = ask(server.port, "/bundles/other/1.0/any/other.xyb")
        assert (status, json.loads(answer)["error"]["code"]) == (404, "bundle_not_found")


def test_bundle_open_failure_returns_500(machine, tmp_path):
    """The records disappear while the server runs. The client gets a response whatever the error."""
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    server = one.serve()
    with contextlib.closing(sqlite3.connect(one.root / ".registry/records.sqlite")) as records:
        records.execute("DROP TABLE bundle")
        records.commit()
    until(lambda: ask(server.port, "/bundles/m/1.0/any/m.xyb")[0] == 500)


@pytest.mark.parametrize("path", ["/index", "/index/tool0"])
def test_index_entry_without_sha256_is_served_with_computed_one(machine, path):
    """The first request computes the hash of every file."""
    one = machine()
    server = one.serve()
    index = {}
    for number in range(3):
        file = one.root / f"tool{number}/1/any/tool{number}.xyb"
        file.parent.mkdir(parents=True)
        make_bundle(file, f"tool{number}", "1")
        entry = {"model_id": f"tool{number}", "version": "1", "target": "any", "path": str(file)}
        index[f"tool{number}/1/any"] = entry | {"size_bytes": file.stat().st_size}
    (one.root / "new.json").write_text(json.dumps(index))
    os.replace(one.root / "new.json", one.root / "index.json")
    found = json.loads(ask(server.port, path)[1])
    assert len(found) == (3 if path == "/index" else 1)
    for key, entry in found.items():
        file = one.root / key / f"{entry['model_id']}.xyb"
        assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    until(lambda: all(entry["sha256"] for entry in json.loads((one.root / "index.json").read_bytes()).values()))
