"""Bundles the packed SDK and the Expo app with Metro, and runs the SDK in Hermes with React Native's JavaScript."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.typescript_sdk import capabilities
from tests.typescript_sdk.node import ROOT, SDK
from tests.typescript_sdk.packed import start_project

SOURCE = SDK / "test" / "react-native"
FOLDER = ROOT / ".sdk" / "react-native"
RESULTS = FOLDER / "results.txt"
EXAMPLES = ("expo-chat", "react-native")
"""Folders in examples/sdk whose types are checked against the packages that they use."""
EXPO = FOLDER / "node_modules" / ".bin" / "expo"
TYPESCRIPT = Path("node_modules", ".bin", "tsc")
APP = FOLDER / "expo-chat"
PLATFORMS_OF_APP = ("android", "ios")
HERMES_BYTECODE = (0x1F1903C103BC1FC6).to_bytes(8, "little")
"""How each file of Hermes' compiler begins."""
METRO_CONFIG = """// The packages are in the folder above.
const { getDefaultConfig } = require("expo/metro-config");

const config = getDefaultConfig(__dirname);
config.watchFolders = [require("node:path").dirname(__dirname)];
module.exports = config;
"""
HERMES_COMPILER = Path("node_modules", "hermes-compiler", "hermesc", "linux64-bin", "hermesc")


def run_react_native(packed: Path, environment: Mapping[str, str]) -> capabilities.Results:
    """Run the tests of `sdk/typescript/test/react-native` with a packed SDK, and the checks of capabilities.

    Raises CalledProcessError.
    """
    prepare(packed, environment)
    for example in EXAMPLES:
        _run([str(TYPESCRIPT), "--noEmit", "-p", example], environment)
    export_app(packed, environment)
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
        shutil.rmtree(FOLDER / example, ignore_errors=True)
        shutil.copytree(ROOT / "examples" / "sdk" / example, FOLDER / example)
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


def export_app(packed: Path, environment: Mapping[str, str]) -> None:
    """Bundle the Expo app as for a release, with the package as npm installs it, and compile it for Hermes."""
    manifest = (APP / "package.json").read_text(encoding="utf-8")
    start_project(APP, packed, environment)
    (APP / "package.json").write_text(manifest, encoding="utf-8")
    (APP / "metro.config.js").write_text(METRO_CONFIG, encoding="utf-8")
    options = [option for platform in PLATFORMS_OF_APP for option in ("--platform", platform)]
    variables = {"CI": "1", "EXPO_OFFLINE": "1", "EXPO_NO_TELEMETRY": "1", "EXPO_NO_DEPENDENCY_VALIDATION": "1"}
    _run([str(EXPO), "export", *options], {**environment, **variables}, APP)
    for platform in PLATFORMS_OF_APP:
        (path,) = (APP / "dist" / "_expo" / "static" / "js" / platform).glob("*.hbc")
        code = path.read_bytes()
        assert code.startswith(HERMES_BYTECODE), f"{path} is not bytecode of Hermes"
        assert b"svc.api-key." in code, f"{path} does not have the SDK"
        sys.stdout.write(f"the Expo app for {platform}: {len(code)} bytes of Hermes bytecode\n")
    sys.stdout.flush()


def _run(command: list[str], environment: Mapping[str, str], folder: Path = FOLDER) -> None:
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=1800)
