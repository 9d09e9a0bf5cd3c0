"""Bundles the packed SDK with Metro, and runs the bundle in Hermes with the JavaScript of React Native."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.typescript_sdk import capabilities
from tests.typescript_sdk.node import ROOT, SDK

SOURCE = SDK / "test" / "react-native"
FOLDER = ROOT / ".sdk" / "react-native"
RESULTS = FOLDER / "results.txt"
EXAMPLES = ("expo-chat", "react-native")
"""Folders in examples/sdk whose types are checked against the packages that they use."""
TYPESCRIPT = Path("node_modules", ".bin", "tsc")
HERMES_COMPILER = Path("node_modules", "hermes-compiler", "hermesc", "linux64-bin", "hermesc")


def run_react_native(packed: Path, environment: Mapping[str, str]) -> capabilities.Results:
    """Run the tests of `sdk/typescript/test/react-native` with a packed SDK, and the checks of capabilities.

    Raises CalledProcessError.
    """
    prepare(packed, environment)
    for example in EXAMPLES:
        _run([str(TYPESCRIPT), "--noEmit", "-p", example], environment)
    # Hermes 0.12, whose virtual machine runs here, needs the profile "default". Apps are built with "hermes-stable".
    for profile in ("default", "hermes-stable"):
        _run(["node", "bundle.mjs", "index.js", f"{profile}.js", profile], environment)
        _run([str(HERMES_COMPILER), "-w", "-O", "-emit-binary", "-out", f"{profile}.hbc", f"{profile}.js"], environment)
    tests = {**environment, "BUNDLE": "default.js", "RESULTS": str(RESULTS)}
    _run(["node", "--test", "run.mjs"], tests)
    results = capabilities.parse_results(RESULTS.read_text(encoding="utf-8").splitlines())
    return capabilities.check("React Native", results)


def prepare(packed: Path, environment: Mapping[str, str]) -> None:
    """Install React Native, Metro, Hermes and the packed SDK in `.sdk/react-native`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file in (*SOURCE.iterdir(), SDK / "test" / "capabilities.mjs"):
        shutil.copyfile(file, FOLDER / file.name)
    for example in EXAMPLES:
        shutil.copytree(ROOT / "examples" / "sdk" / example, FOLDER / example, dirs_exist_ok=True)
    digest = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()
    stamp = FOLDER / "node_modules" / ".lock-hash"
    if not (stamp.is_file() and stamp.read_text(encoding="ascii") == digest):
        options = ["--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--silent"]
        _run(["npm", "ci", *options], environment)
        stamp.write_text(digest, encoding="ascii")
    client = FOLDER / "node_modules" / "@svc" / "client"
    shutil.rmtree(client, ignore_errors=True)
    client.mkdir(parents=True)
    _run(["tar", "xzf", str(packed), "--strip-components=1", "-C", str(client)], environment)


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    subprocess.run(command, cwd=FOLDER, env=environment, check=True)
