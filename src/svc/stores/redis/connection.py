"""The connection of a process to one Redis server, which pipelines commands and reconnects after a failure.

    down ── connected, and a probe was written ──> up ── lost, reply timeout, or server error ──> down
     └──── every RECONNECT_INTERVAL_SECONDS ────┘   up <── late or timely reply ──> slow

Commands are written immediately, and replies arrive in the same order. While the connection is down, every command
fails immediately. While it is slow, commands are sent and nobody waits for them: `on_slow` is called at once. No
command is retried, since its outcome is unknown. Use a separate connection for large values.

redis-py makes the TLS context and finds the primary of Sentinel.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from redis.asyncio.connection import SSLConnection

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.address import RedisAddress
from svc.stores.redis.base import CommandArgument, OnReply, OnSlow, RedisClient, RedisReplyError
from svc.stores.redis.protocol import SLOW_REPLY_SECONDS, WRONG_SCHEME_MESSAGE, RedisProtocol
from svc.tls_context import disable_strict_checks

log = logging.getLogger("svc.stores")

REDIS_CONNECT_TIMEOUT_SECONDS = 2.0
RECONNECT_INTERVAL_SECONDS = 0.5
PASSWORD_CHECK_SECONDS = 10.0
"""The interval at which the password file is read again."""
PRIMARY_CHECK_SECONDS = 2.0
"""The interval at which Sentinel is asked for the primary. The old one accepts writes for about ten seconds more."""
SLOW_LOG_SECONDS = 10.0
"""The minimum time between log lines about slow replies."""
MAX_PASSWORD_FILE_BYTES = 65_536
PROBE_KEY = "svc:probe"
PROBE_SCRIPT = "redis.call('TIME') redis.call('SET', KEYS[1], '1', 'EX', 60) return cmsgpack.pack({1})"
"""The script of the counters also calls TIME before it writes, and replies in MessagePack."""
PROBE_REPLY = b"\x91\x01"

FindServer = Callable[[], Awaitable[tuple[str, int]]]
"""Returns host and port of the server. Raises StoreUnavailable or OSError."""


class RedisConnection(RedisClient):
    """A connection that reconnects by itself. It belongs to one event loop, from `start` to `close`."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        find_server: FindServer | None = None,
        find_probe_key: Callable[[], str] | None = None,
    ) -> None:
        """Connect to the first host of `address`, or to the result of `find_server`.

        `find_probe_key` means that the server belongs to a cluster. It returns a key that the server has.
        """
        self._address = address
        self._find_server = find_server
        self._find_probe_key = find_probe_key
        self._protocol: RedisProtocol | None = None
        self._server: tuple[str, int] | None = None
        """The server of the connection, if it is a TCP connection."""
        self._task: asyncio.Task[None] | None = None
        self._connect_callbacks: list[Callable[[], None]] = []
        self._reported_reason = ""
        self._slow_logged_at = -SLOW_LOG_SECONDS
        self._password: str | None = None

    @property
    def is_down(self) -> bool:
        return self._protocol is None

    @property
    def is_slow(self) -> bool:
        return self._protocol is not None and self._protocol.is_slow

    @property
    def has_key_slots(self) -> bool:
        return False  # ClusterClient uses it for one server, and has the slots

    def add_connect_callback(self, callback: Callable[[], None]) -> None:
        self._connect_callbacks.append(callback)

    async def start(self) -> None:
        first_attempt_done = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(first_attempt_done), name="redis")
        await first_attempt_done.wait()

    async def check_connection(self) -> None:
        protocol = self._create_protocol()
        try:
            async with asyncio.timeout(REDIS_CONNECT_TIMEOUT_SECONDS):
                await self._open_protocol(protocol)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(_error_reason(error)) from error
        finally:
            protocol.abort("Redis is not connected.")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def send(self, on_reply: OnReply, arguments: tuple[CommandArgument, ...], on_slow: OnSlow | None = None) -> None:
        if self._protocol is None:
            on_reply(StoreUnavailable("Redis is not connected."))
        else:
            self._protocol.send(on_reply, arguments, on_slow)

    def flush(self) -> None:
        if self._protocol is not None:
            self._protocol.flush()

    # the connection

    async def _keep_connected(self, first_attempt_done: asyncio.Event) -> None:
        while True:
            protocol = self._create_protocol()
            try:
                async with asyncio.timeout(REDIS_CONNECT_TIMEOUT_SECONDS):
                    await self._open_protocol(protocol)
                self._mark_connected(protocol)
                first_attempt_done.set()
                await self._wait_until_closed(protocol)
                raise StoreUnavailable(protocol.close_reason)
            # ValueError: the host name cannot be encoded for DNS.
            except (OSError, StoreUnavailable, ValueError) as error:
                self._mark_disconnected(error)
            finally:
                self._protocol = None
                protocol.abort("Redis is not connected.")
                first_attempt_done.set()
            await asyncio.sleep(RECONNECT_INTERVAL_SECONDS)

    def _create_protocol(self) -> RedisProtocol:
        return RedisProtocol(is_cluster_node=self._find_probe_key is not None, on_slow=self._report_slow)

    async def _open_protocol(self, protocol: RedisProtocol) -> None:
        address, loop = self._address, asyncio.get_running_loop()
        if address.path is not None:
            await loop.create_unix_connection(lambda: protocol, address.path)  # type: ignore[type-var]
        else:
            host, port = self._server = address.hosts[0] if self._find_server is None else await self._find_server()
            tls = await asyncio.to_thread(create_tls_context, address) if address.uses_tls else None
            await loop.create_connection(lambda: protocol, host, port, ssl=tls)  # type: ignore[type-var]
        self._password = await read_password(address)
        if self._password is not None:
            await protocol.execute(*_auth_command(address.user, self._password))
        if address.database:
            await protocol.execute("SELECT", address.database)
        await self._send_probe(protocol)

    async def _send_probe(self, protocol: RedisProtocol) -> None:
        """Run a script that writes a key. A server that cannot do this, such as a replica, counts as down."""
        key = PROBE_KEY if self._find_probe_key is None else self._find_probe_key()
        try:
            reply = await protocol.execute("EVAL", PROBE_SCRIPT, "1", key)
        except RedisReplyError as error:
            if error.kind not in ("MOVED", "ASK"):
                raise
            if self._find_probe_key is None:
                raise StoreUnavailable(WRONG_SCHEME_MESSAGE) from None
        else:
            if reply != PROBE_REPLY:
                raise StoreUnavailable("The reply to a script is not that of Redis.")

    async def _wait_until_closed(self, protocol: RedisProtocol) -> None:
        """Wait until the connection is closed. Close it after a failover, and use a changed password."""
        has_sentinel, has_password_file = self._find_server is not None, self._address.password_file is not None
        interval = PRIMARY_CHECK_SECONDS if has_sentinel else PASSWORD_CHECK_SECONDS
        while (has_sentinel or has_password_file) and not protocol.closed.is_set():
            try:
                await asyncio.wait_for(protocol.closed.wait(), interval)
            except TimeoutError:
                await self._check_primary(protocol)
                if not protocol.closed.is_set():
                    await self._authenticate_again(protocol)
        await protocol.closed.wait()

    async def _check_primary(self, protocol: RedisProtocol) -> None:
        """Close the connection if Sentinel names another primary. It stays if no Sentinel responds."""
        if self._find_server is None:
            return
        try:
            server = await self._find_server()
        except (OSError, StoreUnavailable, ValueError):
            return
        if server != self._server:
            protocol.abort("Sentinel names another primary.")

    async def _authenticate_again(self, protocol: RedisProtocol) -> None:
        """Use a new password. Without a valid one the connection stays: Redis keeps it authenticated."""
        try:
            password = await read_password(self._address)
            if password and password != self._password:
                await protocol.execute(*_auth_command(self._address.user, password))
                self._password = password
        except StoreUnavailable as error:
            log.warning("Redis at %s stays connected with the old password: %s", self._address.display_name, error)

    def _mark_connected(self, protocol: RedisProtocol) -> None:
        self._protocol = protocol
        if self._reported_reason:
            log.warning("Redis at %s responds again", self._address.display_name)
            self._reported_reason = ""
        if protocol.is_slow:
            self._report_slow()
        for callback in self._connect_callbacks:
            callback()

    def _report_slow(self) -> None:
        """Log that replies are slow, unless the server does not respond at all, which has its own line."""
        now = asyncio.get_running_loop().time()
        if self._protocol is not None and now - self._slow_logged_at >= SLOW_LOG_SECONDS:
            self._slow_logged_at = now
            limit_ms = SLOW_REPLY_SECONDS * 1000
            log.warning(
                "Redis at %s takes longer than %g ms: requests do not wait for it", self._address.display_name, limit_ms
            )

    def _mark_disconnected(self, error: Exception) -> None:
        reason = _error_reason(error)
        if reason != self._reported_reason:
            log.error("Redis at %s does not respond: %s", self._address.display_name, reason)
        self._reported_reason = reason


def _error_reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no response within {REDIS_CONNECT_TIMEOUT_SECONDS:g} s"
    return str(error) or type(error).__name__


def _auth_command(user: str | None, password: str) -> Sequence[CommandArgument]:
    return ("AUTH", user, password) if user else ("AUTH", password)


def create_tls_context(address: RedisAddress) -> ssl.SSLContext:
    """Return the TLS context that redis-py makes for an address. Blocks. Raises StoreUnavailable."""
    try:
        context = disable_strict_checks(SSLConnection(host="", **address.tls_options).ssl_context.get())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise StoreUnavailable(f"The TLS options of SVC_REDIS_URL do not work: {error}") from error
    return context


async def read_password(address: RedisAddress) -> str | None:
    """Return the password of an address, from its file if there is one. Raises StoreUnavailable."""
    if address.password_file is None:
        return address.password
    try:
        content = await asyncio.to_thread(Path(address.password_file).read_bytes)
    except OSError as error:
        raise StoreUnavailable(f"The password file {address.password_file} cannot be read: {error.strerror}") from error
    return content[:MAX_PASSWORD_FILE_BYTES].decode("utf-8", "replace").strip()
