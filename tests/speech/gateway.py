"""A gateway in a process of its own, and a client of its live WebSocket."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import websockets

from tests import fork_server
from tests.fork_server import ForkedProcess
from tests.speech.material import HOME

KEY = "test-key"
PATH = "/v1/audio/transcriptions/stream"
START_SECONDS = 60.0
"""The timeout for the start of a gateway, on a busy machine."""


class Gateway:
    """A running gateway, with its address and process."""

    def __init__(self, address: str, process: subprocess.Popen[str] | ForkedProcess, log: Path | None = None) -> None:
        self.address = address
        self.process = process
        self.log = log
        self.url = address.replace("http", "ws") + PATH

    def workers(self) -> list[int]:
        """Return the process ids of the speech workers."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and b"svc.speech.worker" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def run_gateway(folder: Path, config: str = "", **environ_: str) -> Iterator[Gateway]:
    """Run `svc gateway` with the default model and this configuration."""
    (folder / "svc.toml").write_text(config)
    own = {"SVC_HOME": str(folder), "SVC_REGISTRY_ROOT": str(HOME / "registry"), "SVC_API_KEYS": KEY}
    inherited = {
        name: value for name, value in os.environ.items() if name == "PYTHONPATH" or not name.startswith("PYTHON")
    }
    environ = {**inherited, **own, **environ_}
    printed, log = folder / "printed.txt", folder / "log.txt"
    process: subprocess.Popen[str] | ForkedProcess
    with printed.open("wb") as output, log.open("wb") as errors:
        if fork_server.can_start(environ):
            process = fork_server.start(["gateway", "--port", "0"], environ, Path.cwd(), stdout=output, stderr=errors)
        else:
            command = [sys.executable, "-m", "svc", "gateway", "--port", "0"]
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=errors, text=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (line := printed.read_text()).endswith("\n"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        yield Gateway(line.split()[1].removesuffix("/v1"), process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


class LiveClient:
    """One live session. It records all received messages."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []

    async def send_message(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def send_audio(self, data: bytes, frame: int = 3200) -> None:
        for place in range(0, len(data), frame):
            await self.socket.send(data[place : place + frame])

    async def wait_for(self, kind: str, timeout: float = 30) -> dict[str, Any]:
        """Return the next message of a type. Earlier messages are recorded."""
        return await self.wait_for_any(kind, timeout=timeout)

    async def wait_for_any(self, *kinds: str, timeout: float = 30) -> dict[str, Any]:
        """Return the next message of one of these types. Earlier messages are recorded."""
        async with asyncio.timeout(timeout):
            while True:
                message = json.loads(await self.socket.recv())
                self.received.append(message)
                if message["type"] in kinds:
                    return message

    def partials(self) -> list[dict[str, Any]]:
        return [message for message in self.received if message["type"] == "partial"]


@contextlib.asynccontextmanager
async def session(gateway: Gateway, **options: Any) -> AsyncIterator[LiveClient]:
    """Open a WebSocket with a valid key."""
    headers = options.pop("headers", {"Authorization": f"Bearer {KEY}"})
    async with websockets.connect(gateway.url, additional_headers=headers, max_size=None, **options) as socket:
        yield LiveClient(socket)


def check_stable_prefixes(messages: list[dict[str, Any]]) -> None:
    """Assert that stable text is a prefix of later texts, and that chunk indexes start at 0 in each utterance."""
    stable, index = "", 0
    for message in messages:
        if message["type"] not in ("partial", "final"):
            continue
        assert message["text"].startswith(stable), (stable, message)
        if message["type"] == "final":
            stable, index = "", 0
            continue
        assert message["chunk_index"] == index
        index += 1
        if message["is_stable"]:
            stable = message["text"]
