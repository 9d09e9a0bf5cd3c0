"""Live sessions of both clients with a server that closes, hangs and rejects as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

import svc
from svc import errors
from svc.client import live as live_module
from svc.client.aio import AsyncLive
from svc.client.client import Live
from svc.client.transport import run_sync

WAIT_SECONDS = 10.0

Serve = Callable[[Callable[[ServerConnection], None]], str]
Run = Callable[..., Any]
Event = svc.Partial | svc.Final


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


READY = event("ready", session_id="s", model="m")
PARTIAL = event("partial", text="hel", is_stable=False, chunk_index=0)
CLOSED = event("closed", reason="client_close")
ASR_ERROR = event("error", message="The model failed.", code="asr_error")
RATE_LIMIT = event("error", message="All sessions are in use.", code="rate_limit_exceeded")


def final(text: str) -> str:
    return event("final", text=text, duration_ms=1, chunks_processed=1)


@pytest.fixture
def serve_live() -> Iterator[Serve]:
    """`serve_live(handler)` starts a WebSocket server and returns the URL of its gateway."""
    with contextlib.ExitStack() as stack:

        def start(handler: Callable[[ServerConnection], None]) -> str:
            def handle(connection: ServerConnection) -> None:
                with contextlib.suppress(ConnectionClosed):
                    handler(connection)

            server = stack.enter_context(serve(handle, "127.0.0.1", 0, close_timeout=1))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.socket.getsockname()[1]}/v1"

        yield start


class Session:
    """A session of either client. `start` runs a function in another thread or task."""

    def __init__(self, live: Live | AsyncLive) -> None:
        self.live = live

    async def call(self, method: str, *arguments: Any) -> Any:
        result = getattr(self.live, method)(*arguments)
        return result if isinstance(self.live, Live) else await result

    async def call_until_error(self, method: str, *arguments: Any) -> None:
        """Call a method until it raises. The first calls may be sent before the client reads the end of the session."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            await self.call(method, *arguments)
            if not isinstance(self.live, Live):
                await asyncio.sleep(0)  # a call that need not wait does not let the event loop receive

    async def read(self, on_event: Callable[[Event], None] = lambda event: None) -> list[Any]:
        """Return what an iteration yields: texts, then the reason of the end or the error."""
        seen: list[Any] = []
        try:
            if isinstance(self.live, Live):
                for one in self.live:
                    seen.append(one.text)
                    on_event(one)
            else:
                async for one in self.live:
                    seen.append(one.text)
                    on_event(one)
        except Exception as error:
            return [*seen, error]
        return [*seen, self.live.closed]

    async def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Awaitable[Any]]:
        """Start `work`, and return a function that waits for its result."""
        if not isinstance(self.live, Live):
            task = asyncio.ensure_future(work())
            await asyncio.sleep(0)
            return lambda: asyncio.wait_for(task, WAIT_SECONDS)
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(run_sync(work())), daemon=True)
        thread.start()

        async def join() -> Any:
            thread.join(WAIT_SECONDS)
            assert result, "the thread still waits"
            return result[0]

        return join

    async def wait(self, seen: threading.Event) -> None:
        if isinstance(self.live, Live):
            assert seen.wait(WAIT_SECONDS)
        else:
            assert await asyncio.to_thread(seen.wait, WAIT_SECONDS)


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(url, test)` calls `test` with a session of the client at this URL. It returns the result."""

    def do(url: str, test: Callable[[Session], Coroutine[Any, Any, Any]], timeout: float = WAIT_SECONDS) -> Any:
        options: dict[str, Any] = {"gateway_url": url, "api_key": "key-1", "timeout": timeout}
        if request.param == "sync":
            with svc.Client(**options) as client:
                return run_sync(test(Session(client.live())))

        async def main() -> Any:
            async with svc.AsyncClient(**options) as client:
                return await test(Session(await client.live()))

        return asyncio.run(main())

    return do


async def do_nothing(session: Session) -> None:
    """Open a session only."""


# another thread or task iterates


def serve_texts(connection: ServerConnection, *, final_gate: threading.Event | None = None) -> None:
    """Send a partial and a numbered final for each flush, and `closed` at the end."""
    flushes = 0
    for message in connection:
        match json.loads(message)["type"] if isinstance(message, str) else "audio":
            case "config":
                connection.send(READY)
            case "flush":
                flushes += 1
                connection.send(PARTIAL)
                if final_gate is not None:
                    assert final_gate.wait(WAIT_SECONDS)
                connection.send(final(f"final {flushes}"))
            case "close":
                connection.send(PARTIAL)
                connection.send(CLOSED)
                return


def test_live_finish_while_another_iterates_returns_final_to_both(serve_live: Serve, run: Run) -> None:
    reading = threading.Event()

    async def finish(session: Session) -> Any:
        join = await session.start(lambda: session.read(lambda event: reading.set()))
        text = (await session.call("finish")).text
        await session.call("close")
        return text, await join()

    url = serve_live(lambda connection: serve_texts(connection, final_gate=reading))
    assert run(url, finish) == ("final 1", ["hel", "final 1", "hel", "client_close"])


def test_live_close_while_another_iterates_lets_it_read_to_the_end(serve_live: Serve, run: Run) -> None:
    async def close(session: Session) -> Any:
        join = await session.start(session.read)
        await session.call("flush")
        await session.call("close")
        return session.live.closed, await join()

    assert run(serve_live(serve_texts), close) == ("client_close", ["hel", "final 1", "hel", "client_close"])


def test_live_finish_while_the_reader_handles_an_event_keeps_the_final_for_it(serve_live: Serve, run: Run) -> None:
    async def finish(session: Session) -> Any:
        handling, may_continue = threading.Event(), threading.Event()

        def on_event(one: Event) -> None:
            if isinstance(session.live, Live):  # the reader is in its loop body while `finish` receives
                handling.set()
                assert may_continue.wait(WAIT_SECONDS)

        join = await session.start(lambda: session.read(on_event))
        await session.call("flush")
        if isinstance(session.live, Live):
            await session.wait(handling)
        text = (await session.call("finish")).text
        may_continue.set()
        await session.call("close")
        return text, await join()

    assert run(serve_live(serve_texts), finish) == (
        "final 2",
        ["hel", "final 1", "hel", "final 2", "hel", "client_close"],
    )


def test_live_finish_alone_consumes_its_partials_and_final(serve_live: Serve, run: Run) -> None:
    async def finish(session: Session) -> Any:
        texts = [(await session.call("finish")).text, (await session.call("finish")).text]
        await session.call("flush")
        await session.call("close")
        return texts, await session.read()

    assert run(serve_live(serve_texts), finish) == (
        ["final 1", "final 2"],
        ["hel", "final 3", "hel", "client_close"],
    )


def test_live_finish_after_flush_returns_its_own_final(serve_live: Serve, run: Run) -> None:
    async def finish(session: Session) -> Any:
        await session.call("flush")
        text = (await session.call("finish")).text
        await session.call("close")
        return text, await session.read()

    assert run(serve_live(serve_texts), finish) == ("final 2", ["final 1", "hel", "client_close"])


def test_live_two_finishes_at_once_return_both_finals(serve_live: Serve, run: Run) -> None:
    async def finish(session: Session) -> Any:
        join = await session.start(lambda: session.call("finish"))
        texts = {(await session.call("finish")).text, (await join()).text}
        await session.call("close")
        return texts

    assert run(serve_live(serve_texts), finish) == {"final 1", "final 2"}


def test_live_finish_cancelled_leaves_final_to_the_reader(serve_live: Serve) -> None:
    gate = threading.Event()
    url = serve_live(lambda connection: serve_texts(connection, final_gate=gate))

    async def main() -> Any:
        async with svc.AsyncClient(gateway_url=url, api_key="key-1") as client:
            session = Session(live := await client.live())
            finishing = asyncio.create_task(live.finish())
            await asyncio.sleep(0.05)
            reading = asyncio.create_task(session.read())
            await asyncio.sleep(0.05)
            finishing.cancel()  # it receives for the reader too, which takes over
            with pytest.raises(asyncio.CancelledError):
                await finishing
            gate.set()
            text = (await live.finish()).text
            await live.close()
            return text, await asyncio.wait_for(reading, WAIT_SECONDS)

    assert asyncio.run(main()) == ("final 2", ["hel", "final 1", "hel", "final 2", "hel", "client_close"])


def test_live_reader_cancelled_while_close_waits_lets_close_receive(serve_live: Serve) -> None:
    gate = threading.Event()
    url = serve_live(lambda connection: serve_texts(connection, final_gate=gate))

    async def main() -> Any:
        async with svc.AsyncClient(gateway_url=url, api_key="key-1") as client:
            live = await client.live()
            reading = asyncio.create_task(Session(live).read())
            await live.flush()
            closing = asyncio.create_task(live.close())
            await asyncio.sleep(0.05)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            gate.set()
            await asyncio.wait_for(closing, WAIT_SECONDS)
            return live.closed

    assert asyncio.run(main()) == "client_close"


# the end of a session


def close_at_once(connection: ServerConnection) -> None:
    connection.send(RATE_LIMIT)
    connection.close(1013)


def test_live_session_limit_raises_rate_limited(serve_live: Serve, run: Run) -> None:
    url = serve_live(close_at_once)
    for _ in range(10):  # the server closes before, while or after the client sends `config`
        with pytest.raises(errors.RateLimited, match="All sessions are in use"):
            run(url, do_nothing)


def end_after_events(*messages: str, code: int) -> Callable[[ServerConnection], None]:
    def handle(connection: ServerConnection) -> None:
        connection.recv()
        for message in (READY, *messages):
            connection.send(message)
        connection.close(code)

    return handle


@pytest.mark.parametrize("method", ["feed", "flush", "reset", "finish"])
def test_live_send_to_rejected_session_raises_its_error_and_keeps_events(
    serve_live: Serve, run: Run, method: str
) -> None:
    async def send(session: Session) -> Any:
        arguments = (b"\0\0",) if method == "feed" else ()
        with pytest.raises(errors.RateLimited, match="All sessions are in use"):
            await session.call_until_error(method, *arguments)
        if method == "finish":
            return None
        return await session.read()

    got = run(serve_live(end_after_events(PARTIAL, final("hello"), RATE_LIMIT, code=1013)), send)
    if got is not None:
        assert got[:2] == ["hel", "hello"]
        assert isinstance(got[2], errors.RateLimited)


@pytest.mark.parametrize("reason", ["key_revoked", "idle_timeout", "server_shutdown"])
def test_live_send_after_closed_names_the_reason(serve_live: Serve, run: Run, reason: str) -> None:
    async def send(session: Session) -> Any:
        with pytest.raises(errors.GatewayFailed, match=rf"closed \({reason}\)"):
            await session.call_until_error("feed", b"\0\0")
        return await session.read()

    handler = end_after_events(final("hello"), event("closed", reason=reason), code=1000)
    assert run(serve_live(handler), send) == ["hello", reason]


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 4000])
def test_live_close_frame_without_closed_raises_error_with_code(serve_live: Serve, run: Run, code: int) -> None:
    async def read(session: Session) -> Any:
        first = await session.read()
        again = await session.read()
        with pytest.raises(errors.GatewayFailed, match=f"interrupted.* {code}"):
            await session.call("finish")
        return first, again

    first, again = run(serve_live(end_after_events(PARTIAL, code=code)), read)
    assert first[0] == "hel"
    for seen in (first[1:], again):
        assert isinstance(seen[0], errors.GatewayFailed)
        assert "interrupted" in str(seen[0])
        assert f"code {code}" in str(seen[0])


def test_live_error_event_does_not_end_the_session(serve_live: Serve, run: Run) -> None:
    async def read(session: Session) -> Any:
        return await session.read(), await session.read()

    first, second = run(serve_live(end_after_events(ASR_ERROR, final("hello"), CLOSED, code=1000)), read)
    assert [type(each) for each in first] == [errors.SpeechFailed]
    assert second == ["hello", "client_close"]


# a server that does not read


def hang(connection: ServerConnection) -> None:
    connection.recv()
    connection.send(READY)
    with connection.recv_flow_control:  # the thread of the library stops reading
        connection.hang_until.wait(WAIT_SECONDS * 2)  # type: ignore[attr-defined]


@pytest.fixture
def hanging_url(serve_live: Serve) -> Iterator[str]:
    released = threading.Event()

    def handle(connection: ServerConnection) -> None:
        connection.hang_until = released  # type: ignore[attr-defined]
        hang(connection)

    yield serve_live(handle)
    released.set()


def test_live_feed_to_hanging_server_times_out(hanging_url: str, run: Run) -> None:
    async def feed(session: Session) -> None:
        with pytest.raises(errors.GatewayFailed, match="timed out"):
            await session.call_until_error("feed", bytes(1 << 20))
        with pytest.raises(errors.GatewayFailed, match="timed out"):
            await session.call("feed", b"\0\0")
        await session.call("close")

    run(hanging_url, feed, timeout=0.5)


def test_live_close_of_hanging_server_ends_while_another_feeds(
    hanging_url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LIVE_CLOSE_TIMEOUT_SECONDS", 0.5)

    async def close(session: Session) -> Any:
        async def feed() -> Any:
            try:
                await session.call_until_error("feed", bytes(1 << 20))
            except errors.GatewayFailed as error:
                return error

        join_reader = await session.start(session.read)
        join = await session.start(feed)
        closing = await session.start(lambda: session.call("close"))
        await closing()
        return await join(), await join_reader()

    fed, read = run(hanging_url, close, timeout=60)
    assert isinstance(fed, errors.GatewayFailed)
    assert isinstance(read[0], errors.GatewayFailed)
    assert "interrupted" in str(read[0])


def test_live_client_with_infinite_timeout_feeds_and_finishes(serve_live: Serve, run: Run) -> None:
    async def finish(session: Session) -> Any:
        audio: Any
        for audio in (b"\0\0", bytearray(2), array("h", [0]), memoryview(b"\0\0")):
            await session.call("feed", audio)
        for audio, message in ((array("f", [0]), "astype"), (array("i", [0]), "'i'"), ("text", "not bytes, but str")):
            with pytest.raises(errors.InvalidRequest, match=message):
                await session.call("feed", audio)
        return (await session.call("finish")).text

    assert run(serve_live(serve_texts), finish, timeout=math.inf) == "final 1"


# a gateway that cannot be reached


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 13\r\n\r\n<p>nothing</p>",
        b'HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}',
        b"220 mail.example\r\n\r\n",
    ],
)
def test_live_other_server_names_the_address(run: Run, response: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(response)

        threading.Thread(target=respond, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with pytest.raises(errors.SvcError, match=f"no svc gateway with live speech at {url}.* path") as caught:
            run(url, do_nothing)
    assert isinstance(caught.value, errors.NotFound) == (b"404" in response)


@pytest.mark.parametrize("proxy", ["socks5://user:pass-word@127.0.0.1:1", "socks5h://127.0.0.1:1"])
def test_client_socks_proxy_without_package_names_it(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as if it were not installed
    monkeypatch.setenv("ALL_PROXY", proxy)
    for client in (svc.Client, svc.AsyncClient):
        with pytest.raises(errors.UsageError, match="socksio") as caught:
            client(gateway_url="http://gateway.example", api_key="key-1")
        assert "pass-word" not in str(caught.value)


def test_live_unreachable_proxy_is_named_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("HTTP_PROXY", f"http://user:pass-word@127.0.0.1:{port}")
    options: dict[str, Any] = {"gateway_url": "http://gateway.example", "api_key": "key-1"}
    reason = f"the proxy at 127.0.0.1:{port} cannot be reached: Connection refused"

    async def main() -> None:
        async with svc.AsyncClient(**options) as client:
            await client.live()

    with svc.Client(**options) as client, pytest.raises(errors.GatewayFailed, match=reason):
        client.live()
    with pytest.raises(errors.GatewayFailed, match=reason) as caught:
        asyncio.run(main())
    assert "pass-word" not in str(caught.value)


def test_live_socks_proxy_without_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://user:pass-word@127.0.0.1:1")
    options: dict[str, Any] = {"gateway_url": "http://gateway.example", "api_key": "key-1"}
    with httpx2.Client(trust_env=False) as http_client, svc.Client(http_client=http_client, **options) as client:
        with pytest.raises(errors.UsageError, match="python-socks") as caught:
            client.live()
        assert "pass-word" not in str(caught.value)

    async def main() -> None:
        async with httpx2.AsyncClient(trust_env=False) as http_client:
            client = svc.AsyncClient(http_client=http_client, **options)
            with pytest.raises(errors.UsageError, match="python-socks"):
                await client.live()

    asyncio.run(main())
