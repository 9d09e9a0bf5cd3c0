"""Run the splice cases from source, because their fakes inherit from classes that are final when compiled.

Tests in `tests/e2e` run compiled splices on real sockets.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import svc

CASES = Path(__file__).with_name("splice_cases.py")
ROOT = Path(__file__).parent.parent.parent.parent


def test_splice_cases_run_from_source_pass(tmp_path: Path) -> None:
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
    assert "14 passed" in done.stdout
