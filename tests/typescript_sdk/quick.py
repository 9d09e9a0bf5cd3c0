"""Builds and checks the TypeScript SDK and its examples without a gateway: a step of `make test`.

`make sdk` runs all tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.typescript_sdk.bundling import bundle_without_phone_packages
from tests.typescript_sdk.node import SDK, NodeMissingError, install, node_environment, run

TESTS = ("vectors", "environment", "size", "bundle", "calls", "chat")
"""The tests of these files that need no gateway. The others are skipped."""
INSTALL_ATTEMPTS = 3


def main() -> int:
    """Return 1 if something fails. Without Node, the step is skipped."""
    try:
        environment = node_environment()
    except NodeMissingError as error:
        sys.stdout.write(f"the TypeScript SDK is not checked: {error}\n")
        return 0
    try:
        install_reliably(environment)
        lint = subprocess.Popen(["npm", "run", "--silent", "lint"], cwd=SDK, env=environment)
        try:
            run(["npm", "run", "--silent", "build", "--", "--logLevel", "error"], environment)
            files = [f"test/{name}.test.mjs" for name in TESTS]
            run(["node", "--test", "--test-reporter=dot", *files], environment)
            with tempfile.TemporaryDirectory() as folder:
                bundle_without_phone_packages(Path(folder), environment)
        finally:
            status = lint.wait()
        if status:
            raise subprocess.CalledProcessError(status, ["npm", "run", "lint"])
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"`{' '.join(error.cmd)}` failed in sdk/typescript with status {error.returncode}\n")
        return 1
    return 0


def install_reliably(environment: dict[str, str]) -> None:
    """Install the packages of the lock. Repeat it after errors of the registry."""
    for attempt in range(1, INSTALL_ATTEMPTS + 1):
        try:
            return install(environment)
        except subprocess.CalledProcessError:
            if attempt == INSTALL_ATTEMPTS:
                raise
            sys.stdout.write("npm ci failed, and is repeated\n")
            time.sleep(5 * attempt)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
