"""The Redis connection with a real server that crashes, hangs, rejects commands and restarts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import (
    LuaScript,
    OutcomeUnknown,
    RedisClient,
    RedisReply,
    RedisReplyError,
    complete_future,
)
from svc.stores.redis.connection import RECONNECT_INTERVAL_SECONDS, REDIS_CONNECT_TIMEOUT_SECONDS
from svc.stores.redis.factory import open_redis
from svc.stores.redis.protocol import RedisProtocol
from tests.fakes.ports import silent_port
from tests.fakes.redis_server import RedisServer
from tests.fakes.tcp_proxy import TcpProxy


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_redis_connection_concurrent_commands_get_own_replies(redis: RedisClient) -> None:
    assert not redis.is_down
    big = b"x" * 5_000_000
    assert await redis.execute("SET", "big", big) == b"OK"
    found = await asyncio.gather(
        redis.execute("GET", "big"), *(redis.execute("ECHO", f"e{number}") for number in range(500))
    )
    assert found[0] == big
    assert found[1:] == [f"e{number}".encode() for number in range(500)]
    assert await redis.execute("GET", "nothing") is None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_redis_protocol_flush_writes_before_it_returns(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """The slot of a request is free in Redis before the client has its response."""

    async def check(listener: socket.socket) -> None:
        protocol = RedisProtocol(is_cluster_node=False)
        await asyncio.get_running_loop().create_connection(lambda: protocol, *listener.getsockname())  # type: ignore[type-var]
        with listener.accept()[0] as peer:
            peer.settimeout(5)
            for _ in range(2):
                protocol.send(lambda _: None, ("PING",))
                protocol.flush()
                assert peer.recv(64) == b"*1\r\n$4\r\nPING\r\n"
        protocol.abort("The test has ended.")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        run(check(listener))


async def test_redis_connection_script_is_resent_after_script_flush(redis: RedisClient) -> None:
    script = LuaScript("return {KEYS[1], ARGV[1], 7}")

    async def run(argument: str) -> RedisReply:
        reply: asyncio.Future[RedisReply] = asyncio.get_running_loop().create_future()
        redis.run_script(partial(complete_future, reply), script, ["k"], [argument])
        return await reply

    for _ in range(2):
        assert await run("a") == [b"k", b"a", 7]
    await redis.execute("SCRIPT", "FLUSH")
    assert await run("b") == [b"k", b"b", 7]


async def test_redis_connection_error_reply_does_not_affect_later_commands(redis: RedisClient) -> None:
    with pytest.raises(RedisReplyError) as error:
        await redis.execute("INCR", "svc:probe", "too many")
    assert error.value.kind == "ERR"
    assert await redis.execute("PING") == b"PONG"


async def test_redis_connection_server_restart_reconnects(redis: RedisClient, server: RedisServer) -> None:
    connected: list[float] = []
    redis.add_connect_callback(lambda: connected.append(time.monotonic()))
    server.kill()
    await until(lambda: redis.is_down)
    started_at = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await redis.execute("PING")
    assert time.monotonic() - started_at < 0.4
    server.start()
    await until(lambda: not redis.is_down)
    assert await redis.execute("PING") == b"PONG"
    assert len(connected) == 1


async def test_redis_connection_frozen_server_times_out_and_recovers(
    redis: RedisClient, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.freeze()
    try:
        started_at = time.monotonic()
        found = await asyncio.gather(*(redis.execute("PING") for _ in range(100)), return_exceptions=True)
        assert {type(one) for one in found} == {OutcomeUnknown}
        assert 1.9 < time.monotonic() - started_at < 4
        assert redis.is_down
        await asyncio.sleep(RECONNECT_INTERVAL_SECONDS + REDIS_CONNECT_TIMEOUT_SECONDS)  # an attempt that fails
    finally:
        server.thaw()
    await until(lambda: not redis.is_down)
    slow, *down, up = [record.getMessage() for record in caplog.records]
    assert "longer than" in slow
    assert all("does not respond" in line for line in down)
    assert "responds again" in up


async def test_redis_connection_slow_server_is_logged_at_the_first_connect(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with TcpProxy(server.port) as proxy:
        proxy.delay_seconds = 0.2
        client = open_redis(f"redis://127.0.0.1:{proxy.port}")
        await client.start()
        await until(lambda: client.is_slow and not client.is_down)
        await client.execute("PING")
        assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["requests do not wait for it"]
        await client.close()


async def test_redis_connection_server_without_writes_is_down(redis: RedisClient, server: RedisServer) -> None:
    server.tell("CONFIG SET maxmemory 1")
    with pytest.raises(StoreUnavailable):
        await redis.execute("SET", "a", "b")
    await until(lambda: redis.is_down)
    await asyncio.sleep(0.7)
    assert redis.is_down
    server.tell("CONFIG SET maxmemory 0")
    await until(lambda: not redis.is_down)


async def test_redis_connection_wrong_password_is_down_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer("--requirepass", "s3cret") as server:
        for password, expected_down in (("s3cret", False), ("wr0ng", True)):
            one = open_redis(f"redis://:{password}@127.0.0.1:{server.port}/3")
            await one.start()
            assert one.is_down is expected_down
            await one.close()
    assert "WRONGPASS" in caplog.text
    assert "wr0ng" not in caplog.text
    assert "s3cret" not in caplog.text


async def test_redis_connection_unix_socket_works(tmp_path: Path) -> None:
    with RedisServer("--unixsocket", str(tmp_path / "redis")):
        one = open_redis(f"unix://{tmp_path / 'redis'}")
        await one.start()
        assert await one.execute("PING") == b"PONG"
        await one.close()


@pytest.mark.parametrize("reply", [b"+OK\r\n", b":1\r\n", b"*0\r\n"])
async def test_redis_connection_server_with_the_same_reply_to_all_commands_is_down(reply: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(reply)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as listener:
        redis = open_redis(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        with pytest.raises(StoreUnavailable, match="The reply to a script is not that of Redis"):
            await redis.check_connection()
        await redis.start()
        assert redis.is_down
        await redis.close()


async def test_redis_connection_silent_port_at_start_is_down() -> None:
    with silent_port() as port:
        one = open_redis(f"redis://127.0.0.1:{port}")
        started_at = time.monotonic()
        await one.start()
        assert one.is_down
        assert time.monotonic() - started_at < 4
        await one.close()
