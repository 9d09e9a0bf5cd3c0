"""Builds, checks and tests the TypeScript SDK: `make sdk`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.harness import Gateway, provider_environment
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.speech import material
from tests.typescript_sdk import capabilities
from tests.typescript_sdk.chromium import run_chromium
from tests.typescript_sdk.examples import check_examples, check_onnx
from tests.typescript_sdk.faults import FaultServer
from tests.typescript_sdk.node import SDK, install, node_environment, run
from tests.typescript_sdk.packed import check_browser, check_projects, check_vite, install_package
from tests.typescript_sdk.react_native import run_react_native
from tests.typescript_sdk.registry import serve_registry

CONFIG = "[routing]\nretries = 0\nbreaker = false\n[gateway]\ncors_origins = ['*']\n"


def main() -> int:
    environment = node_environment()
    try:
        install(environment)
        for script in ("build", "lint", "check-package", "size"):
            run(["npm", "run", "--silent", script], environment)
        run_tests(environment)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"`{' '.join(error.cmd)}` failed in sdk/typescript with status {error.returncode}\n")
        return 1
    return 0


def run_tests(environment: dict[str, str]) -> None:
    """Run all tests of the SDK, with a gateway whose provider makes faults."""
    with (
        tempfile.TemporaryDirectory() as home,
        FakeProvider(OpenAIWire(), key="sk-upstream-a-secret") as fake,
        FaultServer(fake) as faults,
        serve_registry(Path(home)) as registry,
    ):
        material.make_model()
        models = {"SVC_REGISTRY_ROOT": str(material.HOME / "registry")}
        gateway = Gateway(Path(home), env={**provider_environment({"A": fake}), **models}, config=CONFIG).start()
        variables = {
            "TEST_GATEWAY": gateway.url,
            "TEST_KEY": gateway.key,
            "TEST_FAULTS": faults.address,
            "TEST_REGISTRY": registry.url,
            "TEST_REGISTRY_ROOT": str(registry.root),
            "TEST_PUBLIC_KEY": registry.public_key,
            "TEST_WEIGHTS_SHA256": registry.weights_sha256,
            "TEST_CLIP": str(material.make_clips()["en-quick-brown-fox"]),
        }
        names = sorted(str(path.relative_to(SDK)) for path in (SDK / "test").rglob("*.test.mjs"))
        try:
            packed = check_package(Path(home), environment, gateway, variables)
            node_variables = {**environment, **variables, "SVC_HOME": home}
            run(["node", "--test", "--test-concurrency=1", *names], node_variables)
            results = {
                "Node": capabilities.check("Node", capabilities.run_node(node_variables)),
                "Chromium": run_chromium(environment, variables),
                "React Native": run_react_native(packed, {**environment, **variables}),
            }
            capabilities.write_page(results)
        finally:
            gateway.stop()


def check_package(home: Path, environment: dict[str, str], gateway: Gateway, variables: dict[str, str]) -> Path:
    """Install the packed SDK in a new project, and use it there. Return the package."""
    folder = home / "fresh"
    folder.mkdir()
    client_environment = {
        **environment,
        "SVC_GATEWAY_URL": f"{gateway.url}/v1",
        "SVC_API_KEY": gateway.key,
        "SVC_HOME": str(home),
    }
    packed = install_package(folder, client_environment)
    play = f"{variables['TEST_FAULTS']}/play"
    check_projects(folder, client_environment, play)
    check_vite(home / "fresh-vite", packed, client_environment, play)
    check_examples(folder, environment)
    check_browser(folder, client_environment, Path(variables["TEST_CLIP"]), play)
    check_onnx(folder, environment, variables["TEST_REGISTRY"], Path(variables["TEST_REGISTRY_ROOT"]))
    sys.stdout.write("the packed package works in new projects for Node, browsers and Vite\n")
    return packed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
