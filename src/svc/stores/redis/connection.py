"""The connection of a process to Redis, which pipelines commands and reconnects after a failure.

    down ── connected, and a probe was written ──> up ── lost, reply timeout, or server error ──> down
     └──── every RECONNECT_INTERVAL_SECONDS ────┘

Commands are written immediately, and replies arrive in the same order. While the connection is down, every command
fails immediately. No command is retried, since its outcome is unknown. Use a separate connection for large values.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote, urlsplit

from svc.errors import UsageError
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.protocol import (
    CommandArgument,
    RedisReply,
    RedisReplyError,
    RespParser,
    RespProtocolError,
    encode_command,
)

log = logging.getLogger("svc.stores")

REDIS_CONNECT_TIMEOUT_SECONDS = 2.0
REPLY_TIMEOUT_SECONDS = 2.0
"""Timeout of a reply, after which the connection is closed. It bounds the wait of a request for Redis."""
LATE_REPLY_GRACE_SECONDS = 0.05
"""Time to read a reply that arrived while this process was not scheduled, before it counts as late."""
RECONNECT_INTERVAL_SECONDS = 0.5
MAX_PENDING_COMMANDS = 20_000
SERVER_ERROR_KINDS = (
    "OOM",
    "READONLY",
    "MISCONF",
    "LOADING",
    "NOAUTH",
    "NOPERM",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "BUSY",
    "NOREPLICAS",
)
"""Errors that concern the server, not the command."""
PROBE_COMMAND = ("SET", "svc:probe", "1", "EX", "60")

OnReply = Callable[[RedisReply | StoreUnavailable], None]


@dataclass(frozen=True)
class RedisAddress:
    """The address of Redis, and the credentials."""

    host: str
    port: int
    path: str | None
    uses_tls: bool
    user: str | None
    password: str | None
    database: int

    @property
    def display_name(self) -> str:
        """The address without credentials, for the log."""
        return self.path or f"{self.host}:{self.port}"


class LuaScript:
    """A Lua script. Redis caches a script after its first run and identifies it by its SHA-1."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class RedisConnection:
    """A connection that reconnects by itself. It belongs to one event loop, from `start` to `close`."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for an invalid URL."""
        self._address = parse_redis_url(url)
        self._protocol: _RedisProtocol | None = None
        self._task: asyncio.Task[None] | None = None
        self._connect_callbacks: list[Callable[[], None]] = []
        self._reported_reason = ""

    @property
    def is_down(self) -> bool:
        """True while commands fail immediately."""
        return self._protocol is None

    def add_connect_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each connect. Redis may have lost data, or have old data."""
        self._connect_callbacks.append(callback)

    async def start(self) -> None:
        """Connect, and return after the first attempt, successful or not."""
        first_attempt_done = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(first_attempt_done), name="redis")
        await first_attempt_done.wait()

    async def check_connection(self) -> None:
        """Connect, authenticate and write the probe once, without `start`. Raises StoreUnavailable with the cause."""
        protocol = _RedisProtocol()
        try:
            async with asyncio.timeout(REDIS_CONNECT_TIMEOUT_SECONDS):
                await self._open_protocol(protocol)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(_error_reason(error)) from error
        finally:
            protocol.abort("Redis is not connected.")

    async def close(self) -> None:
        """Close the connection. Pending commands fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def send(self, on_reply: OnReply, *arguments: CommandArgument) -> None:
        """Send a command. `on_reply` gets the reply or a StoreUnavailable, possibly before `send` returns.

        If Redis rejects the command, the reply is a RedisReplyError.
        """
        if self._protocol is None:
            on_reply(StoreUnavailable("Redis is not connected."))
        else:
            self._protocol.send(on_reply, arguments)

    def run_script(
        self,
        on_reply: OnReply,
        script: LuaScript,
        keys: Sequence[CommandArgument],
        arguments: Sequence[CommandArgument],
    ) -> None:
        """Run a script, with `on_reply` as in `send`. It takes a second command if Redis has not cached the script."""
        script_arguments = (len(keys), *keys, *arguments)

        def retry_if_not_cached(reply: RedisReply | StoreUnavailable) -> None:
            if isinstance(reply, RedisReplyError) and reply.kind == "NOSCRIPT":
                self.send(on_reply, "EVAL", script.source, *script_arguments)
            else:
                on_reply(reply)

        self.send(retry_if_not_cached, "EVALSHA", script.sha1, *script_arguments)

    async def execute(self, *arguments: CommandArgument) -> RedisReply:
        """Send a command and return the reply. Raises StoreUnavailable."""
        future: asyncio.Future[RedisReply] = asyncio.get_running_loop().create_future()
        self.send(lambda reply: _complete_future(future, reply), *arguments)
        return await future

    async def execute_script(
        self, script: LuaScript, keys: Sequence[CommandArgument], arguments: Sequence[CommandArgument]
    ) -> RedisReply:
        """Run a script and return its result. Raises StoreUnavailable."""
        future: asyncio.Future[RedisReply] = asyncio.get_running_loop().create_future()
        self.run_script(lambda reply: _complete_future(future, reply), script, keys, arguments)
        return await future

    # the connection

    async def _keep_connected(self, first_attempt_done: asyncio.Event) -> None:
        while True:
            protocol = _RedisProtocol()
            try:
                async with asyncio.timeout(REDIS_CONNECT_TIMEOUT_SECONDS):
                    await self._open_protocol(protocol)
                self._mark_connected(protocol)
                first_attempt_done.set()
                await protocol.closed.wait()
                raise StoreUnavailable(protocol.close_reason)
            # ValueError: the host name cannot be encoded for DNS.
            except (OSError, StoreUnavailable, ValueError) as error:
                self._mark_disconnected(error)
            finally:
                self._protocol = None
                protocol.abort("Redis is not connected.")
                first_attempt_done.set()
            await asyncio.sleep(RECONNECT_INTERVAL_SECONDS)

    async def _open_protocol(self, protocol: _RedisProtocol) -> None:
        address, loop = self._address, asyncio.get_running_loop()
        if address.path is not None:
            await loop.create_unix_connection(lambda: protocol, address.path)
        else:
            tls = await asyncio.to_thread(ssl.create_default_context) if address.uses_tls else None
            await loop.create_connection(lambda: protocol, address.host, address.port, ssl=tls)
        setup_commands: list[tuple[CommandArgument, ...]] = []
        if address.password is not None:
            setup_commands.append(
                ("AUTH", address.user, address.password) if address.user else ("AUTH", address.password)
            )
        if address.database:
            setup_commands.append(("SELECT", address.database))
        for command in (*setup_commands, PROBE_COMMAND):
            future: asyncio.Future[RedisReply] = loop.create_future()
            protocol.send(lambda reply, future=future: _complete_future(future, reply), command)  # type: ignore[misc]
            await future

    def _mark_connected(self, protocol: _RedisProtocol) -> None:
        self._protocol = protocol
        if self._reported_reason:
            log.warning("Redis at %s responds again", self._address.display_name)
            self._reported_reason = ""
        for callback in self._connect_callbacks:
            callback()

    def _mark_disconnected(self, error: Exception) -> None:
        reason = _error_reason(error)
        if reason != self._reported_reason:
            log.error("Redis at %s does not respond: %s", self._address.display_name, reason)
        self._reported_reason = reason


class _RedisProtocol(asyncio.Protocol):
    """One TCP or Unix connection to Redis."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.close_reason = "The connection is lost."
        self._transport: asyncio.Transport | None = None
        self._parser = RespParser()
        self._pending: deque[tuple[float, OnReply]] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._late_callback: OnReply | None = None
        """The oldest pending callback, which is in its grace period."""

    def send(self, on_reply: OnReply, arguments: Sequence[CommandArgument]) -> None:
        if self._transport is None or len(self._pending) >= MAX_PENDING_COMMANDS:
            on_reply(StoreUnavailable("Redis is not connected, or too many commands are pending."))
            return
        now = self._loop.time()
        self._pending.append((now + REPLY_TIMEOUT_SECONDS, on_reply))
        if self._timer is None:
            self._timer = self._loop.call_at(now + REPLY_TIMEOUT_SECONDS, self._check_timeout)
        self._transport.write(encode_command(arguments))

    def abort(self, reason: str) -> None:
        """Close the connection, and fail the pending commands with `reason`."""
        if not self.closed.is_set():
            self.close_reason = reason
            self.closed.set()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, deque()
        for _, on_reply in pending:
            on_reply(StoreUnavailable(self.close_reason))

    def _check_timeout(self) -> None:
        """Abort if the reply to the oldest command has timed out."""
        self._timer = None
        if not self._pending:
            return
        deadline, on_reply = self._pending[0]
        if deadline > self._loop.time():
            self._timer = self._loop.call_at(deadline, self._check_timeout)
        elif self._late_callback is not on_reply:
            self._late_callback = on_reply
            self._timer = self._loop.call_later(LATE_REPLY_GRACE_SECONDS, self._check_timeout)
        else:
            self.abort(f"It did not reply within {REPLY_TIMEOUT_SECONDS:g} s.")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._parser.feed(data)
        except RespProtocolError as error:
            self.abort(f"It sent an invalid reply: {error}.")
            return
        for reply in replies:
            if not self._pending:
                self.abort("It sent a reply without a command.")
                return
            _, on_reply = self._pending.popleft()
            on_reply(reply)
            if isinstance(reply, RedisReplyError) and reply.kind in SERVER_ERROR_KINDS:
                self.abort(reply.message)
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(f"The connection is lost: {exc}." if exc else "Redis closed the connection.")


def _error_reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no response within {REDIS_CONNECT_TIMEOUT_SECONDS:g} s"
    return str(error) or type(error).__name__


def _complete_future(future: asyncio.Future[RedisReply], reply: RedisReply | StoreUnavailable) -> None:
    if future.done():  # the waiting task was cancelled
        return
    if isinstance(reply, StoreUnavailable):
        future.set_exception(reply)
    else:
        future.set_result(reply)


def parse_redis_url(url: str) -> RedisAddress:
    """Parse `redis://[user:password@]host[:port][/database]`, `rediss://…` (TLS) or `unix:///path`.

    Raises UsageError.
    """
    invalid_url = UsageError("SVC_REDIS_URL is not valid: use redis://user:password@host:6379/0, or rediss:// for TLS.")
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
        database = 0 if parts.scheme == "unix" else int(parts.path.strip("/") or 0)
    except ValueError:
        raise invalid_url from None
    if parts.scheme not in ("redis", "rediss", "unix") or parts.query or not 0 <= database < 2**31:
        raise invalid_url
    if not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise invalid_url
    return RedisAddress(
        host=parts.hostname or "",
        port=port,
        path=unquote(parts.path) if parts.scheme == "unix" else None,
        uses_tls=parts.scheme == "rediss",
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        database=database,
    )


@contextlib.asynccontextmanager
async def connect_redis(environ: Mapping[str, str]) -> AsyncIterator[RedisConnection | None]:
    """Yield a started connection to `SVC_REDIS_URL`, or None if it is unset. Raises UsageError."""
    url = environ.get("SVC_REDIS_URL")
    if not url:
        yield None
        return
    redis = RedisConnection(url)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.close()
