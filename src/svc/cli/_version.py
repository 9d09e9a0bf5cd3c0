"""The facts of `svc --version`: which code this is, and what runs it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib import resources
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import svc
from svc.cli._output import print_json

GIT_TIMEOUT_SECONDS = 5
COMPILED_MODULE = "dialects/base"
"""One of native/modules.txt. All of them are compiled, or none."""


def print_version(*, as_json: bool) -> None:
    """Print the facts as one line, or as a JSON object."""
    facts = read_build_facts()
    if as_json:
        print_json(facts)
    else:
        print(format_version(facts))


def read_build_facts() -> dict[str, Any]:
    """Return version, commit, time of the commit, whether the hot path is compiled, Python and platform.

    Commit and time are None if they are not known.
    """
    build_info = _read_build_info()
    return {
        "version": svc.__version__,
        "commit": build_info.get("commit"),
        "commit_time": build_info.get("time"),
        "compiled": _is_compiled(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform} {platform.machine()}",
    }


def format_version(facts: dict[str, Any]) -> str:
    """Return the facts as one line, which begins with name and version."""
    commit = f"commit {facts['commit'][:12]}" if facts["commit"] else "commit unknown"
    code = "compiled" if facts["compiled"] else "source"
    return f"svc {facts['version']} ({commit}, {code}, {facts['python']}, {facts['platform']})"


def _read_build_info() -> dict[str, Any]:
    """Return what `make dist` wrote into the wheel, else the commit of the checkout that this code is in."""
    try:
        build_info: dict[str, Any] = json.loads(resources.files("svc").joinpath("build_info.json").read_bytes())
    except (OSError, ValueError):
        return _read_checkout(Path(svc.__file__).resolve().parents[2])
    return build_info


def _read_checkout(root: Path) -> dict[str, Any]:
    if not (root / ".git").exists():
        return {}
    command = ["git", "-C", str(root), "log", "-1", "--format=%H %cI"]
    try:
        completed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return {}
    commit, _, time = completed.stdout.strip().partition(" ")
    return {"commit": commit, "time": time}


def _is_compiled() -> bool:
    package = Path(svc.__file__).parent
    return any((package / f"{COMPILED_MODULE}{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)
