"""A provider on a socket, in its own thread. It plays scripts and records the requests.

    with FakeProvider(openai_wire, key="sk-a") as fake:
        fake.plays(sse(openai_wire.stream("Hi")[:2], end=reset()))
        ...                                  # a client calls fake.address
        seen = fake.wait()                   # the first request, complete
        seen.json["model"], seen.headers["authorization"], seen.wait_left(1.0)

Requests take the scripts in the given order. Without a script they get the dialect's default response. A request that
the real provider would reject is rejected and recorded in `complaints`. The fake uses TLS if it has an SSL context.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

import httptools

from tests.fakes.script import Body, End, Fin, Head, Hold, Pause, Raw, Reset, Script, Stall, Step

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


class Wire(Protocol):
    """The part of the fake that depends on the dialect. `openai_wire` and `anthropic_wire` implement it."""

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        """Return the reason and the response if the real provider would reject this request."""

    def usual(self, seen: Recorded) -> Script:
        """Return the response for a request without a script."""


class Recorded:
    """One received request. Times are values of `time.monotonic()`."""

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.header_list: list[tuple[str, str]] = []
        self.body = b""
        self.arrived = 0.0
        self.left: float | None = None
        """When the client disconnected during the response."""
        self.played = False
        """The script has been played completely."""
        self.sent = 0
        """Number of response bytes that the kernel has accepted."""
        self.disconnected = threading.Event()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def wait_left(self, timeout: float = 20.0) -> float:
        """Return when the client disconnected. Raises TimeoutError."""
        if not self.disconnected.wait(timeout) or self.left is None:
            raise TimeoutError(f"the client kept the connection; sent: {'all' if self.played else self.sent}")
        return self.left


class FakeProvider:
    """One provider. `address` is `http://HOST:PORT`, or with TLS `https://localhost:PORT`."""

    def __init__(
        self, wire: Wire, *, key: str = "sk-fake", tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.wire = wire
        self.key = key
        self.tls = tls
        self.requests: list[Recorded] = []
        self.complaints: list[str] = []
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self._scripts: deque[Script] = deque()
        self._always: Script | None = None
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fake provider", daemon=True)
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"https://localhost:{self.port}" if tls else f"http://{host}:{self.port}"
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)
        self._loop.close()

    def plays(self, *scripts: Script) -> None:
        """Play these scripts for the next requests, one each."""
        self._scripts.extend(scripts)

    def always_plays(self, script: Script | None) -> None:
        """Play this script for requests beyond the given scripts."""
        self._always = script

    def forget(self) -> None:
        """Drop scripts and recorded requests, and close connections with a running response. Idle ones stay open."""
        self._scripts.clear()
        self._always = None
        asyncio.run_coroutine_threadsafe(self._drop_running(), self._loop).result(5)
        self.requests.clear()
        self.complaints.clear()

    def wait(self, count: int = 1, timeout: float = 20.0) -> Recorded:
        """Return the request number `count` since the last reset, once it is complete. Raises TimeoutError."""
        self.until(lambda: len(self.requests) >= count, timeout)
        return self.requests[count - 1]

    def until(self, condition: Callable[[], bool], timeout: float = 20.0) -> None:
        """Wait for a change in the fake, such as a request, a connection or a played script."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(f"waited {timeout} s, the fake provider received {len(self.requests)} requests")

    # The methods below run in the fake's own thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: Connection(self), sock=self._listener, ssl=self.tls)
        await self._stop.wait()
        server.close()
        for connection in list(self.connections):
            await connection.close()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=2)

    async def _drop_running(self) -> None:
        for connection in [one for one in self.connections if one.busy]:
            await connection.close()

    def script_for(self, seen: Recorded) -> Script:
        """Record the request and return its script."""
        refusal = self.wire.refusal(seen, self.key)
        if refusal:
            self.complaints.append(refusal[0])
        script = self._scripts.popleft() if self._scripts else self._always
        with self._changed:
            self.requests.append(seen)
            self._changed.notify_all()
        if refusal:
            return refusal[1]
        return script if script is not None else self.wire.usual(seen)

    def changed(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Connection(asyncio.Protocol):
    """One accepted connection. httptools parses requests, and one script plays at a time."""

    def __init__(self, fake: FakeProvider) -> None:
        self.fake = fake
        self.busy = False
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: asyncio.Queue[Recorded] = asyncio.Queue()
        self._closed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._framing = "close"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=16 * 1024 if self.fake.tls else 0)
        self.fake.accepted += 1
        self.number = self.fake.accepted
        self._seen = Recorded(self.number)
        self._task = asyncio.get_running_loop().create_task(self._work())
        self.fake.tasks.add(self._task)
        self._task.add_done_callback(self.fake.tasks.discard)
        self.fake.connections.add(self)
        self.fake.changed()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fake.complaints.append(f"not HTTP: {error}")
            self._transport.abort()

    def eof_received(self) -> bool:
        self._peer_left()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._peer_left()
        self._task.cancel()
        self.fake.connections.discard(self)
        self.fake.changed()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def close(self) -> None:
        """Close the connection from the fake's side."""
        self._transport.abort()
        self._closed.set()
        self._task.cancel()
        await asyncio.wait([self._task], timeout=2)

    @property
    def serves(self) -> str:
        """The model named in the last request."""
        return str(json.loads(self._seen.body or b"{}").get("model"))

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._seen = Recorded(self.number)

    def on_url(self, url: bytes) -> None:
        self._seen.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._seen.header_list.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        self._seen.body += data

    def on_message_complete(self) -> None:
        self._seen.method = self._parser.get_method().decode("latin-1")
        self._seen.headers = dict(self._seen.header_list)
        self._seen.arrived = time.monotonic()
        self._waiting.put_nowait(self._seen)

    # response

    def _peer_left(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._room.set()
        if self.busy and not self._current.played:
            self._current.left = time.monotonic()
            self._current.disconnected.set()
            self.fake.changed()

    async def _work(self) -> None:
        while not self._closed.is_set():
            self._current = await self._waiting.get()
            self.busy = True
            try:
                for step in self.fake.script_for(self._current).steps:
                    await self._play(step)
                self._current.played = not self._current.disconnected.is_set()
            finally:
                self.busy = False
                self.fake.changed()

    async def _play(self, step: Step) -> None:
        if self._closed.is_set():
            return
        match step:
            case Head():
                self._framing = step.framing
                await self._write(head_bytes(step))
            case Body(data):
                await self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._framing == "chunked" else data)
            case Raw(data):
                await self._write(data)
            case End():
                await self._end()
            case Pause(seconds):
                await self._wait(seconds)
            case Hold(gate):
                gate.arrived.set()
                while not gate.opened.is_set() and not self._closed.is_set():
                    await self._wait(0.002)
            case Stall():
                await self._closed.wait()
            case Fin():
                self._leave(linger=False)
            case Reset():
                self._leave(linger=True)

    async def _write(self, data: bytes) -> None:
        """Write large data in small chunks, so that `sent` counts what the client's system has accepted."""
        for start in range(0, len(data), 65536):
            part = data[start : start + 65536]
            self._transport.write(part)
            await self._room.wait()
            if self._closed.is_set():
                return
            self._current.sent += len(part)

    async def _end(self) -> None:
        if self._framing == "chunked":
            await self._write(b"0\r\n\r\n")
        elif self._framing == "close":
            self._leave(linger=False)

    async def _wait(self, seconds: float) -> None:
        """Sleep until the time is over or the client disconnects. Zero flushes the written bytes separately."""
        if not seconds:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(self._closed.wait(), seconds)
        except TimeoutError:
            return

    def _leave(self, *, linger: bool) -> None:
        self._current.played = True
        self._closed.set()
        if linger:
            own = self._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()


def head_bytes(head: Head) -> bytes:
    """Return the head as bytes, with the header that its framing needs."""
    lines = [f"HTTP/1.1 {head.status} {REASONS.get(head.status, 'Whatever')}"]
    lines += [f"{name}: {value}" for name, value in head.headers]
    if head.framing == "chunked":
        lines.append("transfer-encoding: chunked")
    elif head.framing == "length":
        lines.append(f"content-length: {head.length or 0}")
    else:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
