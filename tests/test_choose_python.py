"""The interpreter of `make run` and `make test`: the user's own, or the system's if that is much faster."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "choose_python.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("choose_python", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["choose_python"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ((True, True, 10.0), (True, True, 7.0), "second"),
        ((True, True, 10.0), (True, True, 9.0), "first"),  # the gain is too small to leave the user's choice
        ((True, True, 7.0), (True, True, 10.0), "first"),
        ((True, True, 10.0), (False, True, 7.0), "first"),  # too old, or without venv
        ((False, True, 7.0), (True, True, 10.0), "second"),
        ((True, True, 10.0), (True, False, 7.0), "first"),  # could not compile the hot path
        ((True, False, 10.0), (True, False, 7.0), "second"),
        ((False, True, 10.0), (False, True, 7.0), None),
    ],
)
def test_choose_prefers_first_unless_other_is_much_faster(
    tool: ModuleType, first: tuple[bool, bool, float], second: tuple[bool, bool, float], chosen: str | None
) -> None:
    found = [tool.Interpreter("first", "3.11.7", *first), tool.Interpreter("second", "3.11.2", *second)]
    result = tool.choose(found)
    assert (result and result.path) == chosen


def test_measure_reads_a_real_interpreter(tool: ModuleType) -> None:
    found = tool.measure(sys.executable)
    assert found.path == sys.executable
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.is_usable
    assert 0 < found.seconds < 5


def test_measure_candidate_that_is_missing_or_prints_something_else_is_none(tool: ModuleType, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 2.7\n")
    other.chmod(0o755)
    assert tool.measure(str(other)) is None
    assert tool.measure(str(tmp_path / "missing")) is None


def test_script_prints_path_of_usable_interpreter_alone() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=True)
    command = [run.stdout.removesuffix("\n"), "-c", "import sys, venv; print(sys.version_info >= (3, 11))"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "True\n"
