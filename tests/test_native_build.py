"""`make run` starts from source, compiles in the background, and uses the result at the next start."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
LISTED = ("one.py", "two.py")
SOURCE = "from __future__ import annotations\n\n\ndef answer() -> int:\n    return 42\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with two small modules and the compile command."""
    (tmp_path / "native").mkdir()
    shutil.copy(ROOT / "native" / "compile.py", tmp_path / "native")
    (tmp_path / "native" / "modules.txt").write_text("\n".join(LISTED))
    (tmp_path / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n")
    package = tmp_path / "src" / "svc"
    package.mkdir(parents=True)
    for name in ("__init__.py", *LISTED):
        (package / name).write_text(SOURCE)
    if run(tree := tmp_path, "check").stdout.startswith("no C compiler"):
        pytest.skip("there is no C compiler")
    return tree


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "native" / "compile.py"), *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120, check=False)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def installed(tree: Path) -> list[Path]:
    return list((tree / "src").rglob("*.so"))


def imported_file(tree: Path) -> str:
    code = "import svc.one; assert svc.one.answer() == 42; print(svc.one.__file__)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tree / "src", capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_install_first_start_compiles_in_background_for_next_start(tree: Path) -> None:
    ready = tree / "build" / "native" / "ready"
    first, second = run(tree, "install"), run(tree, "install")
    assert "in the background" in first.stdout
    assert "in the background" in second.stdout
    assert imported_file(tree).endswith("one.py")
    wait_for(ready.exists)
    assert installed(tree) == []
    assert run(tree, "install").stdout == ""
    assert imported_file(tree).endswith(".so")
    assert run(tree, "check").returncode == 0

    (tree / "src" / "svc" / "two.py").write_text(SOURCE + "\n\nADDED = 1\n")
    assert run(tree, "check").returncode == 1
    assert "running from source" in run(tree, "install").stdout
    assert installed(tree) == []
    run(tree)  # waits for the compilation in the background
    assert len(installed(tree)) == len(LISTED) + 1
    assert run(tree, "install").stdout == ""


def test_install_after_failed_compilation_names_log_and_does_not_repeat(tree: Path) -> None:
    (tree / "src" / "svc" / "two.py").write_text("def wrong() -> int:\n    return 'text'\n")
    assert "in the background" in run(tree, "install").stdout
    failed = tree / "build" / "native" / "failed"
    wait_for(failed.exists)
    log = tree / "build" / "native" / "log"
    assert "Incompatible return value" in log.read_text()
    before = log.stat().st_mtime_ns
    wait_for(lambda: "compiling failed" in run(tree, "install").stdout)
    assert log.stat().st_mtime_ns == before

    (tree / "src" / "svc" / "two.py").write_text(SOURCE)
    assert run(tree).returncode == 0
    assert len(installed(tree)) == len(LISTED) + 1


def test_compile_without_an_extra_succeeds(tree: Path) -> None:
    without_types = "import a_missing_extra\n\n\nclass Client(a_missing_extra.Client):\n"
    without_types += "    def count(self) -> int:\n        return self.length\n"
    (tree / "src" / "svc" / "two.py").write_text(without_types)
    assert run(tree).returncode == 0
    assert len(installed(tree)) == len(LISTED) + 1
