"""The benchmark of live speech in a fresh clone: it makes the model, and takes as many sessions as are asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_bench_live_makes_the_model_and_takes_more_sessions_than_usual(tmp_path: Path):
    command = [sys.executable, str(ROOT / "bench" / "speech.py"), "live", "--seconds", "2", "--people", "1", "9"]
    environ = {**os.environ, "SVC_TEST_SPEECH": str(tmp_path)}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=360, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "1 sessions" in done.stdout
    assert "9 sessions" in done.stdout
    assert (tmp_path / "registry" / "moonshine-tiny-en").is_dir()


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--people", "0", "a whole number of 1 or more"),
        ("--people", "-1", "a whole number of 1 or more"),
        ("--people", "some", "a whole number of 1 or more"),
        ("--seconds", "0", "a number of 2 or more"),
        ("--seconds", "-1", "a number of 2 or more"),
        ("--seconds", "nan", "a number of 2 or more"),
    ],
)
def test_bench_number_out_of_range_is_a_usage_error(tmp_path: Path, option: str, value: str, allowed: str):
    command = [sys.executable, str(ROOT / "bench" / "speech.py"), "live", option, value]
    environ = {**os.environ, "SVC_TEST_SPEECH": str(tmp_path)}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert f"argument {option}: {value!r} is not {allowed}" in done.stderr
