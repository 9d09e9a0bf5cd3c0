"""Errors of a SQLite file name the cause that SQLite does not say."""

from __future__ import annotations

import os
import pwd
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from svc.stores.database.base import StoreUnavailable
from svc.stores.database.sqlite import SqliteDatabase

NOBODY = 65534
PING = """
import os, sys
from pathlib import Path
from svc.stores.database.sqlite import SqliteDatabase
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
SqliteDatabase(Path(sys.argv[1])).ping()
"""


def test_file_of_another_user_is_named_with_its_owner() -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is only for its owner
        os.chmod(folder, 0o755)
        path = Path(folder) / "svc.db"
        sqlite3.connect(path).execute("CREATE TABLE t (c)").connection.close()
        path.chmod(0o600 if os.geteuid() == 0 else 0o000)
        done = subprocess.run(
            [sys.executable, "-c", PING, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
    owner = pwd.getpwuid(os.geteuid()).pw_name
    user = pwd.getpwuid(NOBODY).pw_name if os.geteuid() == 0 else owner
    assert f"since {path} belongs to {owner} and is not writable for {user}." in done.stderr


@pytest.mark.parametrize("content", [b"not a database" * 100, None])
def test_damaged_file_says_to_restore_a_backup(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "svc.db"
    if content is None:
        database = SqliteDatabase(path)
        database.migrate()
        database.close()
        content = path.read_bytes()[:100] + b"\xff" * 8000
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"cannot be used: .*, so restore a backup\."):
        SqliteDatabase(path).ping()
