"""The embedded models are bundles: a second machine gets one from the first, over HTTP, and runs it with llama.cpp."""

import json
from pathlib import Path

from tests.e2e.harness import Gateway

from .conftest import Server

MODEL = "smollm2-135m"


def test_a_second_machine_resolves_the_embedded_model_and_runs_it(model_home: Path, machine, tmp_path):
    first, second = machine("first"), tmp_path / "second"
    server = Server(first.start("registry", "serve", "--port", "0", "--root", model_home / "registry"))
    second.mkdir()
    client = machine("second/svc")  # the gateway's harness keeps SVC_HOME there
    pulled = json.loads(client.run("registry", "pull", MODEL, "--registry", server.url, "--json").stdout)
    (weights,) = Path(pulled["path"]).glob("*.gguf")
    assert weights.read_bytes()[:4] == b"GGUF"
    assert weights.is_relative_to(client.root)
    server.kill()
    gateway = Gateway(second, env={}, config="[local]\nenabled = true\n").start(60)
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
    """What the gateway's children have mapped into memory."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    return [line for child in children for line in Path(f"/proc/{child}/maps").read_text().splitlines()]
