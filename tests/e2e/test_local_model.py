"""svc.gateway.local_model.supervisor: a real child process with a real model, which lives, dies and comes back."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from svc.errors import CommandFailed
from svc.gateway.local_model.supervisor import LocalModelSupervisor, inference_thread_count

ASK = [{"role": "user", "content": "What is the capital of France?"}]


@asynccontextmanager
async def running(path: Path, moved: Callable[[str], None] = lambda _: None) -> AsyncIterator[LocalModelSupervisor]:
    model = LocalModelSupervisor("smollm2-135m", path, context=8192, on_address=moved)
    await model.start()
    try:
        yield model
    finally:
        await model.stop()


def call(model: LocalModelSupervisor, path: str, body: dict[str, Any], **headers: str) -> bytes:
    data = json.dumps({"model": "smollm2-135m", "max_tokens": 12, "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{model.base_url}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def gone(pid: int) -> bool:
    """Ended, even if nobody has asked for its status yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def until(condition: Callable[[], bool], timeout: float = 30) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.05)


@contextmanager
def cpu_of(pid: int) -> Iterator[Callable[[], float]]:
    """Seconds of CPU that a process used since the beginning of the context."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    yield lambda: used() - before


async def test_it_speaks_both_dialects(model_path: Path) -> None:
    async with running(model_path) as model:
        bearer, header = {"authorization": f"Bearer {model.api_key}"}, {"x-api-key": model.api_key}
        answer = json.loads(await asyncio.to_thread(call, model, "/chat/completions", {"messages": ASK}, **bearer))
        assert answer["choices"][0]["message"]["content"]
        answer = json.loads(await asyncio.to_thread(call, model, "/messages", {"messages": ASK}, **header))
        assert answer["content"][0]["text"]
        stream = {"messages": ASK, "stream": True, "stream_options": {"include_usage": True}}
        text = (await asyncio.to_thread(call, model, "/chat/completions", stream, **bearer)).decode()
        assert text.count("data: {") > 5
        assert '"usage":{"completion_tokens":' in text
        assert text.rstrip().endswith("data: [DONE]")
        text = (await asyncio.to_thread(call, model, "/messages", {**stream}, **header)).decode()
        assert text.index("message_start") < text.index("content_block_delta") < text.index("message_stop")


async def test_without_its_key_it_refuses(model_path: Path) -> None:
    async with running(model_path) as model:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(call, model, "/chat/completions", {"messages": ASK})
        command = Path(f"/proc/{model.pid}/cmdline").read_bytes()
        assert b"svc.gateway.local_model.process" in command
        assert model.api_key.encode() not in command


async def test_a_killed_child_comes_back(model_path: Path) -> None:
    seen: list[str] = []
    async with running(model_path, seen.append) as model:
        first = model.pid
        assert first is not None
        assert seen == [model.base_url]
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(seen) == 2)
        assert model.pid not in (None, first)
        assert model.base_url == seen[1]
        await asyncio.to_thread(
            call, model, "/chat/completions", {"messages": ASK}, authorization=f"Bearer {model.api_key}"
        )
        last = model.pid
    assert last is not None
    assert gone(last)
    assert (model.pid, model.base_url) == (None, None)


PARENT = """
import asyncio, sys
from pathlib import Path
from svc.gateway.local_model.supervisor import LocalModelSupervisor

async def main():
    model = LocalModelSupervisor("m", Path(sys.argv[1]), context=8192)
    await model.start()
    print(model.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_killed_parent_takes_the_child_along(model_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(model_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(await asyncio.to_thread(parent.stdout.readline))
        assert not gone(child)
        parent.send_signal(number)
        await until(lambda: gone(child), 5)


@pytest.mark.parametrize(
    "body",
    [
        {"stream": True, "max_tokens": 4000, "messages": ASK, "ignore_eos": True},
        {"max_tokens": 4000, "messages": ASK, "ignore_eos": True},
        {"messages": [{"role": "user", "content": "word " * 7000}]},
    ],
    ids=["stream", "json", "prompt"],
)
async def test_a_client_that_leaves_costs_nothing_more(model_path: Path, body: dict[str, Any]) -> None:
    async with running(model_path) as model:
        assert model.pid is not None
        assert model.base_url is not None
        port = int(model.base_url.split(":")[2].split("/")[0])
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {model.api_key}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        with cpu_of(model.pid) as used:
            await until(lambda: used() > 0.3)
        writer.close()
        async with asyncio.timeout(20):  # alone it takes a second; all of the answer would take three times as long
            while True:
                with cpu_of(model.pid) as used:
                    await asyncio.sleep(1)
                    if used() < 0.1:
                        return


async def test_weights_that_are_none_are_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(1000))
    model = LocalModelSupervisor("broken", tmp_path / "broken.gguf", context=8192)
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"did not start: .+"):
        await model.start()
    assert time.monotonic() - began < 20
    await model.stop()


async def test_weights_that_are_not_there_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="svc models add gone"):
        await LocalModelSupervisor("gone", tmp_path / "gone.gguf", context=8192).start()


def test_the_gateway_keeps_a_core_where_there_are_several() -> None:
    cores = os.cpu_count() or 1
    assert 1 <= inference_thread_count() <= max(1, cores - 1)
