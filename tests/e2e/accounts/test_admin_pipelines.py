"""Pipelines through the gateway: check, run with events, and what a definition from a browser may not do."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import time
import wave
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import create
from tests.e2e.conftest import serve
from tests.e2e.harness import GPT, Gateway
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse, stall

CHECK, RUN = "/v1/admin/pipelines/check", "/v1/admin/pipelines/run"
ASK = f"""name: ask
input: {{kind: Text}}
stages:
  - {{id: first, target: integration, model: {GPT}, options: {{system_prompt: Be brief.}}}}
  - {{id: second, target: integration, model: {GPT}}}
"""


@pytest.fixture(scope="module")
def gateway(all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    yield from serve(all_fakes, tmp_path_factory.mktemp("pipelines"))


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


@pytest.fixture(scope="module")
def runner(gateway: Gateway) -> dict[str, Any]:
    """A key that may run pipelines and use models."""
    return create(gateway, "--name", "runner", "--scope", "admin,chat", "--tag", "team=a")


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


def events_of(body: bytes) -> list[dict[str, Any]]:
    blocks = [block for block in body.decode().split("\n\n") if block and not block.startswith(":")]
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def run_pipeline(gateway: Gateway, key: str, yaml: str, **given: str) -> Any:
    return gateway.request("POST", RUN, {"yaml": yaml, "input": given}, key=key)


def children(gateway: Gateway) -> list[int]:
    """The processes of pipelines whose parent is the gateway."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            command = folder.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if parent == gateway.process.pid and b"svc.pipeline.child" in command:
            found.append(int(folder.name))
    return found


def wait_for_children(gateway: Gateway, count: int) -> list[int]:
    deadline = time.monotonic() + 10
    while len(found := children(gateway)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def test_examples_are_those_of_the_repository(admin: Admin) -> None:
    listed = admin("GET", "/v1/admin/pipelines/examples").json["data"]
    assert [each["name"] for each in listed] == ["ask", "transcribe", "voice-assistant"]
    assert listed[0]["description"] == "Sends a question to a model of a gateway"
    for each in listed:
        original = Path("examples", f"{each['name']}.yaml").read_text(encoding="utf-8")
        assert original.endswith(each["yaml"])


def test_check_returns_the_plan(gateway: Gateway, admin: Admin) -> None:
    plan = admin("POST", CHECK, {"yaml": ASK}).json
    assert (plan["valid"], plan["name"], plan["input"]) == (True, "ask", "text")
    assert [(stage["id"], stage["route"], stage["model"]) for stage in plan["stages"]] == [
        ("first", "gateway", GPT),
        ("second", "gateway", GPT),
    ]
    assert plan["stages"][0]["where"] == f"{gateway.url}/v1"


@pytest.mark.parametrize(
    ("yaml", "line", "column", "text"),
    [
        ("name: x\nstages:\n  - {id: a, tarjet: device}\n", 3, 13, "unknown key 'tarjet'"),
        ("name: [\n", 2, 1, "flow"),
        ("name: x\nstages: []\n", 2, 9, "at least one stage"),
        (ASK.replace(GPT, "gpt-4o-mimi", 1), 4, 45, "Did you mean"),
        (ASK.replace("Be brief.", "x, gateway_url: 'http://169.254.169.254/'"), 4, 5, "gateway_url"),
        ("name: x\nregistry: file:///etc\nstages: [m@1.0]\n", 2, 11, "registry"),
        ("name: x\nregistry: {local_path: /etc}\nstages: [m@1.0]\n", 2, 11, "registry"),
        ("name: x\nregistry: 'http://10.0.0.1/'\nstages: [m@1.0]\n", 2, 11, "registry"),
        ("name: x\nstages: [../../etc/passwd]\n", 2, 10, "not a reference"),
        ("name: x\nstages:\n  - missing-bundle@1.0\n", 3, 5, "no bundle missing-bundle@1.0"),
    ],
)  # fmt: skip
def test_check_locates_the_problem(admin: Admin, yaml: str, line: int, column: int, text: str) -> None:
    checked = admin("POST", CHECK, {"yaml": yaml}).json
    assert checked["valid"] is False
    (problem,) = checked["problems"]
    assert text in problem["message"]
    assert (problem["line"], problem["column"]) == (line, column)


def test_run_streams_stages_and_bills_the_caller(
    gateway: Gateway, admin: Admin, runner: dict[str, Any], provider_a: FakeProvider
) -> None:
    provider_a.always_plays(sse(openai_wire.stream("Paris.")))
    got = run_pipeline(gateway, runner["key"], ASK, text="What is the capital of France?")
    assert (got.status, got.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = events_of(got.body)
    assert events[0] == {"type": "run.started", "pipeline": "ask", "stages": ["first", "second"]}
    finished = {event["stage"]: event for event in events if event["type"] == "stage.finished"}
    assert finished["first"]["output"] == {"kind": "text", "text": "Paris."}
    assert finished["second"]["ms"] >= 0
    result = events[-1]["result"]
    assert (events[-1]["type"], result["error"], result["output"]["text"]) == ("run.completed", None, "Paris.")
    assert [stage["route"] for stage in result["stages"]] == ["gateway", "gateway"]
    wait_for_children(gateway, 0)
    deadline = time.monotonic() + 10
    while True:
        usage = admin("GET", f"/v1/admin/usage?by=key&key={runner['id']}", at="/v1/admin/usage").json["data"]
        if usage and usage[0]["requests"] == 2:
            break
        assert time.monotonic() < deadline, usage
        time.sleep(0.05)


def test_run_failed_stage_is_in_the_result(gateway: Gateway, runner: dict[str, Any], provider_a: FakeProvider) -> None:
    limited = create(gateway, "--name", "limited", "--scope", "admin,chat", "--models", "other")
    events = events_of(run_pipeline(gateway, limited["key"], ASK, text="Hi").body)
    error = events[-1]["result"]["error"]
    assert (error["stage"], error["code"]) == ("first", "model_not_found")


def test_run_takes_no_file_of_the_server(
    gateway: Gateway, runner: dict[str, Any], provider_a: FakeProvider, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the content")
    provider_a.always_plays(sse(openai_wire.stream("ok")))
    run_pipeline(gateway, runner["key"], ASK, text=str(secret))
    sent = provider_a.requests[0].body
    assert (
        b"the content" not in json.dumps(sent).encode() if not isinstance(sent, bytes) else b"the content" not in sent
    )


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({}, "yaml", "yaml"),
        ({"yaml": ASK}, "input", "input"),
        ({"yaml": ASK, "input": {}}, "input", "input"),
        ({"yaml": ASK, "input": {"text": " "}}, "input.text", "input.text"),
        ({"yaml": ASK, "input": {"text": "a", "audio": "b"}}, "input", "input"),
        ({"yaml": ASK, "input": {"audio": "%%%"}}, "input.audio", "base64"),
        ({"yaml": ASK, "input": {"audio": "AAAA"}}, "input.audio", "WAV"),
        ({"yaml": ASK, "input": {"path": "/etc/passwd"}}, "input", "no such field"),
        ({"yaml": "name: x\nstages: [a b]", "input": {"text": "x"}}, "yaml", "line 2, column 10"),
        ({"yaml": "x" * 70_000, "input": {"text": "x"}}, "yaml", "yaml"),
        ({"yaml": ASK.replace("Be brief.", "x, gateway_url: '10.0.0.1'"), "input": {"text": "x"}}, "yaml", "gateway"),
    ],
)  # fmt: skip
def test_run_invalid_request_is_rejected_before_the_stream(
    gateway: Gateway, runner: dict[str, Any], body: dict[str, Any], param: str, text: str
) -> None:
    got = gateway.request("POST", RUN, body, key=runner["key"])
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "invalid_request", param)
    assert text in got.json["error"]["message"]


def test_run_wrong_kind_of_input_is_in_the_result(gateway: Gateway, runner: dict[str, Any]) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(16000)
        wav.writeframes(b"\0\0" * 1600)
    audio = base64.b64encode(file.getvalue()).decode()
    events = events_of(run_pipeline(gateway, runner["key"], ASK, audio=audio).body)
    assert "takes text" in events[-1]["result"]["error"]["message"]


def test_pipelines_need_admin_and_a_model_needs_chat(gateway: Gateway, admin: Admin) -> None:
    chatter = create(gateway, "--name", "chatter", "--scope", "chat")["key"]
    for method, path in (("GET", "/v1/admin/pipelines/examples"), ("POST", CHECK), ("POST", RUN)):
        assert gateway.request(method, path, key=None).status == 401
        assert gateway.request(method, path, key=chatter).status == 403
    refused = run_pipeline(gateway, admin.key, ASK, text="Hi")
    assert (refused.status, refused.code) == (403, "permission_denied")


def test_runs_are_bounded_and_end_with_their_client(
    gateway: Gateway, runner: dict[str, Any], provider_a: FakeProvider
) -> None:
    provider_a.always_plays(stall())
    body = json.dumps({"yaml": ASK, "input": {"text": "Hi"}}).encode()
    head = f"POST {RUN} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {runner['key']}\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with gateway.raw() as one, gateway.raw() as two:
        for raw in (one, two):
            raw.send(head.encode() + body)
        found = wait_for_children(gateway, 2)
        for pid in found:  # a process has none of the server's keys
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"API_KEY" not in environment
        third = run_pipeline(gateway, runner["key"], ASK, text="Hi")
        assert (third.status, third.code) == (429, "rate_limit_exceeded")
        assert gateway.request("POST", CHECK, {"yaml": ASK}, key=runner["key"]).json["valid"] is True
    wait_for_children(gateway, 0)


def test_check_ends_with_its_client(gateway: Gateway, runner: dict[str, Any]) -> None:
    body = json.dumps({"yaml": ASK}).encode()
    head = f"POST {CHECK} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {runner['key']}\r\n"
    stopped = None
    for _ in range(20):  # a check can end before it is stopped
        with gateway.raw() as raw:
            raw.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            deadline = time.monotonic() + 10
            while not (found := children(gateway)) and time.monotonic() < deadline:
                time.sleep(0.001)
            try:
                os.kill(found[0], signal.SIGSTOP)
            except (IndexError, ProcessLookupError):
                continue
            stopped = found[0]
            break
    assert stopped is not None
    wait_for_children(gateway, 0)
    assert gateway.request("POST", CHECK, {"yaml": ASK}, key=runner["key"]).json["valid"] is True


def test_run_process_that_is_killed_ends_the_stream_with_an_error(
    gateway: Gateway, runner: dict[str, Any], provider_a: FakeProvider
) -> None:
    provider_a.always_plays(stall())
    body = json.dumps({"yaml": ASK, "input": {"text": "Hi"}}).encode()
    head = f"POST {RUN} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {runner['key']}\r\n"
    with gateway.raw() as raw:
        raw.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        provider_a.wait()
        (pid,) = wait_for_children(gateway, 1)
        os.kill(pid, signal.SIGKILL)
        events = events_of(raw.read().body)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["code"] == "internal_error"
    assert events[-1]["error"]["message"].startswith("The process of the pipeline was ended by signal 9")
    provider_a.always_plays(None)
    assert run_pipeline(gateway, runner["key"], ASK, text="Hi").status == 200
