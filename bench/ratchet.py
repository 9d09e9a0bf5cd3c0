"""Holds what is stable about the gateway's cost to `ratchet.json`: `make ratchet` measures, and writes the file anew.

Timings on a shared machine say little, so calls are counted: of Python functions and of C functions, in the thread that
serves, for one request and for one piece of a stream. This process is both client and provider, in lock-step, so that
nothing depends on time; the least of several batches leaves the gateway's own clock out. `tests/test_ratchet.py` fails
when a figure is a tenth above the file's.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

LIMITS = Path(__file__).with_name("ratchet.json")
MARGIN = 1.1
BATCHES, PER_BATCH = 5, 8
_LEFT_OUT = shutil.ignore_patterns("*.so", "__pycache__")
KEY = "ratchet-key"
GPT, CLAUDE = "gpt-4o-mini", "claude-3-5-sonnet-20241022"
COUNTED = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
seen, turn = set(), 0
def count(frame, event, argument):
    global turn
    if event == "call":
        counts[0] += 1
        if counts[2] != turn:
            turn = counts[2]
            seen.clear()
        if turn and frame.f_code not in seen:
            seen.add(frame.f_code)
            counts[3] = len(seen)
            counts[4] = len({code.co_filename for code in seen})
    elif event == "c_call":
        counts[1] += 1
from svc.cli import main
sys.argv = ["svc", "gateway", "--port", "0"]
sys.setprofile(count)
sys.exit(main())
"""
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o-mini","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Fine."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"total_tokens":11}}'
)
PIECE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[{"index":0,'
    b'"delta":{%b},"finish_reason":%b}]}\n\n'
)
OPENAI = (
    PIECE % (b'"role":"assistant","content":""', b"null"),
    PIECE % (b'"content":" word"', b"null"),
    PIECE % (b"", b'"stop"') + b"data: [DONE]\n\n",
)
ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"model":"c","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}\n\n',
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\nevent: message_delta\ndata: '
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)


def measure() -> dict[str, float]:
    """Every figure, by its name in the file."""
    with tempfile.TemporaryDirectory(prefix="svc-ratchet-") as folder:
        return {**calls(Path(folder)), **at_rest(Path(folder))}


def calls(folder: Path) -> dict[str, float]:
    """Calls per request and per piece."""
    shared = folder / "counts"
    shared.write_bytes(bytes(64))
    with shared.open("r+b") as file, socket.create_server(("127.0.0.1", 0)) as listener:
        counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        with gateway(folder, listener, [sys.executable, "-c", COUNTED, str(shared)], plain(folder)) as (_, port):
            found = Replay(listener, port, counts).figures()
        counts.release()
    return found


class Replay:
    """One client connection and one connection of a provider, both ours."""

    def __init__(self, listener: socket.socket, port: int, counts: memoryview) -> None:
        self._listener = listener
        self._client = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._provider: socket.socket | None = None
        self._counts = counts

    def figures(self) -> dict[str, float]:
        for _ in range(3):
            self._json()
        found: dict[str, float] = {**self._least("request", self._json), **self._entered()}
        for name, model, pieces in (("same dialect", GPT, OPENAI), ("Anthropic to OpenAI", CLAUDE, ANTHROPIC)):
            self._begin(model, pieces[0])
            found |= self._least(f"piece, {name}", partial(self._piece, pieces[1]))
            self._end(pieces[2])
        found |= self._least("stream of three pieces", self._stream)
        self._client.close()
        if self._provider is not None:
            self._provider.close()
        return found

    def _least(self, what: str, once: Callable[[], None]) -> dict[str, float]:
        """Of several batches, calls for each."""
        least = [float("inf"), float("inf")]
        for _ in range(BATCHES):
            before = self._counts[0], self._counts[1]
            for _ in range(PER_BATCH):
                once()
            self._settle()
            least = [min(least[at], (self._counts[at] - before[at]) / PER_BATCH) for at in (0, 1)]
        return {f"Python calls per {what}": round(least[0], 1), f"C calls per {what}": round(least[1], 1)}

    def _entered(self) -> dict[str, float]:
        """Functions and files that a request needs; the least of several, as above."""
        found = []
        for turn in range(1, 6):
            self._counts[2] = turn
            self._json()
            self._settle()
            found.append((self._counts[3], self._counts[4]))
        self._counts[2] = 0
        functions, files = min(found)
        return {"functions entered by a request": functions, "files entered by a request": files}

    def _settle(self) -> None:
        """What follows an answer in the same turn of the loop has ended when nothing is counted any more."""
        while True:
            before = self._counts[0]
            time.sleep(0.005)
            if self._counts[0] == before:
                return

    def _json(self) -> None:
        self._ask(GPT, b"")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._say(head % len(ANSWER) + ANSWER)
        self._read(ANSWER[-20:])

    def _stream(self) -> None:
        self._begin(GPT, OPENAI[0])
        self._piece(OPENAI[1])
        self._end(OPENAI[2])

    def _begin(self, model: str, first: bytes) -> None:
        self._ask(model, b',"stream":true')
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._say(head + chunk(first))
        self._read(b'"role"')

    def _piece(self, piece: bytes) -> None:
        self._say(chunk(piece))
        self._read(b" word")

    def _end(self, last: bytes) -> None:
        self._say(chunk(last) + b"0\r\n\r\n")
        self._read(b"0\r\n\r\n")

    def _ask(self, model: str, more: bytes) -> None:
        """The client asks, and the provider has read it."""
        body = b'{"model":"%b","messages":[{"role":"user","content":"Hello there, how are you?"}]%b}' % (
            model.encode(),
            more,
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\naccept: */*\r\n"
        self._client.sendall(
            f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        if self._provider is None:
            self._listener.settimeout(10)
            self._provider, _ = self._listener.accept()
            self._provider.settimeout(10)
        while not self._provider.recv(65536).endswith(b"}"):
            continue

    def _say(self, data: bytes) -> None:
        assert self._provider is not None
        self._provider.sendall(data)

    def _read(self, mark: bytes) -> None:
        """All that the client gets, until `mark` is in it."""
        found = b""
        while mark not in found:
            data = self._client.recv(65536)
            if not data:
                raise ConnectionError(f"the gateway closed after {found!r}")
            found += data


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def at_rest(folder: Path) -> dict[str, float]:
    """What `svc gateway` has imported, and its memory, when it is ready and nobody has come. Not compiled: imports of
    compiled modules are not told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-X", "importtime", "-m", "svc", "gateway", "--port", "0"]
        with gateway(folder, listener, command, plain(folder)) as (process, _):
            time.sleep(0.5)
            status = Path(f"/proc/{process.pid}/status")
            memory = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    imported = re.findall(r"^import time: .*\|\s*([\w.]+)$", (folder / "log").read_text(), flags=re.M)
    own = [name for name in imported if name.split(".")[0] == "svc"]
    found: dict[str, float] = {"modules imported": len(imported), "modules imported, of svc": len(own)}
    return {**found, "MB at rest": round(int(memory.group(1)) / 1024, 1)} if memory else found


def plain(folder: Path) -> Path:
    """A copy of the source without its compiled modules, in which calls can be counted."""
    package = Path(__file__).parent.parent / "src" / "svc"
    shutil.copytree(package, folder / "source" / "svc", ignore=_LEFT_OUT, dirs_exist_ok=True)
    return folder / "source"


@contextmanager
def gateway(
    folder: Path, provider: socket.socket, command: list[str], source: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The real command, in front of `provider`; its process and its port."""
    address = f"http://127.0.0.1:{provider.getsockname()[1]}"
    env = {
        "PATH": os.environ["PATH"],
        "SVC_HOME": str(folder / "home"),
        "SVC_API_KEYS": KEY,
        "PROVIDER_A_BASE_URL": f"{address}/v1",
        "PROVIDER_A_API_KEY": "a",
        "PROVIDER_B_BASE_URL": address,
        "PROVIDER_B_API_KEY": "b",
        "PYTHONHASHSEED": "0",
    }
    if source is not None:
        env["PYTHONPATH"] = str(source)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process, port_of(process, folder / "log")
        finally:
            process.terminate()
            process.wait(20)


def port_of(process: subprocess.Popen[bytes], log: Path, seconds: float = 30) -> int:
    deadline = time.monotonic() + seconds
    while not (said := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the gateway did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
    return int(said.group(1))


def worse(found: dict[str, float], limits: dict[str, float]) -> list[str]:
    """A line for each figure that is more than a tenth above its limit, or has none."""
    return [
        f"{name}: {value:g}, at most {limits.get(name, 0) * MARGIN:.1f} ({limits.get(name, 0):g} and a tenth)"
        for name, value in found.items()
        if value > limits.get(name, 0) * MARGIN
    ]


def main() -> None:
    """Writes the file, and says what has changed."""
    before: dict[str, float] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    found = measure()
    for name, value in found.items():
        print(f"{name:<44}{before.get(name, 0):>9g} -> {value:g}")
    LIMITS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
