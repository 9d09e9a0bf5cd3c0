"""svc.gateway.local_model.supervisor with a real model in a real child process, which is killed and restarted."""

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
from svc.gateway.local_model.supervisor import (
    LocalModelSupervisor,
    LocalServerOptions,
    Sampling,
    inference_thread_count,
)

KEY = "key-of-the-child-process"
ASK = [{"role": "user", "content": "What is the capital of France?"}]


ENDLESS_GRAMMAR = 'root ::= x{0,60} "b"\nx ::= y{0,60}\ny ::= z{0,60}\nz ::= "a"?'


def server_options(path: Path, **options: Any) -> LocalServerOptions:
    return LocalServerOptions(
        model="smollm2-135m",
        model_path=str(path),
        key=KEY,
        context=8192,
        sampling=Sampling(),
        threads=inference_thread_count(),
        **options,
    )


@asynccontextmanager
async def running(
    path: Path, on_address: Callable[[str], None] = lambda _: None, **options: Any
) -> AsyncIterator[LocalModelSupervisor]:
    model = LocalModelSupervisor(server_options(path, **options), on_address=on_address)
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


def has_exited(pid: int) -> bool:
    """Return whether the process has exited, even if it is not reaped yet."""
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
    """Yield a function that returns the CPU seconds of a process since the context began."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    yield lambda: used() - before


async def test_local_model_answers_in_both_dialects(model_path: Path) -> None:
    async with running(model_path) as model:
        bearer, header = {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}
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


async def test_local_model_without_key_returns_401(model_path: Path) -> None:
    async with running(model_path) as model:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(call, model, "/chat/completions", {"messages": ASK})
        command = Path(f"/proc/{model.pid}/cmdline").read_bytes()
        assert b"svc.gateway.local_model.process" in command
        assert KEY.encode() not in command


async def test_local_model_killed_process_is_restarted(model_path: Path) -> None:
    seen: list[str] = []
    async with running(model_path, seen.append) as model:
        first = model.pid
        assert first is not None
        assert seen == [model.base_url]
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(seen) == 2)
        assert model.pid not in (None, first)
        assert model.base_url == seen[1]
        await asyncio.to_thread(call, model, "/chat/completions", {"messages": ASK}, authorization=f"Bearer {KEY}")
        last = model.pid
    assert last is not None
    assert has_exited(last)
    assert (model.pid, model.base_url) == (None, None)


@pytest.mark.slow
async def test_local_model_without_progress_is_restarted(model_path: Path) -> None:
    """A request keeps llama.cpp busy without an end, and all others would wait for it."""
    bearer = {"authorization": f"Bearer {KEY}"}
    async with running(model_path, stall_seconds=4.0) as model:
        first = model.pid
        duration, words = 0.0, 100
        while duration < 6:  # longer than a stall, with progress
            prompt, started_at = [{"role": "user", "content": f"{words} word " * words}], time.monotonic()
            await asyncio.to_thread(call, model, "/chat/completions", {"messages": prompt}, **bearer)
            duration, words = time.monotonic() - started_at, 2 * words
        assert model.pid == first
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            await asyncio.to_thread(
                call, model, "/chat/completions", {"messages": ASK, "grammar": ENDLESS_GRAMMAR}, **bearer
            )
        await until(lambda: model.pid not in (None, first))
        await asyncio.to_thread(call, model, "/chat/completions", {"messages": ASK}, **bearer)


PARENT = """
import asyncio, sys
from svc.gateway.local_model.supervisor import LocalModelSupervisor, LocalServerOptions, Sampling

async def main():
    options = LocalServerOptions(
        model="m", model_path=sys.argv[1], key="k", context=8192, sampling=Sampling(), threads=1
    )
    model = LocalModelSupervisor(options)
    await model.start()
    print(model.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_local_model_exits_with_parent(model_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(model_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(await asyncio.to_thread(parent.stdout.readline))
        assert not has_exited(child)
        parent.send_signal(number)
        await until(lambda: has_exited(child), 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        {"stream": True, "max_tokens": 4000, "messages": ASK, "ignore_eos": True},
        {"max_tokens": 4000, "messages": ASK, "ignore_eos": True},
        {"messages": [{"role": "user", "content": "word " * 7000}]},
    ],
    ids=["stream", "json", "prompt"],
)
async def test_local_model_client_disconnect_stops_generation(model_path: Path, body: dict[str, Any]) -> None:
    async with running(model_path) as model:
        assert model.pid is not None
        assert model.base_url is not None
        port = int(model.base_url.split(":")[2].split("/")[0])
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        with cpu_of(model.pid) as used:
            await until(lambda: used() > 0.3)
        writer.close()
        async with asyncio.timeout(20):  # stopping takes 1 s alone, the whole response 3 s
            while True:
                with cpu_of(model.pid) as used:
                    await asyncio.sleep(1)
                    if used() < 0.1:
                        return


async def test_local_model_invalid_weights_raise_command_failed(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(1000))
    model = LocalModelSupervisor(server_options(tmp_path / "broken.gguf"))
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"did not start: .+"):
        await model.start()
    assert time.monotonic() - began < 20
    await model.stop()


async def test_local_model_missing_weights_error_names_command(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="svc models add smollm2-135m"):
        await LocalModelSupervisor(server_options(tmp_path / "gone.gguf")).start()


def test_local_model_thread_count_leaves_one_core_free() -> None:
    cores = os.cpu_count() or 1
    assert 1 <= inference_thread_count() <= max(1, cores - 1)
