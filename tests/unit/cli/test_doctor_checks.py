"""`svc doctor` probes the database, Redis, blob store and extras. No message includes a password."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import tempfile
import tomllib
from pathlib import Path

import msgspec
import pytest
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.redis_groups import RedisCluster, RedisSentinels
from tests.fakes.redis_server import RedisServer

from svc.cli import _doctor_checks, main
from svc.stores.bundles.folder import FolderStore
from svc.stores.database.factory import open_database

PASSWORD = "hunter2-s3cret"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "home"))
    for letter, vendor in zip("ABC", ("OPENAI", "ANTHROPIC", "GROQ"), strict=True):
        monkeypatch.delenv(f"PROVIDER_{letter}_API_KEY", raising=False)
        monkeypatch.delenv(f"{vendor}_API_KEY", raising=False)
    for name in ("SVC_DATABASE_URL", "SVC_REDIS_URL", "SVC_BLOB_URL", "SVC_REGISTRY_ROOT", "PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    status = main(["doctor", "--json"])
    out = capsys.readouterr().out
    assert PASSWORD not in out
    return status, {finding["what"]: finding for finding in json.loads(out)}


def test_doctor_lists_every_extra(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(_doctor_checks.OPTIONAL_EXTRAS) == set(project["optional-dependencies"])
    found = run_doctor(capsys)[1]
    assert {f"extra {extra}" for extra in _doctor_checks.OPTIONAL_EXTRAS} <= set(found)


@pytest.mark.parametrize(
    ("prefix", "options", "state"),
    [
        ("/home/me/.pyenv/versions/3.11.7", "'--enable-shared'", "off"),
        ("/usr/local", "'--enable-optimizations' '--with-lto'", "ok"),
        ("/usr", "'--enable-shared'", "ok"),  # Debian's, which is optimised by its package's rules
        ("/usr/local", None, "ok"),  # a build that does not say
    ],
)
def test_doctor_reports_python_without_optimisations(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prefix: str,
    options: str | None,
    state: str,
) -> None:
    monkeypatch.setattr(_doctor_checks.sys, "base_prefix", prefix)
    monkeypatch.setattr(_doctor_checks.sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
    finding = run_doctor(capsys)[1]["python"]
    assert finding["state"] == state
    assert bool(finding["mend"]) == (state == "off")


def test_doctor_missing_extra_names_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _doctor_checks, "OPTIONAL_EXTRAS", {"s3": (("no_such_module",), "buckets"), "onnx": (("json", "nope"), "ONNX")}
    )
    first, second = _doctor_checks.check_extras()
    assert (first.state, first.advice) == ("off", "pip install 'svc-gateway[s3]'")
    assert second.detail == "lacks nope: needed for ONNX"


def test_doctor_database_file_is_not_created_and_damaged_file_is_error(
    capsys: pytest.CaptureFixture[str], clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, found = run_doctor(capsys)
    assert (status, found["database"]["state"]) == (0, "ok")
    assert not (clean / "home").exists()
    file = clean / "some.db"
    monkeypatch.setenv("SVC_DATABASE_URL", f"sqlite:///{file}")
    with sqlite3.connect(file) as made:
        made.execute("CREATE TABLE one (a)")
    made.close()
    assert run_doctor(capsys)[0] == 0
    file.write_bytes(b"this is no database at all" * 100)
    status, found = run_doctor(capsys)
    assert (status, found["database"]["state"]) == (1, "bad")
    assert "file is not a database" in found["database"]["says"]


def test_doctor_client_keys_are_those_of_the_database_too(
    capsys: pytest.CaptureFixture[str], clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_doctor(capsys)[1]["client keys"]["state"] == "off"
    assert not (clean / "home").exists()
    assert main(["keys", "create", "--name", "shop", "--json"]) == 0
    id = json.loads(capsys.readouterr().out)["id"]
    found = run_doctor(capsys)[1]["client keys"]
    assert (found["state"], found["says"]) == ("ok", "in the database")
    file = clean / "home/svc.db"
    for expires, state in ((1.0, "off"), (None, "ok")):
        with contextlib.closing(open_database(f"sqlite:///{file}")) as database:
            database.update_key(id, functools.partial(msgspec.structs.replace, expires=expires))
        assert run_doctor(capsys)[1]["client keys"]["state"] == state
    assert main(["keys", "revoke", id]) == 0
    capsys.readouterr()
    assert run_doctor(capsys)[1]["client keys"]["state"] == "off"
    file.write_bytes(b"this is no database at all" * 100)
    assert run_doctor(capsys)[1]["client keys"]["says"].endswith("the database cannot be read")
    monkeypatch.setenv("SVC_API_KEYS", "one,two")
    assert run_doctor(capsys)[1]["client keys"]["says"] == "2 in SVC_API_KEYS"


def test_doctor_unusable_records_and_journal_are_errors(capsys: pytest.CaptureFixture[str], clean: Path) -> None:
    FolderStore(clean / "home/registry").close()
    (clean / "home/journal").mkdir()
    status, found = run_doctor(capsys)
    assert [found[name]["state"] for name in ("blob store", "journal")] == ["ok", "ok"]
    assert list((clean / "home/journal").iterdir()) == []
    assert found["disk space"]["says"].endswith(f" MiB are free in {clean / 'home'}")
    records = clean / "home/registry/.registry/records.sqlite"
    records.write_bytes(b"this is no database at all" * 100)
    (clean / "home/journal").rmdir()
    (clean / "home/journal").touch()
    status, found = run_doctor(capsys)
    assert [status, *(found[name]["state"] for name in ("blob store", "journal"))] == [1, "bad", "bad"]
    assert "file is not a database" in found["blob store"]["says"]
    assert "Not a directory" in found["journal"]["says"]


def test_doctor_postgres_down_names_host_and_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = closed_port()
    monkeypatch.setenv("SVC_DATABASE_URL", f"postgresql://svc:{PASSWORD}@127.0.0.1:{port}/ledger")
    status, found = run_doctor(capsys)
    assert (status, found["database"]["state"]) == (1, "bad")
    assert f"'ledger' at 127.0.0.1, port {port} cannot be used: " in found["database"]["says"]
    assert "Connection refused" in found["database"]["says"]


def test_keys_command_postgres_down_names_host_and_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = closed_port()
    monkeypatch.setenv("SVC_DATABASE_URL", f"postgresql://svc:{PASSWORD}@127.0.0.1:{port}/ledger")
    assert main(["keys", "ls"]) == 1
    text = capsys.readouterr().err
    assert f"127.0.0.1, port {port}" in text
    assert "Connection refused" in text
    assert PASSWORD not in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x",
        f"postgresql://svc:{PASSWORD}@[::1/x",
        f"postgresql://svc:a@{PASSWORD}@db.example/x",
        f"postgresql://svc:a@{PASSWORD}/@db.example/x",
    ],
)
def test_doctor_invalid_database_url_is_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("SVC_DATABASE_URL", url)
    status, found = run_doctor(capsys)
    assert (status, found["database"]["state"]) == (1, "bad")
    assert "SVC_DATABASE_URL" in found["database"]["mend"]


def test_doctor_no_database_host_reachable_names_each_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = closed_port(), closed_port()
    monkeypatch.setenv("SVC_DATABASE_URL", f"postgresql://svc:{PASSWORD}@127.0.0.1:{first},[::1]:{second}/svc")
    reason = run_doctor(capsys)[1]["database"]["says"].partition(" cannot be used: ")[2]
    attempts = reason.split("; ")
    assert [attempt.partition(" failed: ")[0] for attempt in attempts] == [
        f'connection to server at "127.0.0.1", port {first}',
        f'connection to server at "::1", port {second}',
    ]
    assert reason.endswith(".")
    assert "?" not in reason


def test_doctor_redis_wrong_password_or_timeout_is_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer("--requirepass", PASSWORD) as server:
        address = f"127.0.0.1:{server.port}"
        monkeypatch.setenv("SVC_REDIS_URL", f"redis://:{PASSWORD}@{address}/0")
        status, found = run_doctor(capsys)
        assert (status, found["redis"]["state"]) == (0, "ok")
        for user, reason in (("", "NOAUTH"), (f":{PASSWORD}x@", "WRONGPASS")):
            monkeypatch.setenv("SVC_REDIS_URL", f"redis://{user}{address}/0")
            status, found = run_doctor(capsys)
            assert (status, found["redis"]["state"]) == (1, "bad")
            assert address in found["redis"]["says"]
            assert reason in found["redis"]["says"]
            assert "password" in found["redis"]["mend"]
        server.freeze()
        monkeypatch.setenv("SVC_REDIS_URL", f"redis://:{PASSWORD}@{address}/0")
        status, found = run_doctor(capsys)
        server.thaw()
        assert status == 1
        assert "2 s" in found["redis"]["says"]


@pytest.mark.parametrize(
    ("options", "advice"), [(("--maxmemory", "1"), "maxmemory"), (("--replicaof", "127.0.0.1", "1"), "primary")]
)
def test_doctor_redis_that_rejects_writes_advice_names_its_cause(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], advice: str
) -> None:
    with RedisServer(*options) as server:
        monkeypatch.setenv("SVC_REDIS_URL", server.url)
        status, found = run_doctor(capsys)
    assert (status, found["redis"]["state"]) == (1, "bad")
    assert advice in found["redis"]["mend"]


def test_doctor_missing_temporary_folder_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "temporary folder" not in run_doctor(capsys)[1]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "TMPDIR" in run_doctor(capsys)[1]["temporary folder"]["mend"]


@pytest.mark.slow
def test_doctor_redis_sentinel_and_cluster_are_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with RedisSentinels(tmp_path) as sentinels:
        monkeypatch.setenv("SVC_REDIS_URL", sentinels.url)
        status, found = run_doctor(capsys)
        assert (status, found["redis"]["state"]) == (0, "ok")
        assert "mymaster of 127.0.0.1:" in found["redis"]["says"]
        monkeypatch.setenv("SVC_REDIS_URL", sentinels.url.replace("mymaster", "other"))
        status, found = run_doctor(capsys)
        assert status == 1
        assert "knows the primary 'other'" in found["redis"]["says"]
    with RedisCluster(tmp_path) as cluster:
        monkeypatch.setenv("SVC_REDIS_URL", cluster.url)
        status, found = run_doctor(capsys)
        assert (status, found["redis"]["state"]) == (0, "ok")
    status, found = run_doctor(capsys)
    assert status == 1
    assert "No server describes the cluster" in found["redis"]["says"]


def test_doctor_bucket_down_names_bucket_and_endpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = closed_port()
    for name, value in (
        ("SVC_BLOB_URL", "s3://bundles/prefix"),
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", PASSWORD),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    status, found = run_doctor(capsys)
    assert (status, found["blob store"]["state"]) == (1, "bad")
    assert "s3://bundles/prefix" in found["blob store"]["says"]
    assert f"127.0.0.1:{port}" in found["blob store"]["says"]
    for url in ("gs://x", "s3://", "nonsense", "file://relative"):
        monkeypatch.setenv("SVC_BLOB_URL", url)
        assert run_doctor(capsys)[1]["blob store"]["state"] == "bad"


def test_doctor_without_provider_reports_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_doctor(capsys)[1]
    assert found["providers"]["state"] == "off"
    assert "none is configured" in found["providers"]["says"]
    assert found["providers"]["mend"].startswith("set one of OPENAI_API_KEY, ANTHROPIC_API_KEY, GROQ_API_KEY")
    monkeypatch.setenv("PROVIDER_A_API_KEY", PASSWORD)
    with FakeProvider(OpenAIWire(), key=PASSWORD) as fake:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{fake.address}/v1")
        assert "providers" not in run_doctor(capsys)[1]


def test_doctor_rejected_key_is_error_and_names_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PASSWORD)
    with FakeProvider(OpenAIWire(), key="another") as fake:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{fake.address}/v1")
        status, found = run_doctor(capsys)
    assert (status, found["provider openai"]["state"]) == (1, "bad")
    assert "HTTP 401" in found["provider openai"]["says"]
    assert found["provider openai"]["mend"] == "its key is rejected: set a valid key in OPENAI_API_KEY"


def test_doctor_probes_each_account_of_a_provider(
    capsys: pytest.CaptureFixture[str], clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "good")
    monkeypatch.setenv("SECOND_KEY", PASSWORD)
    (clean / "svc.toml").write_text('[[providers]]\nname = "openai"\naccounts = [{ api_key_env = "SECOND_KEY" }]\n')
    with FakeProvider(OpenAIWire(), key="good") as fake:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{fake.address}/v1")
        status, found = run_doctor(capsys)
    assert status == 1
    assert found["provider openai"]["state"] == "ok"
    assert found["provider openai, account 2"]["state"] == "bad"
    assert "SECOND_KEY" in found["provider openai, account 2"]["mend"]
