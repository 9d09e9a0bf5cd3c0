"""`tests.parallel`: each test runs once in one of several processes, and a failure is never lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
import os

import pytest


@pytest.fixture(scope="session")
def marker():
    yield
    with open("torn_down", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
FILE_WITH_FAILURES = """
import os
import warnings

import pytest


def test_fails(marker):
    print("printed by test_fails")
    warnings.warn("a warning of test_fails")
    assert 1 == 2


def test_dies():
    os._exit(3)


def test_after_death(marker, tmp_path):
    assert tmp_path.is_dir()


@pytest.mark.skip
def test_is_skipped():
    pass
"""
FILE = """
import os


def test_one(marker):
    pass


def test_two():
    pass


def test_is_not_in_the_controller():
    with open("processes", "a") as file:
        file.write(f"{os.getpid()} {os.getppid()}\\n")
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "-p", "no:cacheprovider", "--processes", "2"]
    return subprocess.run(
        [*command, "-c", "pytest.ini", *options, str(folder)],
        # Its own folder for temporary files: pytest makes the one in /tmp unreadable for servers of other users.
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def write_tests(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_first.py").write_text(FILE_WITH_FAILURES)
    for name in ("second", "third"):
        (folder / f"test_{name}.py").write_text(FILE)


def test_parallel_failed_and_dead_tests_are_reported_and_the_others_run(tmp_path: Path) -> None:
    write_tests(tmp_path)
    done = run(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "2 failed, 7 passed, 1 skipped, 1 warning in " in done.stdout, done.stdout
    assert "FAILED test_first.py::test_fails - assert 1 == 2" in done.stdout
    assert "printed by test_fails" in done.stdout
    assert "a warning of test_fails" in done.stdout
    assert "FAILED test_first.py::test_dies - the process of this test ended with status 3" in done.stdout
    processes = [line.split() for line in (tmp_path / "processes").read_text().splitlines()]
    assert len(processes) == 2
    assert len({controller for _, controller in processes}) == 1  # every process is a fork of the controller
    torn_down = (tmp_path / "torn_down").read_text().split()
    assert len(torn_down) == len(set(torn_down)) > 0  # the fixtures of each process end once


def test_parallel_first_failure_stops_the_run(tmp_path: Path) -> None:
    write_tests(tmp_path)
    done = run(tmp_path, "-x")
    assert done.returncode == 1, done.stderr
    assert "stopping after 1 failures" in done.stdout, done.stdout


def test_parallel_error_of_collection_is_reported(tmp_path: Path) -> None:
    write_tests(tmp_path)
    (tmp_path / "test_second.py").write_text("import no_such_module\n")
    done = run(tmp_path)
    assert done.returncode == 2, done.stderr
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stdout
    assert not (tmp_path / "processes").exists()
