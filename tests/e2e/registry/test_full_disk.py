"""A registry on a full disk returns 507, leaves no partial file, and recovers. Uses a small tmpfs."""

import contextlib
import http.client
import json
import os
import subprocess

import pytest

from .conftest import Server, make_bundle, until

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path):
    """A disk of 64 MiB, on which a ballast file takes the free space."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a tmpfs, as root does; RLIMIT_FSIZE stands in for it in test_health.py")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk):
    """Fill the disk to the last byte."""
    with (disk / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def free(disk):
    (disk / "ballast").unlink()


def ask(server: Server, method: str, path: str, body: bytes | None = None):
    """Send a request. A body is sent chunked, so that its length is not known in advance."""
    headers = {"authorization": "Bearer k1"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, None if body is None else iter([body]), headers, encode_chunked=True)
        answer = connection.getresponse()
        return answer.status, answer.read()


def state(root):
    """Return all files except the records and locks."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and "locks" not in path.parts and not path.name.startswith(("records.", "index.lock"))
    )


def test_registry_full_disk_writes_return_507_and_reads_work(machine, disk, tmp_path):
    one = machine(SVC_REGISTRY_ROOT=str(disk / "registry"), SVC_REGISTRY_KEYS="k1")
    one.root = disk / "registry"
    first = make_bundle(tmp_path / "a.xyb", "a", "1").read_bytes()
    more = make_bundle(tmp_path / "b.xyb", "b", "1", data=os.urandom(2 * MIB)).read_bytes()
    server = one.serve()
    assert ask(server, "PUT", "/bundles/a/1/any/a.xyb", first)[0] == 201
    before = state(one.root)
    fill(disk)
    for body in (first.replace(b'"a"', b'"b"'), more):
        status, response_body = ask(server, "PUT", "/bundles/b/1/any/b.xyb", body)
        assert (status, json.loads(response_body)["error"]["code"]) == (507, "insufficient_storage")
    for number in range(2000):  # SQLite first uses the pages already allocated to its log
        status, response_body = ask(server, "POST", f"/bundles/a/1/any/{'un' * (number % 2)}yank")
        if status != 200:
            break
    assert (status, json.loads(response_body)["error"]["code"]) == (507, "insufficient_storage")
    assert ask(server, "GET", "/bundles/a/1/any/a.xyb") == (200, first)
    status, response_body = ask(server, "GET", "/index")
    assert (status, list(json.loads(response_body))) == (200, ["a/1/any"])
    assert state(one.root) == before, "a partial file remains"
    assert one.run("registry", "add", tmp_path / "b.xyb", check=1).stderr.startswith("svc: ")
    free(disk)
    assert ask(server, "PUT", "/bundles/b/1/any/b.xyb", more)[0] == 201
    assert ask(server, "POST", "/bundles/a/1/any/yank")[0] == 200
    until(lambda: set(json.loads((one.root / "index.json").read_bytes())) == {"a/1/any", "b/1/any"})
    until(lambda: json.loads((one.root / "index.json").read_bytes())["a/1/any"]["yanked"])
    assert {line.split()[0] for line in one.run("registry", "verify").stdout.splitlines()} == {"ok"}
    server.process.terminate()
    assert b"Traceback" not in server.process.communicate(timeout=20)[1]


@pytest.mark.slow
def test_pull_full_disk_fails_until_space_is_freed(machine, disk, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=os.urandom(3 * MIB)))
    server = one.serve()
    two = machine("two", SVC_REGISTRY_ROOT=str(disk / "registry"))
    fill(disk)
    for reserve in (
        0,
        4096 * 64,
        2 * MIB,
        5 * MIB,
    ):  # space for nothing, the records, a part, the file but not its content
        size = (disk / "ballast").stat().st_size
        os.truncate(disk / "ballast", size - reserve)
        response_body = two.run("registry", "pull", "m@1.0", "--registry", server.url, check=1).stderr
        assert response_body.splitlines()[-1].startswith("svc: "), response_body
        assert "Traceback" not in response_body
        assert not (disk / "registry/m/1.0/any/content").exists()
    free(disk)
    two.run("registry", "pull", "m@1.0", "--registry", server.url)
    assert (disk / "registry/m/1.0/any/m.xyb").read_bytes() == (tmp_path / "m.xyb").read_bytes()
    assert (disk / "registry/m/1.0/any/content/w.bin").stat().st_size == 3 * MIB
    assert {line.split()[0] for line in two.run("registry", "verify").stdout.splitlines()} == {"ok"}


def test_pull_through_full_disk_returns_507_until_space_is_freed(machine, disk, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=os.urandom(3 * MIB)))
    upstream = one.serve()
    two = machine("two", SVC_REGISTRY_ROOT=str(disk / "registry"))
    server = two.serve("--upstream", upstream.url)
    fill(disk)
    status, response_body = ask(server, "GET", "/bundles/m/1.0/any/m.xyb")
    assert (status, json.loads(response_body)["error"]["code"]) == (507, "insufficient_storage")
    assert ask(server, "GET", "/index")[0] == 200
    free(disk)
    assert ask(server, "GET", "/bundles/m/1.0/any/m.xyb") == (200, (tmp_path / "m.xyb").read_bytes())


def test_registry_commands_on_full_disk_read_and_explain_writes(machine, disk, tmp_path):
    one = machine(SVC_REGISTRY_ROOT=str(disk / "registry"))
    one.run("registry", "add", make_bundle(tmp_path / "a.xyb", "a", "1"))
    folder = one.run("registry", "pull", "a@1").stdout
    server = one.serve()
    one.run("registry", "add", make_bundle(tmp_path / "b.xyb", "b", "1"))
    server.kill()  # SQLite has not written its log to the database
    assert (disk / "registry/.registry/records.sqlite-wal").stat().st_size
    (disk / "registry/.registry/records.sqlite-shm").unlink()
    fill(disk)
    assert [line.split()[0] for line in one.run("registry", "ls").stdout.splitlines()] == ["MODEL", "a", "b"]
    assert one.run("registry", "verify").stdout.split() == ["ok", "a/1/any", "ok", "b/1/any"]
    assert one.run("registry", "pull", "a@1").stdout == folder
    assert one.run("registry", "gc").stdout == ""
    yank = one.run("registry", "yank", "a@1", check=1).stderr
    assert "svc: The registry's disk is full: free some space. (" in yank
    model = tmp_path / "model"
    model.mkdir()
    (model / "w.bin").write_bytes(os.urandom(MIB))
    metadata = {"model_id": "c", "version": "1", "execution_template": {"type": "X"}, "files": ["w.bin"]}
    (model / "model_metadata.json").write_text(json.dumps(metadata))
    pack = one.run("bundle", "pack", model, "-o", disk / "c.xyb", check=1).stderr
    assert pack == f"svc: No space left on device: {disk / 'c.xyb'}. Free space on the disk, or write to another one.\n"
    server = one.serve()
    assert ask(server, "GET", "/bundles/a/1/any/a.xyb") == (200, (tmp_path / "a.xyb").read_bytes())
    assert sorted(json.loads(ask(server, "GET", "/index")[1])) == ["a/1/any", "b/1/any"]
    free(disk)
    one.run("registry", "yank", "a@1")
    assert json.loads(ask(server, "GET", "/index")[1])["a/1/any"]["yanked"], "the server shows old records"


def test_unpack_without_space_names_size_of_bundle(machine, disk, tmp_path):
    one = machine(SVC_REGISTRY_ROOT=str(disk / "registry"))
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=os.urandom(3 * MIB)))
    fill(disk)
    os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - 6 * MIB)
    error = one.run("registry", "pull", "m@1.0", check=1).stderr
    assert "the bundle unpacks to 4 MiB, 16 MiB must stay free" in error
