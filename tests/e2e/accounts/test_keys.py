"""Issued keys: the command creates and revokes them. The gateway applies a change within one second."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from svc.stores.database.base import StoredKey
from svc.stores.database.factory import open_database
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway, run


def create(gateway: Gateway, *options: str) -> dict[str, Any]:
    done = run("keys", "create", "--json", *options, home=gateway.home)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def chat(gateway: Gateway, key: str, model: str = GPT) -> int:
    body = {"model": model, "messages": HI}
    return gateway.request("POST", "/v1/chat/completions", body, key=key).status


def until(wanted: Callable[[], bool], seconds: float) -> float:
    """Wait until the condition holds and return the seconds it took. Fail after `seconds`."""
    began = time.monotonic()
    while not wanted():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


def test_key_created_works_immediately_and_secret_is_not_stored(gateway: Gateway) -> None:
    made = create(gateway, "--name", "shop", "--tag", "team=a", "--rpm", "600", "--budget-usd", "5")
    assert made["key"].startswith("svc_sk_")
    assert chat(gateway, made["key"]) == 200
    listed = run("keys", "ls", "--json", home=gateway.home).stdout
    assert made["key"] not in listed
    (row,) = [row for row in json.loads(listed) if row["id"] == made["id"]]
    assert row["name"] == "shop"
    assert row["tags"] == {"team": "a"}
    assert (row["rpm"], row["budget_usd"], row["budget_period"]) == (600, 5, "total")
    assert row["revoked"] is None
    stored = b"".join(path.read_bytes() for path in (gateway.home / "svc").glob("svc.db*"))
    assert made["key"].encode() not in stored
    assert made["key"] not in gateway.log


def test_key_created_after_an_unknown_key_was_rejected_works(gateway: Gateway) -> None:
    assert chat(gateway, "svc_sk_" + "x" * 43) == 401
    made = create(gateway, "--name", "later")
    assert chat(gateway, made["key"]) == 200


def test_key_revoked_returns_401_within_one_second(gateway: Gateway) -> None:
    made = create(gateway, "--name", "leaver")
    assert chat(gateway, made["key"]) == 200
    assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
    until(lambda: chat(gateway, made["key"]) == 401, 20)
    assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
    rows = json.loads(run("keys", "ls", "--json", home=gateway.home).stdout)
    assert next(row for row in rows if row["id"] == made["id"])["revoked"]


def test_key_rotated_old_secret_is_valid_until_grace_ends(gateway: Gateway) -> None:
    made = create(gateway, "--name", "turning")
    assert chat(gateway, made["key"]) == 200
    turned = json.loads(run("keys", "rotate", made["id"], "--grace", "2", "--json", home=gateway.home).stdout)
    assert turned["id"] == made["id"]
    assert turned["key"] != made["key"]
    assert chat(gateway, turned["key"]) == 200
    assert chat(gateway, made["key"]) == 200
    until(lambda: chat(gateway, made["key"]) == 401, 20)
    assert chat(gateway, turned["key"]) == 200


def test_key_expired_returns_401(gateway: Gateway) -> None:
    soon = datetime.fromtimestamp(time.time() + 4, UTC).isoformat()
    made = create(gateway, "--name", "old", "--expires", soon)
    assert chat(gateway, made["key"]) == 200
    until(lambda: chat(gateway, made["key"]) == 401, 20)


def test_key_with_model_list_other_model_returns_404(gateway: Gateway) -> None:
    made = create(gateway, "--name", "narrow", "--models", GPT)
    assert chat(gateway, made["key"]) == 200
    assert chat(gateway, made["key"], CLAUDE) == 404
    models = gateway.request("GET", "/v1/models", key=made["key"]).json["data"]
    assert [model["id"] for model in models] == [GPT]


def test_key_without_scope_returns_403(gateway: Gateway) -> None:
    made = create(gateway, "--name", "reader", "--scope", "registry:read")
    got = gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=made["key"])
    assert (got.status, got.code) == (403, "permission_denied")
    for path in ("/v1/models", f"/v1/models/{GPT}"):
        got = gateway.request("GET", path, key=made["key"])
        assert (got.status, got.code) == (403, "permission_denied")
    hearer = create(gateway, "--name", "hearer", "--scope", "speech")
    assert gateway.request("GET", "/v1/models", key=hearer["key"]).status == 200


def test_key_many_unknown_keys_each_return_401(gateway: Gateway) -> None:
    with gateway.raw() as raw:
        for number in range(200):
            got = raw.request("POST", "/v1/chat/completions", {"model": GPT}, key=f"svc_sk_{number}")
            assert got.status == 401


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--name", ""], "svc: --name: a key's name must have 1 to 200 printable characters.\n"),
        (["--name", "a" * 201], "svc: --name: a key's name must have 1 to 200 printable characters.\n"),
        (["--name", "a", "--scope", "chat,fly"], "fly"),
        (["--name", "a", "--rpm", "0"], "svc: --rpm: expected a whole number of at least 1.\n"),
        (["--name", "a", "--budget-usd", "nan"], "budget"),
        (["--name", "a", "--budget-period", "day"], "--budget-usd"),
        (["--name", "a", "--expires", "soon"], "soon"),
        (["--name", "a", "--expires", "2020-01-01T00:00:00Z"], "past"),
        (["--name", "a", "--tag", "x"], "NAME=VALUE"),
        (["--name", "a", "--tag", "t=1", "--tag", "u=1", "--tag", "t=2"], "--tag gives 't' two values, '1' and '2'"),
        ([], "--name"),
    ],
)
def test_keys_create_invalid_option_exits_2_with_one_line(tmp_path: Path, options: list[str], named: str) -> None:
    done = run("keys", "create", *options, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_state_folder_permissions_are_owner_only(tmp_path: Path) -> None:
    home = tmp_path / "svc"
    assert run("keys", "create", "--name", "a", home=tmp_path).returncode == 0
    assert (home.stat().st_mode & 0o777, (home / "svc.db").stat().st_mode & 0o777) == (0o700, 0o600)
    home.chmod(0o755)
    (home / "svc.db").chmod(0o644)
    assert run("keys", "ls", home=tmp_path).returncode == 0
    assert (home.stat().st_mode & 0o777, (home / "svc.db").stat().st_mode & 0o777) == (0o700, 0o600)


def test_keys_ls_limit_reports_number_of_older_keys(tmp_path: Path) -> None:
    folder = tmp_path / "svc"
    folder.mkdir(mode=0o700)
    with contextlib.closing(open_database(f"sqlite:///{folder / 'svc.db'}")) as database:
        database.migrate()
        for number in range(105):
            database.put_key(
                StoredKey(id=f"key_{number:03d}", name="n", prefix="p", digest=f"{number:064x}", created=number)
            )
    for options, rows, rest in (([], 100, "5 older"), (["--limit", "2"], 2, "103 older"), (["--all"], 105, "")):
        done = run("keys", "ls", *options, home=tmp_path)
        lines = done.stdout.splitlines()
        assert (done.returncode, len(lines), rest in done.stderr) == (0, rows + 1, True)
        assert lines[1].startswith("key_104 ")
    assert len(json.loads(run("keys", "ls", "--json", home=tmp_path).stdout)) == 105
    assert [row["id"] for row in json.loads(run("keys", "ls", "--json", "--limit", "1", home=tmp_path).stdout)] == [
        "key_104"
    ]
    for wrong in (["--limit", "0"], ["--limit", "-1"], ["--limit", "x"], ["--limit", "1", "--all"]):
        assert run("keys", "ls", *wrong, home=tmp_path).returncode == 2


def test_keys_revoke_unknown_id_exits_1(tmp_path: Path) -> None:
    done = run("keys", "revoke", "key_nothing", home=tmp_path)
    assert done.returncode == 1
    assert "svc keys ls" in done.stderr


def test_database_corrupt_configured_keys_still_work(start_gateway: StartGateway, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database" * 100)
    gateway = start_gateway(env={"SVC_DATABASE_URL": f"sqlite:///{broken}"})
    assert gateway.chat().status == 200
    got = gateway.request("POST", "/v1/chat/completions", {"model": GPT}, key="svc_sk_" + "y" * 43)
    assert got.status == 429
    assert got.headers["retry-after"] == "1"
    assert gateway.request("GET", "/v1/models", key="svc_sk_" + "y" * 43).status == 429
    assert gateway.request("GET", "/health").status == 200
