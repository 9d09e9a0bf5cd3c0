"""The clients, where they are installed, and their commands."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from release.archives import unpack_tar

from tests.typescript_sdk import node

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / ".conformance"
MAIN, LLAMAINDEX = INSTALLED / "clients", INSTALLED / "llamaindex"
NODE = INSTALLED / "node"


@dataclass(frozen=True)
class Client:
    """A client. The page names the versions of `packages`."""

    name: str
    command: tuple[str, ...]
    packages: tuple[str, ...]

    def is_there(self) -> bool:
        """Whether its packages are installed."""
        place = NODE / "node_modules" if self.command[0] == "node" else Path(self.command[0])
        return place.exists() and shutil.which(self.command[0]) is not None


def _python(name: str, script: str, *packages: str, place: Path = MAIN) -> Client:
    return Client(name, (str(place / "bin" / "python"), script), packages)


def _node(name: str, script: str, *packages: str) -> Client:
    return Client(name, ("node", str(NODE / script)), packages)


CLIENTS = [
    _python("openai-python", "openai_python.py", "openai"),
    _python("anthropic-sdk-python", "anthropic_python.py", "anthropic"),
    _node("openai-node", "openai_node.mjs", "openai (npm)"),
    _node("openai-node, Responses API", "openai_node_responses.mjs", "openai (npm)"),
    _node("Vercel AI SDK", "vercel.mjs", "ai (npm)", "@ai-sdk/openai-compatible (npm)", "@ai-sdk/anthropic (npm)"),
    _python("LangChain", "langchain_clients.py", "langchain-openai", "langchain-anthropic"),
    _python("langchain-tests", "langchain_standard.py", "langchain-tests", "langchain-openai"),
    _python("llm", "llm_command.py", "llm"),
    _python(
        "LlamaIndex",
        "llamaindex.py",
        "llama-index-llms-openai-like",
        "llama-index-embeddings-openai-like",
        place=LLAMAINDEX,
    ),
]
SDK = _node("@svc/client", "svc_client.mjs", "@svc/client (npm)")
"""The TypeScript SDK of this repository. `install_sdk` puts it there."""
CLIENTS.append(SDK)
AIMOCK = _node("aimock", "node_modules/@copilotkit/aimock/dist/cli.js", "@copilotkit/aimock (npm)")


def install_sdk() -> None:
    """Build and pack the TypeScript SDK, and unpack it beside the other packages of Node."""
    environment = node.node_environment()
    node.install(environment)
    node.run(["npm", "run", "--silent", "build", "--", "--logLevel", "error"], environment)
    with tempfile.TemporaryDirectory() as folder:
        node.run(["npm", "pack", "--silent", "--pack-destination", folder], environment)
        (packed,) = Path(folder).glob("*.tgz")
        unpack_tar(packed, Path(folder))
        target = NODE / "node_modules" / "@svc" / "client"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(Path(folder) / "package", target)


def versions() -> dict[str, str]:
    """Return the locked version of every package. npm packages have the suffix `(npm)`."""
    found = {"python": platform.python_version()}
    for path in sorted((HERE / "locks").glob("*.lock"), reverse=True):  # a client's own lock takes precedence
        for name, version in re.findall(r"^([a-z0-9-]+)==([\w.]+)", path.read_text(encoding="utf-8"), flags=re.M):
            found[name] = version
    packages = json.loads((HERE / "locks" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    found |= {f"{name} (npm)": version for name, version in packages.items()}
    package = json.loads((node.SDK / "package.json").read_text(encoding="utf-8"))
    found[f"{package['name']} (npm)"] = package["version"]
    result = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=10, check=False)
    return {**found, "node": result.stdout.strip().removeprefix("v")}
