"""Child processes of pipelines that fail, or send something unexpected."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from svc.app.pipeline_runs import PipelineProcesses
from svc.errors import InternalError
from svc.wire.pipeline import ChildTask, PipelineInput

API_KEY, REGISTRY_KEY = "svc_ek_of_this_run", "key of the registry"


def make_task(text: str = "Hi") -> ChildTask:
    return ChildTask(
        yaml="name: x",
        input=PipelineInput(text=text),
        gateway_url="http://127.0.0.1:1/v1",
        api_key=API_KEY,
        models_by_provider={},
        environ={"SVC_REGISTRY_KEY": REGISTRY_KEY},
    )


async def run_script(script: str, task: ChildTask | None = None) -> list[dict[str, Any]]:
    """Return the events of a process that runs `script` in place of a pipeline."""
    processes = PipelineProcesses((sys.executable, "-c", f"import os, sys, time\n{script}"))
    async with processes.start(task or make_task()) as events, asyncio.timeout(30):
        return [json.loads(bytes(event.line)) async for event in events]


async def expect_failure(script: str) -> str:
    with pytest.raises(InternalError) as caught:
        await run_script(script)
    return caught.value.message


async def test_crashed_process_is_reported_with_its_last_lines() -> None:
    script = "print('one\\ntwo\\nthree\\n\\nfour', file=sys.stderr); sys.exit(3)"
    assert await expect_failure(script) == "The process of the pipeline exited with status 3: two | three | four"


async def test_killed_process_is_reported_with_its_signal() -> None:
    assert await expect_failure("os.kill(os.getpid(), 9)") == "The process of the pipeline was ended by signal 9."


async def test_process_without_its_last_event_is_reported() -> None:
    script = """print('{"type": "run.started"}', flush=True); print('{"type": "run.comp', end="", flush=True)"""
    assert await expect_failure(script) == "The process of the pipeline exited with status 0."


async def test_reported_lines_have_no_secrets_and_are_bounded() -> None:
    script = f"""
print("x" * 100_000, file=sys.stderr)
print("header {API_KEY} and {REGISTRY_KEY}.", file=sys.stderr)
print("sk-abcdefghijk at https://user:password@host/v1 \\x1b[31mred", file=sys.stderr)
sys.exit(1)"""
    message = await expect_failure(script)
    assert message.endswith("| header […] and […]. | […] at […] [31mred")
    assert len(message) < 400


async def test_large_input_and_large_events_arrive_unchanged() -> None:
    script = """
task = sys.stdin.readline()
print('{"type": "run.completed", "size": %d, "text": "%s"}' % (len(task), "ä" * 1_000_000), flush=True)"""
    (event,) = await run_script(script, make_task("x" * 1_000_000))
    assert event["size"] > 1_000_000
    assert event["text"] == "ä" * 1_000_000


async def test_process_that_fills_its_stderr_is_not_blocked() -> None:
    script = """sys.stderr.write("y" * 1_000_000); print('{"type": "run.completed"}', flush=True)"""
    assert await run_script(script) == [{"type": "run.completed"}]
