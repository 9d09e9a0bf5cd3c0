"""Embedded models are bundles: a second machine pulls one over HTTP and runs it with llama.cpp."""

import json
from pathlib import Path

from tests.e2e.harness import Gateway

from .conftest import Server

MODEL = "smollm2-135m"


def test_embedded_model_pulled_from_registry_runs(model_home: Path, machine, tmp_path):
    first, second = machine("first"), tmp_path / "second"
    server = Server(first.start("registry", "serve", "--port", "0", "--root", model_home / "registry"))
    second.mkdir()
    client = machine("second/svc")  # SVC_HOME of the gateway harness
    pulled = json.loads(client.run("registry", "pull", MODEL, "--registry", server.url, "--json").stdout)
    (weights,) = Path(pulled["path"]).glob("*.gguf")
    assert weights.read_bytes()[:4] == b"GGUF"
    assert weights.is_relative_to(client.root)
    server.kill()
    gateway = Gateway(second, env={}, config="[local]\nenabled = true\n", is_forked=True).start(60)
    try:
        with gateway.openai(timeout=60) as chat:
            answer = chat.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=16
            )
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0
        weights_open = [line for line in _maps(gateway) if str(weights) in line]
        assert weights_open, "the model that runs is not the one that was pulled"
    finally:
        assert gateway.stop() == 0, gateway.log


def _maps(gateway: Gateway) -> list[str]:
    """Return the memory maps of the gateway's child processes."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    return [line for child in children for line in Path(f"/proc/{child}/maps").read_text().splitlines()]
