"""Several models of this machine: loaded on demand, unloaded when idle or for memory, and independent of each other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Gateway
from tests.fakes.gguf import with_chat_template
from tests.fakes.http_client import Got
from tests.processes import children

pytestmark = pytest.mark.slow

FIRST = "smollm2-135m"
HEADER_BYTES = 1 << 20
LONG = "word " * 300
CITY = {"type": "object", "properties": {"city": {"enum": ["Graz", "Rome"]}}, "required": ["city"]}
TEMPLATE_WITH_TOOLS = """{%- if tools %}
{{- '<|im_start|>system\\nCall these functions:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\nWrite a call as <tool_call>\\n{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def install(home: Path, name: str, weights: Path, **details: Any) -> Path:
    """Install a model by a link, as `svc models add` does."""
    folder = home / "svc" / "models" / f".{name}"
    folder.mkdir(parents=True)
    (folder / "model.gguf").symlink_to(weights)
    metadata = {
        "model_id": name,
        "version": "1",
        "execution_template": {"type": "Gguf", "model_file": "model.gguf", "context_length": 512},
        "files": ["model.gguf"],
        "metadata": details,
    }
    (folder / "model_metadata.json").write_text(json.dumps(metadata))
    return folder.rename(folder.with_name(name))


def start(home: Path, model_home: Path, config: str = "") -> Gateway:
    environ = {"SVC_REGISTRY_ROOT": str(model_home / "registry")}
    return Gateway(home, env=environ, config=f"[local]\nenabled = true\n{config}", is_forked=True).start(60)


def send(gateway: Gateway, path: str, **body: Any) -> Got:
    """Send a request that may wait for a load, on a machine that may be busy."""
    with gateway.raw(timeout=60) as raw:
        return raw.request("POST", path, body, key=gateway.key)


def chat(gateway: Gateway, model: str, text: str = "Hi", max_tokens: int = 3) -> Got:
    messages = [{"role": "user", "content": text}]
    return send(gateway, "/v1/chat/completions", model=model, messages=messages, max_tokens=max_tokens)


def states(gateway: Gateway) -> dict[str, str]:
    listed = gateway.request("GET", "/v1/models").json["data"]
    return {model["id"]: model["state"] for model in listed if "state" in model}


def until(condition: Callable[[], bool], timeout: float = 60, pause: float = 0.05) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


@pytest.fixture
def broken(tmp_path: Path, model_path: Path) -> Path:
    """Weights whose header is valid, and whose tensors are missing."""
    path = tmp_path / "broken.gguf"
    with model_path.open("rb") as file:
        path.write_bytes(file.read(HEADER_BYTES))
    return path


@pytest.fixture
def several(tmp_path: Path, model_home: Path, model_path: Path, broken: Path) -> Iterator[Gateway]:
    install(tmp_path, "second", model_path)
    install(tmp_path, "vectors", model_path, task="embedding")
    install(tmp_path, "broken", broken)
    rows = '[[local.models]]\nname = "second"\ncontext_window = 256\nthreads = 1\nparallel = 1\ngpu_layers = 0\n'
    gateway = start(tmp_path, model_home, f"idle_timeout = 2\n{rows}")
    yield gateway
    pids = children(gateway.process.pid, "svc.gateway.local_model.process")
    assert gateway.stop() == 0, gateway.log
    assert "Traceback" not in gateway.log
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_local_models_load_on_demand_and_unload_when_idle(several: Gateway) -> None:
    assert states(several) == {FIRST: "loaded", "second": "unloaded", "vectors": "unloaded", "broken": "unloaded"}
    got = chat(several, "second")
    assert (got.status, got.headers["x-svc-provider"]) == (200, "local"), got.body
    assert states(several)["second"] == "loaded"
    vectors = send(several, "/v1/embeddings", model="vectors", input=["a cat", "a dog"])
    assert vectors.status == 200, vectors.body
    assert [len(item["embedding"]) for item in vectors.json["data"]] == [576, 576]
    assert states(several)["vectors"] == "loaded"
    assert chat(several, FIRST).status == 200
    until(
        lambda: states(several) == {FIRST: "loaded", "second": "unloaded", "vectors": "unloaded", "broken": "unloaded"}
    )
    assert chat(several, "second").status == 200


def test_local_models_chat_template_with_tools_is_used(tmp_path: Path, model_home: Path, model_path: Path) -> None:
    weights = tmp_path / "tools.gguf"
    weights.write_bytes(with_chat_template(model_path.read_bytes(), TEMPLATE_WITH_TOOLS))
    install(tmp_path, "tools", weights)
    gateway = start(tmp_path, model_home)
    try:
        tool = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": CITY}}
        body = {"model": "tools", "messages": [{"role": "user", "content": "Is it hot in Graz?"}], "max_tokens": 1}
        without = send(gateway, "/v1/chat/completions", **body)
        got = send(gateway, "/v1/chat/completions", **body, tools=[tool])
        assert (without.status, got.status) == (200, 200), got.body
        added = got.json["usage"]["prompt_tokens"] - without.json["usage"]["prompt_tokens"]
        assert added > 40  # the template has written the tool into the prompt
    finally:
        assert gateway.stop() == 0, gateway.log


def test_local_models_load_failure_is_reported_and_others_continue(several: Gateway) -> None:
    for _ in range(2):
        got = chat(several, "broken")
        assert (got.status, got.code) == (502, "provider_error")
        assert got.json["error"]["message"] == "The local model broken cannot be loaded."
        assert got.headers["x-svc-attempts"] == "1"
    assert states(several)["broken"] == "failed"
    several.logged("the local model broken was not loaded", timeout=60)
    assert chat(several, FIRST).status == 200
    assert chat(several, "vectors").status == 400
    assert send(several, "/v1/embeddings", model=FIRST, input="a").status == 400
    long = chat(several, "second", LONG)
    assert long.status == 400, long.body  # the context window of [[local.models]]


@pytest.mark.parametrize("words", [560, 600, 20_000])
def test_local_embedding_text_that_is_too_long_is_an_invalid_request(several: Gateway, words: int) -> None:
    for _ in range(12):  # more failures would open the breaker
        got = send(several, "/v1/embeddings", model="vectors", input=["a cat", "word " * words])
        assert (got.status, got.headers["x-svc-attempts"]) == (400, "1"), got.body
    assert send(several, "/v1/embeddings", model="vectors", input="a cat").status == 200


def test_local_models_killed_process_affects_no_other_model(several: Gateway) -> None:
    assert chat(several, "second").status == 200
    stream = several.openai(timeout=60).chat.completions.create(
        model=FIRST, messages=[{"role": "user", "content": "Tell a story."}], max_tokens=60, stream=True
    )
    next(stream)
    first, second = sorted(children(several.process.pid, "svc.gateway.local_model.process"))
    os.kill(second, signal.SIGKILL)
    several.logged(
        "second exited", timeout=60
    )  # until then, a dying process still accepts connections, and resets them
    got = chat(several, "second")  # waits for the restart
    assert got.status == 200, got.body
    assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")
    assert first in children(several.process.pid, "svc.gateway.local_model.process")


def test_local_models_added_and_removed_while_running_are_listed(several: Gateway, model_path: Path) -> None:
    folder = install(several.home, "later", model_path)
    until(lambda: "later" in states(several))
    assert chat(several, "later").status == 200
    folder.rename(several.home / "gone")
    until(lambda: "later" not in states(several))
    assert chat(several, "later").code == "model_not_found"


def test_local_models_reload_applies_changed_options(several: Gateway) -> None:
    assert chat(several, "second", LONG).status == 400
    path = several.home / "given.toml"
    path.write_text(path.read_text().replace("context_window = 256", "context_window = 512"))
    several.process.send_signal(signal.SIGHUP)
    several.logged("reloaded the configuration")
    until(lambda: chat(several, "second", LONG).status == 200, pause=0.3)


def test_local_models_memory_short_unloads_least_recently_used(
    tmp_path: Path, model_home: Path, model_path: Path
) -> None:
    for name in ("second", "third"):
        install(tmp_path, name, model_path)
    contexts = {FIRST: 512, "third": 300_000}
    rows = "".join(f'[[local.models]]\nname = "{name}"\ncontext_window = {n}\n' for name, n in contexts.items())
    gateway = start(tmp_path, model_home, f'memory = "300MiB"\nload_timeout = 30\n{rows}')  # one fits
    try:
        assert states(gateway)[FIRST] == "loaded"
        assert chat(gateway, "second").status == 200
        assert {name for name, state in states(gateway).items() if state == "loaded"} == {"second"}
        got = chat(gateway, "third")
        assert (got.status, got.code) == (502, "provider_error")
        assert "it needs about" in got.json["error"]["message"]
        assert "[local]" in got.json["error"]["message"]

        with ThreadPoolExecutor() as threads:
            results = list(threads.map(lambda name: chat(gateway, name, max_tokens=20), (FIRST, "second") * 2))
        assert [got.status for got in results] == [200] * 4, [got.body for got in results]
        assert len(children(gateway.process.pid, "svc.gateway.local_model.process")) == 1
    finally:
        assert gateway.stop() == 0, gateway.log
    assert "Traceback" not in gateway.log


def test_local_model_other_than_the_default_is_enough_to_start(tmp_path: Path, model_path: Path) -> None:
    install(tmp_path, "other", model_path)
    environ = {"SVC_REGISTRY_ROOT": str(tmp_path / "registry")}
    gateway = Gateway(tmp_path, env=environ, config="[local]\nenabled = true\n", is_forked=True).start(60)
    with gateway.raw(timeout=60) as raw:
        body = {"model": "other", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        assert raw.request("POST", "/v1/chat/completions", body, key=gateway.key).status == 200
    assert gateway.stop() == 0, gateway.log
