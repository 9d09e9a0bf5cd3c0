"""Standard error of a server has only JSON lines, including those of the supervisor, workers and start."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Gateway
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer


def lines(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the lines of standard error. The harness writes the address from standard output to the same file."""
    return [json.loads(line) for line in gateway.log.splitlines() if not re.fullmatch(r"gateway +http://\S+", line)]


@pytest.mark.parametrize("workers", [1, 2])
def test_log_lines_on_stderr_are_all_json(tmp_path: Path, workers: int) -> None:
    with FakeProvider(OpenAIWire(), key="sk-a") as fake:
        env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1", "SVC_API_KEYS": ""}
        config = f"[gateway]\nworkers = {workers}\n[routing]\nretries = 0\n"
        gateway = Gateway(tmp_path, env=env, config=config, is_forked=True).start()
        try:
            assert gateway.request("GET", "/v1/models").status == 401
            gateway.logged('"http_status":401')
            if workers > 1:
                (pid, *_) = worker_pids(gateway)
                os.kill(pid, signal.SIGKILL)
                gateway.logged("and is replaced")
        finally:
            assert gateway.stop() == 0
    found = lines(gateway)
    assert found[0]["message"].startswith("SVC_API_KEYS is not set")
    assert [line["http_status"] for line in found if "level" not in line] == [401]
    assert [line["level"] for line in found if "is replaced" in line.get("message", "")] == ["error"] * (workers - 1)
    assert all("time" in line for line in found)


@pytest.mark.parametrize("workers", [1, 2])
def test_log_lines_in_text_have_no_json_line(tmp_path: Path, workers: int) -> None:
    env = {"PROVIDER_A_API_KEY": "sk-a", "SVC_API_KEYS": ""}
    config = f'[gateway]\nworkers = {workers}\n[telemetry]\nlog = "text"\nlevel = "info"\n'
    gateway = Gateway(tmp_path, env=env, config=config, is_forked=True).start()
    try:
        assert gateway.request("GET", "/v1/models").status == 401
        gateway.logged("http_status=401")
    finally:
        assert gateway.stop() == 0
    found = [line for line in gateway.log.splitlines() if not re.fullmatch(r"gateway +http://\S+", line)]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+Z (INFO|WARNING|ERROR) [a-z.]+ ", line) for line in found), found
    assert " WARNING svc SVC_API_KEYS is not set" in found[0]
    (access,) = [line for line in found if " INFO svc.access response " in line]
    assert " endpoint=/v1/models " in access


def test_log_lines_provider_failure_is_json_warning(tmp_path: Path) -> None:
    with FakeProvider(OpenAIWire(), key="sk-a") as fake:
        env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"}
        gateway = Gateway(tmp_path, env=env, config="[routing]\nretries = 0\n", is_forked=True).start()
        try:
            fake.plays(answer(500, b"{}"))
            assert gateway.chat().status == 502
            gateway.logged("failed with status 500")
        finally:
            assert gateway.stop() == 0
    (warning,) = [line for line in lines(gateway) if line.get("level") == "warning"]
    assert warning["logger"] == "svc.gateway"
    assert warning["message"].startswith("openai: ")


def worker_pids(gateway: Gateway) -> list[int]:
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]
