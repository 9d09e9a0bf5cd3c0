"""Resolves bundles with the real command against real servers."""

import contextlib
import hashlib
import json
import os
import pty
import random
import socket
import subprocess
import zipfile

import httpx2
import pytest

from svc.cli import main
from tests.fakes.web import Answer, WebServer

from .conftest import SVC, make_bundle, until
from .throttle import Throttle


@pytest.fixture
def served(machine, tmp_path):
    one = machine(SVC_REGISTRY_KEYS="k1")
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    return one.serve()


def test_pull_cached_bundle_works_without_network(served, machine):
    two = machine("two")
    output = json.loads(two.run("registry", "pull", "m@1.0", "--registry", served.url, "--json").stdout)
    assert output["path"] == str(two.root / "m/1.0/any/content")
    assert (two.root / "m/1.0/any/content/w.bin").read_bytes() == b"weights"
    served.kill()
    two.run("registry", "pull", "m@1.0", "--registry", served.url)
    offline = two.run("registry", "pull", "m", "--registry", served.url)
    assert "cannot be reached" in offline.stderr
    assert "m/1.0/any" in json.loads((two.root / "index.json").read_text())


def test_models_rm_removes_one_version_of_a_pulled_bundle(served, machine, tmp_path):
    machine("one").run("registry", "add", make_bundle(tmp_path / "m.xyb", version="1.1"))
    two = machine("two")
    for version in ("1.0", "1.1"):
        two.run("registry", "pull", f"m@{version}", "--registry", served.url)
    assert two.run("models", "rm", "m@1.0").stdout == "m@1.0 removed\n"
    assert [path.name for path in (two.root / "m").iterdir()] == ["1.1"]
    assert [entry["version"] for entry in json.loads(two.run("registry", "ls", "--json").stdout)] == ["1.1"]
    assert "'m@1.0' is not installed" in two.run("models", "rm", "m@1.0", check=1).stderr
    assert "names no version" in two.run("models", "rm", "m@latest", check=2).stderr
    two.run("registry", "pull", "m@1.0", "--registry", served.url)
    foreign = make_bundle(tmp_path / "foreign.xyb", "f", "1")
    entry = {"model_id": "f", "version": "1", "target": "any", "size_bytes": foreign.stat().st_size}
    index = json.loads((two.root / "index.json").read_text())
    (two.root / "index.json").write_text(json.dumps(index | {"f/1/any": entry | {"path": str(foreign)}}))
    two.run("models", "rm", "f@1")
    assert foreign.exists()


def test_pull_registry_behind_failing_proxy_uses_installed_version(served, machine):
    two = machine("two")
    two.run("registry", "pull", "m", "--registry", served.url)
    with WebServer(lambda request: Answer(502, body=b"<html>Bad Gateway</html>")) as proxy:
        pulled = two.run("registry", "pull", "m", "--registry", proxy.url)
        assert pulled.stderr == f"svc: {proxy.url}: it returned status 502. Using the newest installed version.\n"
        assert "returned status 502" in two.run("registry", "pull", "n", "--registry", proxy.url, check=1).stderr


def test_pull_exact_cached_version_opens_no_connection(served, machine):
    """The listener would see any connection."""
    two = machine("two")
    two.run("registry", "pull", "m@1.0", "--registry", served.url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        two.run("registry", "pull", "m@1.0", "--registry", url)
        (two.root / "m/1.0/any/content/w.bin").unlink()
        two.run("registry", "pull", "m@1.0", "--registry", url)
        assert (two.root / "m/1.0/any/content/w.bin").read_bytes() == b"weights", "the content was not unpacked again"
        with pytest.raises(TimeoutError):
            listener.accept()


def test_pull_progress_bar_is_shown_only_on_terminal(served, machine):
    two = machine("two")
    assert two.run("registry", "pull", "m@1.0", "--registry", served.url).stderr == ""
    terminal, end = pty.openpty()
    three = machine("three")
    command = [*SVC, "registry", "pull", "m@1.0", "--registry", served.url]
    with subprocess.Popen(command, env=three.environ, stdout=subprocess.PIPE, stderr=end) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(terminal, 1 << 16):
                shown += data
        assert process.wait(20) == 0
    os.close(terminal)
    assert b"pulling m@1.0" in shown
    assert "━" in shown.decode()


def test_bundle_size_limit_is_enforced_by_add_push_and_pull(served, machine, tmp_path):
    path = make_bundle(tmp_path / "z.xyb", "zeros", "1", data=bytes(1 << 20))
    one = machine("limited", SVC_REGISTRY_KEY="k1", SVC_REGISTRY_KEYS="k1", SVC_BUNDLE_MAX_BYTES="1000")
    assert "more than the limit of 1000" in one.run("registry", "add", path, check=1).stderr
    assert (
        "more than the limit of 1000"
        in one.run("registry", "push", path, "--registry", one.serve().url, check=1).stderr
    )
    one.run("registry", "push", path, "--registry", served.url, SVC_BUNDLE_MAX_BYTES="")
    assert (
        "more than the limit of 1000"
        in one.run("registry", "pull", "zeros@1", "--registry", served.url, check=1).stderr
    )
    assert not (one.root / "zeros").exists()
    one.run("registry", "pull", "zeros@1", "--registry", served.url, check=2, SVC_BUNDLE_MAX_BYTES="much")


def test_pull_failure_prints_one_line(served, machine):
    two = machine("two")
    for name in ("m@2", "gone", "../m"):
        output = two.run("registry", "pull", name, "--registry", served.url, check=1)
        assert len(output.stderr.splitlines()) == 1
    two.run("registry", "pull", "m@1.0", "--registry", "ftp://x", check=2)
    two.run("registry", "pull", "m@1.0", "--registry", served.url, "--platform", "ios-arm64")
    served.kill()
    assert (
        "cannot be reached" in machine("three").run("registry", "pull", "m", "--registry", served.url, check=1).stderr
    )


def test_pull_resolves_newest_version_that_is_not_yanked(served, machine, tmp_path):
    two = machine("two", SVC_REGISTRY_KEY="k1", SVC_REGISTRY_URL=served.url)
    for version in ("1.2", "1.10", "2.0-rc1"):
        two.run("registry", "push", make_bundle(tmp_path / "v.xyb", version=version))
    assert "already" in two.run("registry", "push", tmp_path / "v.xyb").stdout
    two.run("registry", "push", make_bundle(tmp_path / "v.xyb", version="1.2", data=b"other"), check=1)
    assert json.loads(two.run("registry", "pull", "m", "--json").stdout)["reference"] == "m@1.10"
    two.run("registry", "yank", "m@1.10", "--registry", served.url)
    three = machine("three", SVC_REGISTRY_URL=served.url)
    assert json.loads(three.run("registry", "pull", "m@1", "--json").stdout)["reference"] == "m@1.2"
    assert json.loads(three.run("registry", "pull", "m@1.10", "--json").stdout)["reference"] == "m@1.10"
    for version in ("1.2", "1.0"):
        two.run("registry", "yank", f"m@{version}", "--registry", served.url)
    yanked = "svc: Version 1.10 of m is yanked. To use it, give its version: m@1.10\n"
    assert three.run("registry", "pull", "m@1", "--root", str(tmp_path / "empty"), check=1).stderr == yanked
    stranger = machine("stranger", SVC_REGISTRY_KEY="wrong")
    assert "not valid" in stranger.run("registry", "yank", "m@1.2", "--registry", served.url, check=1).stderr


def test_pull_from_folder_url_works(served, machine):
    two = machine("two")
    root = machine().root
    two.run("registry", "pull", "m", "--registry", f"file://{root}")
    assert (two.root / "m/1.0/any/content/w.bin").is_file()
    assert "no folder" in two.run("registry", "pull", "x", "--registry", "file:///no/such", check=1).stderr


def test_pull_bundle_with_path_traversal_leaves_no_file(machine, tmp_path):
    """Another tool writes the bundle and index.json, so that no publish can reject it."""
    one = machine()
    path = one.root / "m/1/any/m.xyb"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(make_bundle(path, version="1"), "a") as archive:
        archive.writestr("../../../../escaped", "x")
    entry = {"model_id": "m", "version": "1", "target": "any", "size_bytes": path.stat().st_size, "path": str(path)}
    (one.root / "index.json").write_text(json.dumps({"m/1/any": entry}))
    server = one.serve()
    two = machine("two")
    assert "leads out" in two.run("registry", "pull", "m", "--registry", server.url, check=1).stderr
    left = [path for path in two.root.rglob("*") if path.is_file()]
    assert all(".registry" in path.parts or path.name == "index.json" for path in left), left
    assert not [path for path in left if "downloads" in path.parts or "unpacking" in path.parts]


def test_pull_resumes_after_server_and_client_are_killed(machine, tmp_path):
    """The server is killed three times: at most 1.01 times the size is sent. Then the client is killed three times."""
    one, size = machine(), 32 << 20
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=random.Random(1).randbytes(size)))
    server = one.serve()
    throttle = Throttle(server.port, 24 << 20)
    two = machine("two")
    client = two.start("registry", "pull", "m@1.0", "--registry", f"http://127.0.0.1:{throttle.port}")
    downloads = two.root / ".registry/downloads"

    def received_bytes():
        return sum(part.stat().st_size for part in downloads.glob("*.part"))

    for kill in range(1, 4):
        until(lambda kill=kill: received_bytes() > kill * (7 << 20))
        throttle.cut()
        server.kill()
        server = one.serve(port=server.port)
    assert client.wait(60) == 0, client.stderr.read()
    assert throttle.sent <= 1.01 * (tmp_path / "m.xyb").stat().st_size
    assert (two.root / "m/1.0/any/m.xyb").read_bytes() == (tmp_path / "m.xyb").read_bytes()
    three, before = machine("three"), throttle.sent
    downloads = three.root / ".registry/downloads"
    for kill in range(1, 4):
        client = three.start("registry", "pull", "m@1.0", "--registry", f"http://127.0.0.1:{throttle.port}")
        until(lambda kill=kill: downloads.exists() and received_bytes() > kill * (7 << 20))
        client.kill()
        client.wait(10)
    three.run("registry", "pull", "m@1.0", "--registry", f"http://127.0.0.1:{throttle.port}")
    # Data in the sockets of a killed client is lost.
    assert throttle.sent - before <= 1.5 * (tmp_path / "m.xyb").stat().st_size
    assert not list(downloads.iterdir())
    throttle.close()


def test_pull_by_several_processes_downloads_once(machine, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=os.urandom(8 << 20)))
    throttle = Throttle(one.serve().port, 20 << 20)
    two = machine("two")
    clients = [
        two.start("registry", "pull", "m@1.0", "--registry", f"http://127.0.0.1:{throttle.port}") for _ in range(5)
    ]
    for client in clients:
        assert client.wait(60) == 0, client.stderr.read()
    assert throttle.sent < 1.1 * (8 << 20)
    throttle.close()


@pytest.mark.parametrize("damage", ["short", "flip"])
def test_pull_content_not_matching_index_is_rejected(machine, tmp_path, damage):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb", data=bytes(1 << 20)))
    server = one.serve()
    path = one.root / "m/1.0/any/m.xyb"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data if damage == "flip" else data[:-1])
    two = machine("two")
    two.run("registry", "pull", "m@1.0", "--registry", server.url, check=1)
    assert not (two.root / "m").exists()
    assert one.run("registry", "verify", check=1).stdout.startswith("damaged")
    one.run("registry", "verify", "--repair")
    one.run("registry", "add", tmp_path / "m.xyb")
    assert one.run("registry", "verify").stdout.startswith("ok")
    two.run("registry", "pull", "m@1.0", "--registry", server.url)


def test_pull_requires_signature_of_trusted_key(served, machine, tmp_path):
    one = machine("signer", SVC_REGISTRY_KEY="k1", SVC_REGISTRY_URL=served.url)
    key = one.run("registry", "sign-key").stdout.strip()
    assert one.run("registry", "sign-key").stdout.strip() == key
    assert (one.home / "signing.key").stat().st_mode & 0o777 == 0o600
    one.run("registry", "push", "--sign", make_bundle(tmp_path / "s.xyb", version="3.0"))
    stranger = machine("stranger").run("registry", "sign-key").stdout.strip()
    two = machine("two", SVC_REGISTRY_URL=served.url)
    two.run("registry", "pull", "m@3.0", SVC_TRUSTED_KEYS=f"{stranger},{key}")
    three = machine("three", SVC_REGISTRY_URL=served.url)
    assert (
        "no valid signature of a trusted key"
        in three.run("registry", "pull", "m@3.0", check=1, SVC_TRUSTED_KEYS=stranger).stderr
    )
    assert "not signed" in three.run("registry", "pull", "m@1.0", check=1, SVC_TRUSTED_KEYS=key).stderr
    assert not (three.root / "m").exists()


@pytest.mark.parametrize("action", ["add", "push"])
def test_signing_published_bundle_without_its_signature_is_an_error(served, machine, tmp_path, action):
    one = machine(SVC_REGISTRY_KEY="k1", SVC_REGISTRY_URL=served.url)
    one.run("registry", "sign-key")
    signed = make_bundle(tmp_path / "n.xyb", "n", "1")
    for _ in range(2):
        one.run("registry", action, "--sign", signed)
    error = one.run("registry", action, "--sign", tmp_path / "m.xyb", check=1).stderr
    assert error.startswith("svc: m/1.0/any was published before without this signature")


def test_trusted_keys_without_a_key_are_an_error(served, machine):
    two = machine("two", SVC_REGISTRY_URL=served.url, SVC_TRUSTED_KEYS=" , ")
    assert "SVC_TRUSTED_KEYS is set, but has no key." in two.run("registry", "pull", "m", check=2).stderr


def test_bundle_of_other_platform_error_names_platforms(served, machine, tmp_path):
    for platform in ("ios-arm64", "macos-arm64"):
        bundle = make_bundle(tmp_path / "p.xyb", "p", "2")
        machine().run("registry", "add", bundle, "--platform", platform)
    two = machine("two", SVC_REGISTRY_URL=served.url, SVC_REGISTRY_KEY="k1")
    error = two.run("registry", "pull", "p@2", check=1).stderr
    assert "Other platforms have it: ios-arm64, macos-arm64." in error
    assert "Other" not in two.run("registry", "pull", "p@3", check=1).stderr
    error = two.run("registry", "yank", "p@2", "--registry", served.url, check=1).stderr
    assert error.endswith(", only for ios-arm64, macos-arm64.\n")


def test_mirror_killed_resumes(machine, tmp_path):
    one = machine()
    for name in ("a", "b"):
        one.run("registry", "add", make_bundle(tmp_path / f"{name}.xyb", name, "1", data=os.urandom(8 << 20)))
    throttle = Throttle(one.serve().port, 24 << 20)
    two, url = machine("two"), f"http://127.0.0.1:{throttle.port}"
    first = two.start("registry", "mirror", url)
    until(lambda: list(two.root.glob("*/1/any/*.xyb")) and list(two.root.glob(".registry/downloads/*.part")))
    first.kill()
    first.wait(10)
    output = json.loads(two.run("registry", "mirror", url, "--json").stdout)
    assert (len(output["present"]), len(output["fetched"]), output["failed"]) == (1, 1, [])
    assert throttle.sent < 1.5 * (16 << 20)
    assert two.run("registry", "verify").stdout.count("ok") == 2
    throttle.close()


def test_mirror_second_run_fetches_nothing(served, machine, tmp_path):
    one = machine("more", SVC_REGISTRY_KEY="k1", SVC_REGISTRY_URL=served.url)
    for number in range(5):
        one.run("registry", "push", make_bundle(tmp_path / "v.xyb", model_id=f"n{number}", version="1"))
    one.run("registry", "yank", "n1@1", "--registry", served.url)
    two = machine("two")
    assert len(json.loads(two.run("registry", "mirror", served.url, "--json").stdout)["fetched"]) == 6
    again = json.loads(two.run("registry", "mirror", served.url, "--json").stdout)
    assert (len(again["present"]), again["failed"]) == (6, [])
    mirrored = {
        (e["sha256"], e["yanked"], e["created"]) for e in json.loads(two.run("registry", "ls", "--json").stdout)
    }
    listed = json.loads(two.run("registry", "ls", "--registry", served.url, "--json").stdout)
    assert mirrored == {(e["sha256"], e["yanked"], e["created"]) for e in listed}


def test_pull_through_serves_cached_bundle_without_upstream(served, machine, tmp_path):
    middle = machine("middle").serve("--upstream", served.url)
    two = machine("two")
    assert json.loads(two.run("registry", "ls", "--registry", middle.url, "--json").stdout)[0]["model_id"] == "m"
    two.run("registry", "pull", "m", "--registry", middle.url)
    served.kill()
    machine("three").run("registry", "pull", "m@1.0", "--registry", middle.url)
    output = machine("four").run("registry", "pull", "gone@1", "--registry", middle.url, check=1).stderr
    assert "no bundle gone@1" in output


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_pull_bundle_with_wrong_crc_is_rejected(machine, tmp_path, method):
    """A third-party registry serves any bundle."""
    about = {"model_id": "m", "version": "1", "execution_template": {"type": "X"}, "files": ["w.bin"]}
    path = tmp_path / "m.xyb"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("model_metadata.json", json.dumps(about))
        archive.writestr("w.bin", b"weights" * 100)
        right = archive.getinfo("w.bin").CRC.to_bytes(4, "little")
    data = path.read_bytes().replace(right, b"\x00\x00\x00\x00")
    entry = {"model_id": "m", "version": "1", "target": "any", "size_bytes": len(data), "path": "m.xyb"}
    index = json.dumps({"m/1/any": entry | {"sha256": hashlib.sha256(data).hexdigest()}}).encode()
    with WebServer(lambda request: Answer(body=index if request.path.startswith("/index") else data)) as server:
        one = machine()
        output = one.run("registry", "pull", "m@1", "--registry", server.url, check=1).stderr
        assert "damaged" in output
        assert output.count("\n") == 1
        assert not (one.root / "m").exists()
        assert json.loads(one.run("registry", "ls", "--json").stdout) == []
        assert not list((one.root / ".registry/downloads").iterdir())


def test_mirror_loads_certificates_once(served, machine, tmp_path, monkeypatch):
    machine("one").run("registry", "add", make_bundle(tmp_path / "n.xyb", model_id="n"))
    loads = []
    create = httpx2.create_ssl_context
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda **options: loads.append(1) or create(**options))
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "two"))
    for count in (2, 4):  # the index and the source of both bundles
        assert main(["registry", "mirror", served.url]) == 0
        assert len(loads) == count
