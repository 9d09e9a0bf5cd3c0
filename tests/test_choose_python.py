"""The interpreter of `make run` and `make test`: the user's own, or the system's if only that one is optimised."""

from __future__ import annotations

import importlib.util
import os
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
    ("own", "system", "chosen"),
    [
        # is usable, has headers, is optimised
        ("110", "111", "system"),
        ("111", "111", "own"),
        ("110", "110", "own"),
        ("110", "011", "own"),  # too old, or without venv
        ("011", "110", "system"),
        ("110", "101", "own"),  # could not compile the hot path
        ("100", "101", "system"),
        ("011", "011", None),
        (None, "110", "system"),
        ("110", None, "own"),
        (None, None, None),
    ],
)
def test_choose_prefers_own_interpreter_unless_system_is_better(
    tool: ModuleType, own: str | None, system: str | None, chosen: str | None
) -> None:
    candidates = [
        facts and tool.Interpreter(name, "3.11.7", *(fact == "1" for fact in facts))
        for name, facts in (("own", own), ("system", system))
    ]
    result = tool.choose(*candidates)
    assert (result and result.path) == chosen


def test_inspect_reads_a_real_interpreter(tool: ModuleType) -> None:
    found = tool.inspect(sys.executable)
    assert found.path == sys.executable
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.is_usable


def test_inspect_candidate_that_is_missing_or_prints_something_else_is_none(tool: ModuleType, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 2.7\n")
    other.chmod(0o755)
    assert tool.inspect(str(other)) is None
    assert tool.inspect(str(tmp_path / "missing")) is None


def test_script_prints_path_of_usable_interpreter_alone() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=True)
    command = [run.stdout.removesuffix("\n"), "-c", "import sys, venv; print(sys.version_info >= (3, 11))"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "True\n"


def test_script_unusable_python3_gives_way_to_the_system_with_a_reason(tool: ModuleType, tmp_path: Path) -> None:
    system = tool.inspect(tool.SYSTEM)
    if system is None or not system.is_usable:
        pytest.skip("the system has no Python that creates environments")
    own = tmp_path / "python3"
    own.write_text(f"#!/bin/sh\nprintf '{own}\\t3.9.2\\t0\\t1\\t1\\n'\n")
    own.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == f"{system.path}\n"
    assert f"{own} (3.9.2) is too old, or has no venv" in run.stderr
