"""`svc migrate`: versions, output and exit statuses."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from svc.cli import main
from svc.stores.database.migrations import latest_schema_version


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SVC_DATABASE_URL", raising=False)
    return tmp_path / "home"


def test_migrate_prints_versions_and_is_repeatable(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latest = latest_schema_version()
    assert main(("migrate", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"from": 0, "to": latest}
    assert (home / "svc.db").stat().st_mode & 0o777 == 0o600
    assert main(("migrate", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"from": latest, "to": latest}
    assert main(("migrate",)) == 0
    assert f"version {latest} already" in capsys.readouterr().out


def test_migrate_newer_database_exits_with_2(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("migrate",)) == 0
    with sqlite3.connect(home / "svc.db") as database:
        database.execute("INSERT INTO schema_version VALUES (999)")
    database.close()
    assert main(("migrate",)) == 2
    assert "newer version (999)" in capsys.readouterr().err


def test_migrate_unavailable_database_exits_with_1(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "svc.db").mkdir(parents=True)
    assert main(("migrate",)) == 1
    assert "cannot be used" in capsys.readouterr().err


def test_migrate_to_older_version_lets_it_start_and_keeps_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    latest = latest_schema_version()
    assert main(("migrate", "--to", str(latest - 1), "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"from": 0, "to": latest - 1}
    assert main(("migrate", "--to", str(latest - 1))) == 0
    assert f"version {latest - 1} can start now" in capsys.readouterr().out
    assert main(("migrate", "--sums", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"from": latest - 1, "to": latest, "repaired_entries": 0}


def test_migrate_to_unusable_version_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("migrate", "--to", "1")) == 2
    assert "restore a backup" in capsys.readouterr().err
