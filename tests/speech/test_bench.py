"""The live speech benchmark in a fresh clone: it builds the model and opens the requested number of sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_bench_live_builds_model_and_exceeds_default_session_limit(tmp_path: Path):
    command = [sys.executable, str(ROOT / "bench" / "speech.py"), "live", "--seconds", "2", "--speakers", "1", "9"]
    environ = {**os.environ, "SVC_TEST_SPEECH": str(tmp_path)}
    result = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=360, check=False
    )
    assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
    assert "1 sessions" in result.stdout
    assert "9 sessions" in result.stdout
    assert (tmp_path / "registry" / "moonshine-tiny-en").is_dir()


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--speakers", "0", "a whole number of 1 or more"),
        ("--speakers", "-1", "a whole number of 1 or more"),
        ("--speakers", "some", "a whole number of 1 or more"),
        ("--seconds", "0", "a number of 2 or more"),
        ("--seconds", "-1", "a number of 2 or more"),
        ("--seconds", "nan", "a number of 2 or more"),
    ],
)
def test_bench_option_out_of_range_is_usage_error(tmp_path: Path, option: str, value: str, allowed: str):
    command = [sys.executable, str(ROOT / "bench" / "speech.py"), "live", option, value]
    environ = {**os.environ, "SVC_TEST_SPEECH": str(tmp_path)}
    result = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False), result.stderr
    assert f"argument {option}: {value!r} is not {allowed}" in result.stderr
