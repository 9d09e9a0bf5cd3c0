"""Full disks, garbage collection during publishes, and bundles copied into the folder by hand."""

import contextlib
import http.client
import json
import os
import resource
import shutil
import threading
import time

import pytest

from svc.errors import AlreadyExists
from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.folder import FolderStore
from tests.soak.registry_kill import bundle

from .conftest import Server, make_bundle, until

MIB = 1 << 20


def small_files() -> None:
    """Limit the file size in the child process, which simulates a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, 2 * MIB))


def put(server: Server, path: str, data, length: int | None = None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest("PUT", path)
    connection.putheader("authorization", "Bearer k1")
    connection.putheader("content-length", str(len(data) if length is None else length))
    connection.endheaders()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server may have rejected the request already
        connection.send(data)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_publish_file_size_limit_returns_507_and_leaves_no_file(machine, tmp_path):
    one = machine(SVC_REGISTRY_KEYS="k1")
    server = Server(one.start("registry", "serve", "--port", "0", preexec_fn=small_files))
    large = make_bundle(tmp_path / "l.xyb", "large", "1", data=os.urandom(5 * MIB)).read_bytes()
    status, response = put(server, "/bundles/large/1/any/large.xyb", large)
    assert (status, response["error"]["code"]) == (507, "insufficient_storage")
    assert not list((one.root / ".registry/uploads").iterdir())
    assert not (one.root / "large").exists()
    status, response = put(server, "/bundles/huge/1/any/huge.xyb", b"PK\x03\x04", length=10**15)
    assert (status, response["error"]["code"]) == (507, "insufficient_storage"), (
        "a body larger than the disk is rejected immediately"
    )
    small = make_bundle(tmp_path / "s.xyb", "small", "1").read_bytes()
    assert put(server, "/bundles/small/1/any/small.xyb", small)[0] == 201, "the server does not recover"


def test_pull_file_size_limit_keeps_part_and_resumes(machine, tmp_path):
    one = machine(SVC_REGISTRY_KEYS="k1")
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=os.urandom(5 * MIB)))
    server, two = one.serve(), machine("two")
    client = two.start("registry", "pull", "m@1.0", "--registry", server.url, preexec_fn=small_files)
    assert client.wait(30) == 1
    assert client.stderr.read().decode().strip() == "svc: The disk is full; the bytes received so far are kept."
    (part,) = (two.root / ".registry/downloads").glob("*.part")
    assert part.stat().st_size == 2 * MIB
    two.run("registry", "pull", "m@1.0", "--registry", server.url)
    assert (two.root / "m/1.0/any/m.xyb").read_bytes() == (tmp_path / "m.xyb").read_bytes()


def test_gc_during_publish_keeps_upload(machine, tmp_path):
    one = machine(SVC_REGISTRY_KEYS="k1")
    server = one.serve()
    data = make_bundle(tmp_path / "m.xyb", data=os.urandom(3 * MIB)).read_bytes()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest("PUT", "/bundles/m/1.0/any/m.xyb")
    connection.putheader("authorization", "Bearer k1")
    connection.putheader("content-length", str(len(data)))
    connection.endheaders(data[: 2 * MIB])
    uploads = one.root / ".registry/uploads"
    until(lambda: any(part.stat().st_size for part in uploads.glob("*.part")))
    orphan = one.root / "orphan/1/any/orphan.xyb"
    orphan.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "m.xyb", orphan)
    assert one.run("registry", "gc", "--dry-run").stdout == "would remove orphan/1/any/orphan.xyb\n"
    assert one.run("registry", "gc").stdout == "removed orphan/1/any/orphan.xyb\n"
    assert not orphan.parent.parent.parent.exists()
    connection.send(data[2 * MIB :])
    assert connection.getresponse().status == 201
    assert one.run("registry", "verify").stdout.startswith("ok")


def drop_until(stop, root):
    """Create unlisted bundles for the garbage collector to remove."""
    number = 0
    while not stop.is_set():
        number += 1
        path = root / f"p{number % 40}/dropped/any/p{number % 40}.xyb"
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # gc has just removed the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")


@pytest.mark.slow
def test_gc_concurrent_with_publishers_loses_no_bundle(tmp_path):
    """Two collectors run during every step of every publish."""
    root, stop, kept, faults = tmp_path / "root", threading.Event(), {}, []
    FolderStore(root).close()

    def collect():
        with FolderStore(root) as store:
            while not stop.is_set():
                try:
                    taken = [name for name in store.gc() if "dropped" not in name]
                    assert not taken, "gc removed a bundle that a publish was about to list"
                except Exception as error:
                    faults.append(error)
                    return

    def publish(number):
        with FolderStore(root) as store:
            for version in range(40):
                spool = store.create_upload()
                spool.write(bundle(f"p{version}", str(number % 2)))
                try:
                    entry, _ = store.publish(spool, BundleDraft(f"p{version}", str(number % 2), "any"))
                    kept[entry.key] = entry.sha256
                except AlreadyExists:  # the other publisher of this name won
                    continue
                except Exception as error:
                    faults.append(error)
                    return

    collectors = [threading.Thread(target=collect) for _ in range(2)]
    collectors.append(threading.Thread(target=drop_until, args=(stop, root)))
    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in collectors + publishers:
        thread.start()
    for thread in publishers:
        thread.join(60)
    stop.set()
    for thread in collectors:
        thread.join(20)
    assert not faults
    with FolderStore(root) as store:
        list(store.gc())
        assert {finding.key: finding.state for finding in store.verify()} == dict.fromkeys(kept, "ok")
        assert {entry.key: entry.sha256 for entry in store.entries()} == kept


def test_gc_removes_only_old_partial_downloads(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=os.urandom(6 * MIB)))
    server, two = one.serve(), machine("two")
    downloads = two.root / ".registry/downloads"
    downloads.mkdir(parents=True)
    old = downloads / "forgotten.part"
    old.write_bytes(b"x")
    os.utime(old, (time.time() - 30 * 86400,) * 2)
    (downloads / "recent.part").write_bytes(b"x")
    assert two.run("registry", "gc").stdout == "removed .registry/downloads/forgotten.part\n"
    two.run("registry", "pull", "m@1.0", "--registry", server.url)
    assert two.run("registry", "gc").stdout == ""


def test_verify_unlisted_bundles_are_reported_and_repaired(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    for name in ("good", "other", "torn"):
        path = one.root / name / "1" / "any" / f"{name}.xyb"
        path.parent.mkdir(parents=True)
        make_bundle(path, "good" if name == "other" else name, "1")
    torn = one.root / "torn/1/any/torn.xyb"
    torn.write_bytes(torn.read_bytes()[:-5])
    found = json.loads(one.run("registry", "verify", "--json", check=1).stdout)
    assert {each["key"]: each["state"] for each in found} == {
        "m/1.0/any": "ok",
        "good/1/any": "unlisted",
        "other/1/any": "unlisted",
        "torn/1/any": "unlisted",
    }
    offer = next(each["detail"] for each in found if each["key"] == "good/1/any")
    assert "svc registry verify --repair" in offer
    assert "cannot be added" in next(each["detail"] for each in found if each["key"] == "other/1/any")
    assert len(json.loads(one.run("registry", "ls", "--json").stdout)) == 1, "verify without --repair changes nothing"
    found = json.loads(one.run("registry", "verify", "--repair", "--json", check=1).stdout)
    states = {each["key"]: each["state"] for each in found}
    assert (states["good/1/any"], states["other/1/any"], states["torn/1/any"]) == ("added", "unlisted", "unlisted")
    assert "good/1/any" in json.loads((one.root / "index.json").read_text())
    one.run("registry", "pull", "good@1")
    assert (one.root / "good/1/any/content/w.bin").read_bytes() == b"weights"
    assert one.run("registry", "gc").stdout.count("removed") == 2


def test_verify_repair_removed_bundle_is_pulled_again(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    server, two = one.serve(), machine("two")
    two.run("registry", "pull", "m@1.0", "--registry", server.url)
    file = two.root / "m/1.0/any/m.xyb"
    file.write_bytes(file.read_bytes().replace(b"weights", b"weighty"))
    advice = two.run("registry", "verify", "--root", str(two.root), check=1).stdout
    assert advice.rstrip().endswith(f"svc registry verify --repair --root {two.root}")
    assert two.run("registry", "verify", "--repair").stdout.startswith("moved aside m/1.0/any  damaged; it is now at ")
    assert two.run("registry", "ls").stdout.splitlines()[1].split()[4] == "missing"
    assert "pull or publish it again" in two.run("registry", "verify", check=1).stdout
    unreachable = two.run("registry", "pull", "m@1.0", "--registry", "http://127.0.0.1:1")
    assert "cannot be reached" in unreachable.stderr, "the unpacked content is still usable"
    two.run("registry", "pull", "m@1.0", "--registry", server.url)
    assert file.read_bytes() == (tmp_path / "m.xyb").read_bytes()
    two.run("registry", "verify")


def test_records_corrupt_prints_one_line_and_are_rebuilt(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    records = one.root / ".registry/records.sqlite"
    records.write_bytes(b"no database" * 100)
    response = one.run("registry", "ls", check=1).stderr
    assert response.startswith("svc: ")
    assert response.count("\n") == 1
    records.unlink()
    assert "m/1.0/any" in one.run("registry", "verify").stdout


def test_publish_client_disconnect_removes_upload_without_traceback(machine):
    one = machine(SVC_REGISTRY_KEYS="k1")
    server = one.serve()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.putrequest("PUT", "/bundles/m/1.0/any/m.xyb")
        connection.putheader("authorization", "Bearer k1")
        connection.putheader("content-length", str(MIB))
        connection.endheaders(b"PK")
        until(lambda: list((one.root / ".registry/uploads").glob("*.part")))
    until(lambda: not list((one.root / ".registry/uploads").iterdir()))
    server.process.terminate()
    assert "Traceback" not in server.process.communicate(timeout=20)[1].decode()
