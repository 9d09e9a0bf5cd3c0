"""Access to a real Redis: TLS with client certificates, ACL users, and passwords that change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis import connection
from svc.stores.redis.factory import open_redis
from tests.fakes.certificate import certificate
from tests.fakes.redis_server import RedisServer

ACL_RIGHTS = "~svc:* +@read +@write +@scripting +@connection +time +cluster|slots"
"""The rights in docs/how-to/use-postgresql-and-redis.md."""


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_redis_connection_tls_checks_server_and_sends_client_certificate(tmp_path: Path) -> None:
    file = certificate(tmp_path, "localhost")
    stranger = certificate(tmp_path, "stranger")
    with RedisServer(tls_file=file) as server:
        url = f"rediss://localhost:{server.port}/0?ssl_ca_certs={file}"
        redis = open_redis(f"{url}&ssl_certfile={file}&ssl_keyfile={file}")
        await redis.start()
        assert await redis.execute("PING") == b"PONG"
        await redis.close()
        for options, reason in (
            ("", "CERTIFICATE|certificate|closed|reset"),  # the server requires a client certificate
            (f"&ssl_certfile={stranger}", "CERTIFICATE|certificate|closed|UNKNOWN_CA|lost"),
            ("&ssl_certfile=/missing.pem", "The TLS options of SVC_REDIS_URL do not work"),
        ):
            with pytest.raises(StoreUnavailable, match=reason):
                await open_redis(url + options).check_connection()
        with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await open_redis(f"rediss://localhost:{server.port}").check_connection()
        with pytest.raises(StoreUnavailable, match="mismatch"):
            await open_redis(
                f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={file}&ssl_certfile={file}&ssl_keyfile={file}"
            ).check_connection()


async def test_redis_connection_acl_user_with_documented_rights_can_count() -> None:
    with RedisServer() as server:
        server.tell(f"ACL SETUSER gateway on >s3cret {ACL_RIGHTS}")
        redis = open_redis(f"redis://gateway:s3cret@127.0.0.1:{server.port}")
        await redis.start()
        counters = RedisCounters(redis)
        counters.start()
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        counters.reserve(KeyLimits(key_id="k", requests=3), 0, 0, None, outcome.set_result)
        assert getattr(await outcome, "requests_left", outcome) == 2
        await counters.close()
        with pytest.raises(StoreUnavailable, match="NOPERM"):
            await redis.execute("SET", "other", "1")
        await redis.close()


@pytest.mark.parametrize("missing", ["+@scripting", "+time", "+@write"])
async def test_redis_connection_acl_user_who_cannot_count_is_error(missing: str) -> None:
    with RedisServer() as server:
        server.tell(f"ACL SETUSER gateway on >s3cret {ACL_RIGHTS.replace(f' {missing}', '')}")
        redis = open_redis(f"redis://gateway:s3cret@127.0.0.1:{server.port}")
        with pytest.raises(StoreUnavailable, match=r"NOPERM|The user executing the script can't run this command"):
            await redis.check_connection()
        await redis.start()
        assert redis.is_down
        await redis.close()


async def test_redis_connection_password_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PASSWORD_CHECK_SECONDS", 0.05)
    file = tmp_path / "token"
    file.write_text("first-token\n")
    with RedisServer() as server:
        server.tell(f"ACL SETUSER gateway on >first-token {ACL_RIGHTS} +info")
        redis = open_redis(f"redis://gateway@127.0.0.1:{server.port}?password_file={file}")
        await redis.start()
        assert await redis.execute("PING") == b"PONG"
        server.tell("ACL SETUSER gateway >second-token <first-token")
        file.write_text("second-token")
        await until(lambda: b"cmdstat_auth:calls=2" in server.tell("INFO commandstats"))
        assert not redis.is_down
        file.unlink()  # as while a helper replaces it
        await asyncio.sleep(0.2)
        assert not redis.is_down
        file.write_text("second-token")
        server.tell("CLIENT KILL TYPE normal")
        await until(lambda: redis.is_down)
        await until(lambda: not redis.is_down)
        await redis.close()
        file.unlink()
        with pytest.raises(StoreUnavailable, match=r"token cannot be read: No such file"):
            await open_redis(f"redis://127.0.0.1:{server.port}?password_file={file}").check_connection()


async def test_redis_connection_sentinels_are_down_logs_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    redis = open_redis("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster")
    await redis.start()
    await asyncio.sleep(1.2)  # at least two more attempts
    await redis.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Redis at mymaster of 127.0.0.1:1,127.0.0.1:2 does not respond: "
        "No Sentinel responds and knows the primary 'mymaster'."
    ]
