"""Runs the cases beside it from source: their stand-ins inherit from classes that cannot be inherited from compiled.

The same with real sockets, compiled, is in `tests/e2e/test_relay.py`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import svc

CASES = Path(__file__).with_name("splice_cases.py")
ROOT = Path(__file__).parent.parent.parent.parent


def test_the_cases(tmp_path: Path) -> None:
    shutil.copytree(Path(svc.__file__).parent, tmp_path / "svc", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(CASES)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout
