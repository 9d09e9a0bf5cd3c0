"""`kill -9` of the embedded model during a JSON chat and a stream: client errors and ledger entries."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import Gateway, run
from tests.processes import child

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m"
LONG = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell a long story."}],
    "max_tokens": 1800,
    "extra_body": {"ignore_eos": True},
}


def entries(home: Path, environ: dict[str, str], count: int) -> list[dict[str, Any]]:
    """Wait until the ledger has `count` entries and return them, oldest first."""
    deadline = time.monotonic() + 20
    while True:
        found = json.loads(run("usage", "--json", home=home, env=environ).stdout)
        if len(found) >= count or time.monotonic() > deadline:
            return found[::-1]
        time.sleep(0.2)


def test_embedded_model_killed_in_mid_stream_returns_errors_and_restarts(model_home: Path, tmp_path: Path) -> None:
    environ = {"SVC_REGISTRY_ROOT": str(model_home / "registry")}
    gateway = Gateway(tmp_path, env=environ, config="[local]\nenabled = true\n", is_forked=True).start(60)
    errors: list[Exception] = []

    def send_json_chat() -> None:
        try:
            gateway.openai(timeout=60).chat.completions.create(**LONG)
        except openai.APIError as error:
            errors.append(error)

    try:
        pid = child(gateway.process.pid, "svc.gateway.local_model.process")
        stream = gateway.openai(timeout=60).chat.completions.create(**LONG, stream=True)
        next(stream)
        waiting = threading.Thread(target=send_json_chat)
        waiting.start()
        next(stream)
        time.sleep(0.5)  # the chat has reached the model
        os.kill(pid, signal.SIGKILL)

        cut: list[Exception] = []
        try:
            for chunk in stream:
                assert chunk.choices[0].finish_reason is None
        except openai.APIError as error:
            cut.append(error)
        assert [type(error) for error in cut] == [openai.APIError]  # an error event, and no `[DONE]`
        waiting.join(60)
        assert [getattr(error, "status_code", None) for error in errors] == [502]
        down = [gateway.chat(MODEL, max_tokens=3) for _ in range(3)]
        assert {(got.status, got.code) for got in down if got.status != 200} <= {(502, "provider_error")}

        deadline, tries = time.monotonic() + 60, len(down)
        while (got := gateway.chat(MODEL, max_tokens=3)).status != 200:
            assert (got.status, got.code) == (502, "provider_error")
            assert time.monotonic() < deadline
            tries += 1
            time.sleep(0.2)
        assert child(gateway.process.pid, "svc.gateway.local_model.process") != pid

        found = entries(tmp_path, environ, tries + 3)
        assert len(found) == tries + 3  # one for each request
        outcomes = [(entry["status"], entry["http_status"], entry["code"]) for entry in found]
        assert outcomes.count(("cut", 200, "provider_error")) == 1
        assert outcomes.count(("error", 502, "provider_error")) == tries + 1 - sum(got.status == 200 for got in down)
        (partial,) = [entry for entry in found if entry["status"] == "cut"]
        assert partial["completion_tokens"] > 0
        assert partial["estimated"]
    finally:
        assert gateway.stop() == 0, gateway.log
    assert "Traceback" not in gateway.log
