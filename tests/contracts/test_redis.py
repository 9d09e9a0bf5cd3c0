"""The connection to Redis, on a real server that dies, hangs, refuses and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from svc.errors import UsageError
from svc.stores.base import StoreDown
from svc.stores.redis import Redis, Script, address_of
from svc.stores.resp import ReplyError
from tests.fakes.ports import silent_port
from tests.fakes.redis_server import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    one = Redis(server.url)
    await one.start()
    yield one
    await one.close()


async def until(wanted: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_questions_at_the_same_time_get_their_own_answers(redis: Redis) -> None:
    assert not redis.down
    big = b"x" * 5_000_000
    assert await redis.ask("SET", "big", big) == b"OK"
    found = await asyncio.gather(redis.ask("GET", "big"), *(redis.ask("ECHO", f"e{number}") for number in range(500)))
    assert found[0] == big
    assert found[1:] == [f"e{number}".encode() for number in range(500)]
    assert await redis.ask("GET", "nothing") is None


async def test_a_script_is_sent_once_and_again_when_it_is_forgotten(redis: Redis) -> None:
    script = Script("return {KEYS[1], ARGV[1], 7}")
    for _ in range(2):
        assert await redis.ask_script(script, ["k"], ["a"]) == [b"k", b"a", 7]
    await redis.ask("SCRIPT", "FLUSH")
    assert await redis.ask_script(script, ["k"], ["b"]) == [b"k", b"b", 7]


async def test_a_refused_command_harms_no_other(redis: Redis) -> None:
    with pytest.raises(ReplyError) as error:
        await redis.ask("INCR", "svc:probe", "too many")
    assert error.value.kind == "ERR"
    assert await redis.ask("PING") == b"PONG"


async def test_it_dies_and_comes_back(redis: Redis, server: RedisServer) -> None:
    connected: list[float] = []
    redis.on_connect(lambda: connected.append(time.monotonic()))
    server.kill()
    await until(lambda: redis.down)
    began = time.monotonic()
    with pytest.raises(StoreDown):
        await redis.ask("PING")
    assert time.monotonic() - began < 0.05
    server.start()
    await until(lambda: not redis.down)
    assert await redis.ask("PING") == b"PONG"
    assert len(connected) == 1


async def test_it_hangs(redis: Redis, server: RedisServer) -> None:
    server.freeze()
    try:
        began = time.monotonic()
        found = await asyncio.gather(*(redis.ask("PING") for _ in range(100)), return_exceptions=True)
        assert {type(one) for one in found} == {StoreDown}
        assert 1.9 < time.monotonic() - began < 4
        assert redis.down
    finally:
        server.thaw()
    await until(lambda: not redis.down)


async def test_one_that_takes_no_writes_is_down(redis: Redis, server: RedisServer) -> None:
    server.tell("CONFIG SET maxmemory 1")
    with pytest.raises(StoreDown):
        await redis.ask("SET", "a", "b")
    await until(lambda: redis.down)
    await asyncio.sleep(0.7)
    assert redis.down
    server.tell("CONFIG SET maxmemory 0")
    await until(lambda: not redis.down)


async def test_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer("--requirepass", "s3cret") as server:
        for password, down in (("s3cret", False), ("wr0ng", True)):
            one = Redis(f"redis://:{password}@127.0.0.1:{server.port}/3")
            await one.start()
            assert one.down is down
            await one.close()
    assert "WRONGPASS" in caplog.text
    assert "wr0ng" not in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    with RedisServer("--unixsocket", str(tmp_path / "redis")):
        one = Redis(f"unix://{tmp_path / 'redis'}")
        await one.start()
        assert await one.ask("PING") == b"PONG"
        await one.close()


async def test_nobody_is_there_at_the_start() -> None:
    with silent_port() as port:
        one = Redis(f"redis://127.0.0.1:{port}")
        began = time.monotonic()
        await one.start()
        assert one.down
        assert time.monotonic() - began < 4
        await one.close()


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://a", "redis://", "redis://a:b", "redis://a/x", "redis://a/-1", "unix://", "redis://a?b=c"],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError) as error:
        address_of(url)
    assert "SVC_REDIS_URL" in error.value.message


def test_an_address() -> None:
    found = address_of("rediss://us%40er:p%2Fw@[::1]:7000/5")
    assert (found.host, found.port, found.tls, found.user, found.password, found.database) == (
        "::1",
        7000,
        True,
        "us@er",
        "p/w",
        5,
    )
    assert "p/w" not in found.shown
