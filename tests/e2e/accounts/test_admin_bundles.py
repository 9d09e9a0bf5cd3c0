"""Bundles through the gateway: publish, upload in chunks, list, yank, and what the registry makes of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import create
from tests.e2e.harness import Gateway, run

BUNDLE = "/v1/admin/bundles/{model_id}/{version}/{platform}"
UPLOAD = "/v1/admin/uploads/{id}"


def make_bundle(model_id: str = "m", version: str = "1.0", weights: bytes = b"weights", **more: Any) -> bytes:
    described = {"model_id": model_id, "version": version, "execution_template": {"type": "X"}, "files": ["w.bin"]}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model_metadata.json", json.dumps(described | more))
        archive.writestr("w.bin", weights)
    return file.getvalue()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    one = Gateway(tmp_path_factory.mktemp("bundles"), env={}, is_forked=True).start()
    yield one
    assert one.stop() == 0, one.log
    assert "Traceback" not in one.log


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


def put(admin: Admin, model_id: str, bundle: bytes, version: str = "1.0", **more: Any) -> Any:
    path = f"/v1/admin/bundles/{model_id}/{version}/any"
    got = admin.gateway.request("PUT", path, bundle, key=admin.key, **more)
    admin.check("PUT", BUNDLE, got)
    return got


def append(admin: Admin, upload_id: str, offset: int, chunk: bytes) -> Any:
    got = admin.gateway.request(
        "PATCH", f"/v1/admin/uploads/{upload_id}", chunk, key=admin.key, headers={"upload-offset": str(offset)}
    )
    admin.check("PATCH", UPLOAD, got)
    return got


def announce(admin: Admin, model_id: str, bundle: bytes, **more: Any) -> Any:
    wanted = {"model_id": model_id, "version": "1.0", "size_bytes": len(bundle), **more}
    return admin("POST", "/v1/admin/uploads", wanted)


def commit(admin: Admin, upload_id: str) -> Any:
    return admin("POST", f"/v1/admin/uploads/{upload_id}/commit", at=f"{UPLOAD}/commit")


def test_bundle_published_listed_described_yanked_and_pulled(gateway: Gateway, admin: Admin) -> None:
    bundle = make_bundle("first", description="<img onerror=alert(1)>", metadata={"task": "asr", "languages": ["en"]})
    made = put(admin, "first", bundle)
    assert (made.status, made.json["sha256"]) == (201, hashlib.sha256(bundle).hexdigest())
    assert put(admin, "first", bundle).status == 200
    other = put(admin, "first", make_bundle("first", weights=b"other"))
    assert (other.status, other.code) == (409, "already_exists")

    listed = admin("GET", "/v1/admin/bundles?model=first", at="/v1/admin/bundles").json
    assert listed["has_more"] is False
    (state,) = listed["data"]
    assert (state["key"], state["signature"], state["yanked"]) == ("first/1.0/any", "unsigned", False)
    assert state["summary"]["description"] == "<img onerror=alert(1)>"
    assert (state["summary"]["task"], state["summary"]["languages"]) == ("asr", ["en"])
    assert state["pull_command"] == "svc registry pull first@1.0 --platform any"

    one = admin("GET", "/v1/admin/bundles/first/1.0/any", at=BUNDLE).json
    assert one["metadata"]["execution_template"] == {"type": "X"}
    assert [file["path"] for file in one["files"]] == ["model_metadata.json", "w.bin"]

    yanked = admin("POST", "/v1/admin/bundles/first/1.0/any/yank", at=f"{BUNDLE}/yank")
    assert (yanked.status, yanked.json["yanked"]) == (200, True)
    env = {"SVC_API_KEY": admin.key}
    assert "yanked" in run("registry", "ls", home=gateway.home, env=env).stdout
    back = admin("POST", "/v1/admin/bundles/first/1.0/any/unyank", at=f"{BUNDLE}/unyank")
    assert back.json["yanked"] is False
    pulled = run("registry", "verify", home=gateway.home)
    assert pulled.returncode == 0, pulled.stdout + pulled.stderr


def test_upload_in_chunks_continues_after_a_cut_connection(gateway: Gateway, admin: Admin) -> None:
    bundle = make_bundle("chunked", weights=os.urandom(300_000))
    upload = announce(admin, "chunked", bundle, sha256=hashlib.sha256(bundle).hexdigest())
    assert (upload.status, upload.json["offset"]) == (201, 0)
    id = upload.json["id"]
    assert append(admin, id, 0, bundle[:100_000]).json["offset"] == 100_000

    head = f"PATCH /v1/admin/uploads/{id} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {admin.key}\r\n"
    with gateway.raw() as raw:  # a chunk that is cut off adds nothing
        raw.send(f"{head}upload-offset: 100000\r\ncontent-length: 100000\r\n\r\n".encode() + b"x" * 5000)
    wrong = append(admin, id, 50_000, bundle[50_000:60_000])
    assert (wrong.status, wrong.code) == (409, "invalid_request")
    early = commit(admin, id)
    assert (early.status, early.code) == (409, "invalid_request")

    offset = admin("GET", f"/v1/admin/uploads/{id}", at=UPLOAD).json["offset"]
    assert offset == 100_000
    assert append(admin, id, offset, bundle[offset:]).json["offset"] == len(bundle)
    assert append(admin, id, len(bundle), b"x").status == 400
    done = commit(admin, id)
    assert (done.status, done.json["sha256"]) == (201, hashlib.sha256(bundle).hexdigest())
    assert commit(admin, id).status == 404
    assert not list((gateway.home / "svc/registry/.registry/resumable").glob("upload_*"))

    again = announce(admin, "chunked", bundle).json["id"]
    append(admin, again, 0, bundle)
    assert commit(admin, again).status == 200


def test_upload_survives_a_restart_and_expires(tmp_path: Path) -> None:
    one = Gateway(tmp_path, env={}, is_forked=True).start()
    try:
        admin = Admin(one)
        bundle = make_bundle("lasting", weights=os.urandom(10_000))
        kept, stale = (announce(admin, "lasting", bundle).json["id"] for _ in range(2))
        for id in (kept, stale):
            append(admin, id, 0, bundle[:5000])
        folder = tmp_path / "svc/registry/.registry/resumable"
        os.utime(folder / f"{stale}.part", (time.time() - 4000,) * 2)
        assert admin("GET", f"/v1/admin/uploads/{stale}", at=UPLOAD).status == 404
        assert one.stop() == 0
        one.start()
        assert append(admin, kept, 5000, bundle[5000:]).json["offset"] == len(bundle)
        assert not list(folder.glob(f"{stale}.*"))
        assert commit(admin, kept).status == 201
    finally:
        one.stop()


def test_upload_invalid_bundle_is_rejected_and_removed(gateway: Gateway, admin: Admin) -> None:
    folder = gateway.home / "svc/registry/.registry/resumable"
    misnamed = make_bundle("someone-else")
    damaged = make_bundle("broken")[:-30]
    for model_id, data in (("misnamed", misnamed), ("broken", damaged)):
        id = announce(admin, model_id, data).json["id"]
        append(admin, id, 0, data)
        refused = commit(admin, id)
        assert (refused.status, refused.code) == (400, "invalid_bundle")
        assert not list(folder.glob(f"{id}.*"))
    id = announce(admin, "text", b"not a bundle").json["id"]
    refused = append(admin, id, 0, b"not a bundle")
    assert (refused.status, refused.code) == (400, "invalid_bundle")
    assert admin("DELETE", f"/v1/admin/uploads/{id}", at=UPLOAD).json == {"id": id, "object": "upload", "deleted": True}
    good = make_bundle("hashed")
    id = announce(admin, "hashed", good, sha256="0" * 64).json["id"]
    append(admin, id, 0, good)
    refused = commit(admin, id)
    assert (refused.status, refused.code) == (400, "invalid_bundle")


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({}, "model_id"),
        ({"model_id": "../../etc", "version": "1", "size_bytes": 1}, "model_id"),
        ({"model_id": "a", "version": "1/2", "size_bytes": 1}, "version"),
        ({"model_id": "a", "version": "1", "platform": "", "size_bytes": 1}, "platform"),
        ({"model_id": "a", "version": "1", "size_bytes": 0}, "size_bytes"),
        ({"model_id": "a", "version": "1", "size_bytes": "9"}, "size_bytes"),
        ({"model_id": "a", "version": "1", "size_bytes": 1, "sha256": "zz"}, "sha256"),
        ({"model_id": "a", "version": "1", "size_bytes": 1, "path": "/etc/passwd"}, "path"),
    ],
)
def test_upload_announced_wrongly_names_the_field(admin: Admin, wanted: dict[str, Any], field: str) -> None:
    refused = admin("POST", "/v1/admin/uploads", wanted)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert field in refused.json["error"]["message"]


def test_upload_larger_than_disk_or_limit_is_rejected(admin: Admin) -> None:
    wanted = {"model_id": "huge", "version": "1", "size_bytes": 2**62}
    assert admin("POST", "/v1/admin/uploads", wanted).status == 413
    wanted["size_bytes"] = 200 << 30
    if os.statvfs("/").f_bavail * os.statvfs("/").f_frsize < 200 << 30:
        assert admin("POST", "/v1/admin/uploads", wanted).code == "insufficient_storage"


def test_unfinished_uploads_are_bounded(admin: Admin) -> None:
    bundle = make_bundle("many")
    ids = []
    while (got := announce(admin, "many", bundle)).status == 201:
        ids.append(got.json["id"])
        assert len(ids) <= 16
    assert (got.status, got.code) == (429, "rate_limit_exceeded")
    for id in ids:
        admin("DELETE", f"/v1/admin/uploads/{id}", at=UPLOAD)


def test_bundles_need_a_scope(gateway: Gateway, admin: Admin) -> None:
    bundle = make_bundle("scoped")
    reader = create(gateway, "--name", "reader", "--scope", "registry:read")["key"]
    writer = create(gateway, "--name", "writer", "--scope", "registry:write")["key"]
    chatter = create(gateway, "--name", "chatter", "--scope", "chat")["key"]
    path = "/v1/admin/bundles/scoped/1.0/any"
    statuses = {
        name: (
            gateway.request("GET", "/v1/admin/bundles", key=key).status,
            gateway.request("PUT", path, bundle, key=key).status,
            gateway.request("POST", f"{path}/yank", key=key).status,
            gateway.request("POST", "/v1/admin/uploads", {}, key=key).status,
        )
        for name, key in (("none", None), ("chat", chatter), ("read", reader), ("write", writer))
    }
    assert statuses == {
        "none": (401, 401, 401, 401),
        "chat": (403, 403, 403, 403),
        "read": (200, 403, 403, 403),
        "write": (200, 201, 200, 400),
    }
    id = announce(admin, "owned", bundle).json["id"]
    assert gateway.request("GET", f"/v1/admin/uploads/{id}", key=writer).status == 404
    admin("DELETE", f"/v1/admin/uploads/{id}", at=UPLOAD)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/admin/bundles/none/1.0/any", 404),
        ("/v1/admin/bundles/..%2f..%2fetc/1.0/any", 404),
        ("/v1/admin/bundles/-x/1.0/any", 400),
        (f"/v1/admin/bundles/{'a' * 200}/1.0/any", 400),
        ("/v1/admin/bundles?limit=0", 400),
        ("/v1/admin/bundles?limit=1e3", 400),
        ("/v1/admin/uploads/..%2f..%2findex", 404),
        ("/v1/admin/uploads/upload_%00", 404),
    ],
)
def test_hostile_paths_are_rejected(gateway: Gateway, admin: Admin, path: str, status: int) -> None:
    assert gateway.request("GET", path, key=admin.key).status == status


def test_put_larger_than_max_body_is_413(gateway: Gateway, admin: Admin) -> None:
    with gateway.raw() as raw:
        raw.send(
            f"PUT /v1/admin/bundles/big/1.0/any HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {admin.key}\r\n"
            f"content-length: {64 << 20}\r\n\r\n".encode()
        )
        assert raw.read().status == 413


def test_signature_states(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    trusted = run("registry", "sign-key", home=tmp_path).stdout.split()[-1]
    one = Gateway(tmp_path, env={"SVC_TRUSTED_KEYS": trusted}, is_forked=True).start()
    try:
        admin = Admin(one)
        for name in ("trusted", "stranger"):
            (tmp_path / f"{name}.xyb").write_bytes(make_bundle(name))
        added = run("registry", "add", "trusted.xyb", "--sign", home=tmp_path)
        assert added.returncode == 0, added.stderr
        (tmp_path / "other").mkdir()
        run("registry", "sign-key", home=tmp_path / "other")
        added = run(
            "registry", "add", str(tmp_path / "stranger.xyb"), "--sign", "--root", str(tmp_path / "svc/registry"),
            home=tmp_path / "other",
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
        forged = put(admin, "forged", make_bundle("forged"), headers={"x-svc-signature": f"{trusted} AAAA"})
        assert forged.json["signature"] == "invalid"
        listed = admin("GET", "/v1/admin/bundles").json
        assert {each["model_id"]: each["signature"] for each in listed["data"]} == {
            "forged": "invalid",
            "stranger": "unknown_key",
            "trusted": "valid",
        }
        assert listed["trusted_keys"] == 1
    finally:
        one.stop()
