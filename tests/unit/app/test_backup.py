"""Backups of the state folder: when a copy of the journals is complete, and what a restore replaces."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.contracts.test_database import make_entry
from tests.e2e.harness import SVC

from svc.app import backup, restore
from svc.app.backup import has_all_entries
from svc.cli import main
from svc.gateway.accounting.ingest import ingest_orphans
from svc.stores.database.factory import open_database
from svc.stores.database.migrations import latest_schema_version
from svc.stores.database.sqlite import SqliteDatabase

Command = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SVC_DATABASE_URL", "SVC_API_KEY", "SVC_GATEWAY_URL", "SVC_BLOB_URL", "SVC_REGISTRY_ROOT"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    monkeypatch.setenv("SVC_HOME", str(home))
    database = open_database(f"sqlite:///{home / 'svc.db'}")
    database.migrate()
    database.close()
    (home / "api_key").write_text("old key")
    return home


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str, status: int = 0) -> str:
        assert main(arguments) == status
        said = capsys.readouterr()
        return said.err if status else said.out

    return run


def journal_line(request_id: str) -> bytes:
    return msgspec.json.encode(make_entry(request_id)) + b"\n"


@pytest.mark.parametrize(
    ("listed", "offsets", "copied", "expected"),
    [
        ({}, {}, {}, True),
        ({"a": 10}, {"a": 4}, {"a": 10}, True),
        ({"a": 10}, {"a": 4}, {"a": 12}, True),
        ({"a": 10}, {"a": 4}, {}, False),  # ingested and deleted after the transaction began
        ({"a": 10}, {"a": 4}, {"a": 0}, False),  # truncated after the transaction began
        ({"a": 10}, {}, {}, False),
        ({"a": 0}, {"a": 10}, {"a": 0}, True),  # truncated before the transaction began
        ({"a": 0}, {"a": 10}, {}, True),
        ({}, {"a": 10}, {"a": 8}, False),
        ({}, {"": 0, "stale": 10}, {}, True),
    ],
)
def test_snapshot_is_complete_if_copies_have_what_the_database_lacks(
    listed: dict[str, int], offsets: dict[str, int], copied: dict[str, int], expected: bool
) -> None:
    assert has_all_entries(listed, offsets, copied) is expected


def test_journal_that_is_ingested_during_the_backup_is_not_lost(
    command: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "journal").mkdir()
    journal = home / "journal" / "1-2-a.journal"
    journal.write_bytes(b"".join(journal_line(f"req_{number}") for number in range(3)))
    database = SqliteDatabase(home / "svc.db")
    copyfile = shutil.copyfile

    def ingest_first(source: Path, target: Path) -> None:
        ingest_orphans(home / "journal", database)
        copyfile(source, target)

    monkeypatch.setattr(backup.shutil, "copyfile", ingest_first)
    command("backup", str(tmp_path / "b.tar"))
    assert not journal.exists()
    database.close()
    command("restore", str(tmp_path / "b.tar"), "--force")
    ingest_orphans(home / "journal", database)
    assert sorted(entry.request_id for entry in database.list_entries()) == ["req_0", "req_1", "req_2"]
    database.close()


def test_backup_is_private_and_never_overwrites_without_force(command: Command, tmp_path: Path) -> None:
    target = tmp_path / "b.tar"
    shown = json.loads(command("backup", str(target), "--json"))
    assert [file["path"] for file in shown["files"]] == ["svc.db", "api_key"]
    assert target.stat().st_mode & 0o777 == 0o600
    before = target.read_bytes()
    assert "already exists" in command("backup", str(target), status=2)
    assert target.read_bytes() == before
    command("backup", str(target), "--force")
    assert {path.name for path in tmp_path.iterdir()} == {"home", "b.tar"}


def test_restore_keeps_old_state_and_moves_its_journal_away(command: Command, home: Path, tmp_path: Path) -> None:
    command("backup", str(tmp_path / "b.tar"))
    (home / "api_key").write_text("new key")
    (home / "journal").mkdir()
    (home / "journal" / "1-2-a.journal").write_text("{}\n")
    (home / "signing.key").write_text("not in the backup")
    error = command("restore", str(tmp_path / "b.tar"), status=2)
    assert "api_key, journal, svc.db" in error
    assert (home / "api_key").read_text() == "new key"
    shown = json.loads(command("restore", str(tmp_path / "b.tar"), "--force", "--json"))
    old = Path(shown["old_state"])
    assert old.name.startswith("before-restore-")
    assert (old / "api_key").read_text() == "new key"
    assert (old / "journal" / "1-2-a.journal").exists()
    assert not (home / "journal").exists()
    assert (home / "api_key").read_text() == "old key"
    assert (home / "signing.key").exists()
    assert not list(home.glob(".restore-*"))


def test_backup_with_bundles_restores_the_registry(command: Command, home: Path, tmp_path: Path) -> None:
    bundle = home / "registry" / "m" / "1" / "any" / "m.xyb"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(b"bundle")
    (home / "registry" / ".registry").mkdir()
    records = sqlite3.connect(home / "registry" / ".registry" / "records.sqlite")
    records.execute("CREATE TABLE t (x)")
    records.close()
    command("backup", str(tmp_path / "b.tar"), "--bundles")
    bundle.write_bytes(b"changed")
    command("restore", str(tmp_path / "b.tar"), "--force")
    assert bundle.read_bytes() == b"bundle"
    assert (home / "registry" / ".registry" / "records.sqlite").is_file()


def test_damaged_backup_leaves_the_state_unchanged(command: Command, home: Path, tmp_path: Path) -> None:
    command("backup", str(tmp_path / "b.tar"))
    data = bytearray((tmp_path / "b.tar").read_bytes())
    data[5000] ^= 1
    (tmp_path / "b.tar").write_bytes(data)
    (home / "api_key").write_text("new key")
    assert "damaged" in command("restore", str(tmp_path / "b.tar"), "--force", status=1)
    assert (home / "api_key").read_text() == "new key"
    assert not list(home.glob("*restore-*"))


def test_failed_move_puts_the_old_state_back(
    command: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("backup", str(tmp_path / "b.tar"))
    (home / "api_key").write_text("new key")
    rename = os.rename

    def interrupt(source: Path, target: Path) -> None:
        rename(source, target)
        if Path(target) == home / "svc.db" and ".restore-" in str(source):
            raise KeyboardInterrupt

    monkeypatch.setattr(restore.os, "rename", interrupt)
    assert main(("restore", str(tmp_path / "b.tar"), "--force")) == 130
    assert (home / "api_key").read_text() == "new key"
    assert (home / "svc.db").is_file()
    assert not list(home.glob("*restore-*"))


def test_backup_of_newer_schema_is_rejected(command: Command, home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(home / "svc.db") as database:
        database.execute("INSERT INTO schema_version VALUES (999)")
    database.close()
    command("backup", str(tmp_path / "b.tar"))
    message = command("restore", str(tmp_path / "b.tar"), "--force", status=1)
    assert "newer version of svc" in message
    assert "a program that knows schema 999" in message


def test_backup_of_newer_schema_that_only_adds_is_restored(command: Command, home: Path, tmp_path: Path) -> None:
    known = latest_schema_version()
    with sqlite3.connect(home / "svc.db") as database:
        database.execute("INSERT INTO schema_version VALUES (?)", (known + 2,))
        database.execute("INSERT INTO schema_changes VALUES (?, ?)", (known + 2, known))
        database.execute("CREATE TABLE of_the_future (x)")
    database.close()
    command("backup", str(tmp_path / "b.tar"))
    command("restore", str(tmp_path / "b.tar"), "--force")
    assert "newest" in command("keys", "create", "--name", "newest")
    with contextlib.closing(sqlite3.connect(home / "svc.db")) as database:
        assert database.execute("SELECT COUNT(*) FROM of_the_future").fetchone() == (0,)


def test_backup_whose_newer_changes_need_a_newer_program_is_rejected(
    command: Command, home: Path, tmp_path: Path
) -> None:
    known = latest_schema_version()
    with sqlite3.connect(home / "svc.db") as database:  # as after `svc migrate --to` of the newer program
        database.execute("INSERT INTO schema_changes VALUES (?, ?)", (known + 1, known + 1))
    database.close()
    command("backup", str(tmp_path / "b.tar"))
    message = command("restore", str(tmp_path / "b.tar"), "--force", status=1)
    assert f"knows schema {known + 1}" in message


@pytest.mark.parametrize("name", ["gateway.lock", "up.lock", "journal/1-2-a.journal"])
def test_restore_is_rejected_while_a_gateway_runs(command: Command, home: Path, tmp_path: Path, name: str) -> None:
    command("backup", str(tmp_path / "b.tar"))
    (home / "journal").mkdir()
    with (home / name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status = 2 if name == "up.lock" else 1
        assert "Stop it" in command("restore", str(tmp_path / "b.tar"), "--force", status=status)


def test_postgresql_is_rejected_with_its_tool(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SVC_DATABASE_URL", "postgresql://user:secret-word@db/svc")
    for error in (command("backup", str(tmp_path / "b.tar"), status=2), command("restore", "b.tar", status=2)):
        assert "pg_dump" in error or "pg_restore" in error
        assert "secret-word" not in error


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_file_that_is_no_database_is_rejected(command: Command, home: Path, tmp_path: Path, content: bytes) -> None:
    (home / "svc.db").write_bytes(content)
    assert "database" in command("backup", str(tmp_path / "b.tar"), status=1)
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_stopped_backup_leaves_no_damaged_file(
    command: Command, home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with sqlite3.connect(home / "svc.db") as database:
        database.execute("CREATE TABLE filler (data)")
        database.executemany("INSERT INTO filler VALUES (zeroblob(1000000))", [()] * 20)
    database.close()
    target = tmp_path / "b.tar"
    with subprocess.Popen([SVC, "backup", str(target)], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.glob(".b.tar.*.partial/svc.db")):
            time.sleep(0.001)
        process.send_signal(number)
    if target.exists():  # the process was faster than the signal
        command("restore", str(target), "--force")
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob(".b.tar.*"))
    command("backup", str(target), "--force")
    assert {path.name for path in tmp_path.iterdir()} == {"home", "b.tar"}
    command("restore", str(target), "--force")
