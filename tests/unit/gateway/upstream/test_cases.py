"""Run cases from source, because their fakes inherit from classes that are final when compiled.

Tests in `tests/e2e` run the compiled classes on real sockets.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import svc

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[3]


@pytest.mark.parametrize(
    ("name", "count"), [("splice_cases.py", 17), ("queued_call_cases.py", 8), ("pool_cases.py", 3)]
)
def test_cases_run_from_source_pass(tmp_path: Path, name: str, count: int) -> None:
    shutil.copytree(Path(svc.__file__).parent, tmp_path / "svc", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    options = ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER / name)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout
