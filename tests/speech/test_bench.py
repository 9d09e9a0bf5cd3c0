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
