"""Runs npm and Node in sdk/typescript, with the Node that also builds the console."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent.parent
SDK = ROOT / "sdk" / "typescript"


class NodeMissingError(Exception):
    """There is no Node that is new enough. The message says what to install."""


def node_environment() -> dict[str, str]:
    """Return an environment in which `node` is new enough. Raises NodeMissingError."""
    module = _console_build()
    try:
        return cast("Callable[[], dict[str, str]]", module.node_environment)()
    except module.BuildError as error:
        raise NodeMissingError(str(error)) from error


def install_vite(environment: dict[str, str]) -> Path:
    """Install the packages of the console, unless they are there. Return the program `vite`."""
    _console_build().install_packages(environment)
    return ROOT / "console" / "node_modules" / ".bin" / "vite"


def _console_build() -> Any:
    spec = importlib.util.spec_from_file_location("console_build", ROOT / "console" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(command: list[str], environment: Mapping[str, str]) -> None:
    """Run a command in the SDK's folder. Raises CalledProcessError."""
    subprocess.run(command, cwd=SDK, env=environment, check=True)


def install(environment: Mapping[str, str]) -> None:
    """Install the packages of the lock, unless they are there."""
    digest = hashlib.sha256((SDK / "package-lock.json").read_bytes()).hexdigest()
    stamp = SDK / "node_modules" / ".lock-hash"
    if stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], environment)
    stamp.write_text(digest, encoding="ascii")
