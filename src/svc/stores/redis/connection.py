"""The connection of a process to one Redis server, which pipelines commands and reconnects after a failure.

    down ── connected, and a probe was written ──> up ── lost, reply timeout, or server error ──> down
     └──── every RECONNECT_INTERVAL_SECONDS ────┘   up <── late or timely reply ──> slow

Commands are written immediately, and replies arrive in the same order. While the connection is down, every command
fails immediately. While it is slow, commands are sent and nobody waits for them: `on_slow` is called at once. No
command is retried, since its outcome is unknown. Use a separate connection for large values.

hiredis encodes commands and parses replies (RESP2, https://redis.io/docs/latest/develop/reference/protocol-spec/).
redis-py makes the TLS context and finds the primary of Sentinel.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import hiredis
from redis.asyncio.connection import SSLConnection

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.address import RedisAddress
from svc.stores.redis.base import (
    CommandArgument,
    OnReply,
    OnSlow,
    OutcomeUnknown,
    RedisClient,
    RedisReply,
    RedisReplyError,
    complete_future,
)

log = logging.getLogger("svc.stores")

REDIS_CONNECT_TIMEOUT_SECONDS = 2.0
REPLY_TIMEOUT_SECONDS = 2.0
"""Timeout of a reply, after which the connection is closed."""
LATE_REPLY_GRACE_SECONDS = 0.05
"""Time to read a reply that arrived while this process was not scheduled, before it counts as missing."""
SLOW_REPLY_SECONDS = 0.04
"""The time that a request waits for a reply. A later reply makes the connection slow."""
SLOW_REPLY_GRACE_SECONDS = 0.002
"""Time to read a reply that has arrived, before it counts as late."""
MAX_LOOP_LAG_SECONDS = 0.01
"""With a larger delay of its own timer, this process was busy. Redis then gets another SLOW_REPLY_SECONDS."""
MAX_REPLY_WAIT_SECONDS = 0.2
"""The time that a request waits for a reply while this process is busy."""
SLOW_PROBE_SECONDS = 0.05
"""The interval of PING while the connection is slow and no command is pending."""
SLOW_LOG_SECONDS = 10.0
"""The minimum time between log lines about slow replies."""
RECONNECT_INTERVAL_SECONDS = 0.5
PASSWORD_CHECK_SECONDS = 10.0
"""The interval at which the password file is read again."""
MAX_PASSWORD_FILE_BYTES = 65_536
MAX_PENDING_COMMANDS = 20_000
SERVER_ERROR_KINDS = frozenset(
    (
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
)
"""Errors that concern the server, not the command."""
PROBE_KEY = "svc:probe"
WRONG_SCHEME_MESSAGE = "It belongs to a cluster: SVC_REDIS_URL must begin with redis+cluster:// or rediss+cluster://."

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
        self._protocol: _RedisProtocol | None = None
        self._task: asyncio.Task[None] | None = None
        self._connect_callbacks: list[Callable[[], None]] = []
        self._reported_reason = ""
        self._password: str | None = None

    @property
    def is_down(self) -> bool:
        return self._protocol is None

    @property
    def is_slow(self) -> bool:
        return self._protocol is not None and self._protocol.is_slow

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

    def send(self, on_reply: OnReply, *arguments: CommandArgument, on_slow: OnSlow | None = None) -> None:
        if self._protocol is None:
            on_reply(StoreUnavailable("Redis is not connected."))
        else:
            self._protocol.send(on_reply, arguments, on_slow)

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

    def _create_protocol(self) -> _RedisProtocol:
        return _RedisProtocol(self._address.display_name, is_cluster_node=self._find_probe_key is not None)

    async def _open_protocol(self, protocol: _RedisProtocol) -> None:
        address, loop = self._address, asyncio.get_running_loop()
        if address.path is not None:
            await loop.create_unix_connection(lambda: protocol, address.path)
        else:
            host, port = address.hosts[0] if self._find_server is None else await self._find_server()
            tls = await asyncio.to_thread(create_tls_context, address) if address.uses_tls else None
            await loop.create_connection(lambda: protocol, host, port, ssl=tls)
        self._password = await read_password(address)
        if self._password is not None:
            await protocol.execute(*_auth_command(address.user, self._password))
        if address.database:
            await protocol.execute("SELECT", address.database)
        await self._send_probe(protocol)

    async def _send_probe(self, protocol: _RedisProtocol) -> None:
        """Write a key. A replica, and a server that rejects writes, count as down."""
        key = PROBE_KEY if self._find_probe_key is None else self._find_probe_key()
        try:
            await protocol.execute("SET", key, "1", "EX", "60")
        except RedisReplyError as error:
            if error.kind != "MOVED":
                raise
            if self._find_probe_key is None:
                raise StoreUnavailable(WRONG_SCHEME_MESSAGE) from None

    async def _wait_until_closed(self, protocol: _RedisProtocol) -> None:
        """Wait until the connection is closed. Authenticate again when the password file changes."""
        while self._address.password_file is not None and not protocol.closed.is_set():
            try:
                await asyncio.wait_for(protocol.closed.wait(), PASSWORD_CHECK_SECONDS)
            except TimeoutError:
                password = await read_password(self._address)
                if password is not None and password != self._password:
                    await protocol.execute(*_auth_command(self._address.user, password))
                    self._password = password
        await protocol.closed.wait()

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


class _PendingCommand:
    """A command without a reply. `on_slow` is None once it was called."""

    __slots__ = ("on_reply", "on_slow", "sent_at")

    def __init__(self, sent_at: float, on_reply: OnReply, on_slow: OnSlow | None) -> None:
        self.sent_at = sent_at
        self.on_reply = on_reply
        self.on_slow = on_slow


class _RedisProtocol(asyncio.Protocol):
    """One TCP or Unix connection to Redis."""

    def __init__(self, server_name: str, *, is_cluster_node: bool) -> None:
        self._is_cluster_node = is_cluster_node
        self.closed = asyncio.Event()
        self.close_reason = "The connection is lost."
        self.is_slow = False
        self._server_name = server_name
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(replyError=RedisReplyError, notEnoughData=_INCOMPLETE)
        self._pending: deque[_PendingCommand] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_at = 0.0
        self._loop_lag = 0.0
        """The delay of the last timer in seconds: the time for which this process was busy."""
        self._is_grace_period = False
        self._slow_logged_at = -SLOW_LOG_SECONDS

    def send(self, on_reply: OnReply, arguments: tuple[CommandArgument, ...], on_slow: OnSlow | None = None) -> None:
        if self._transport is None or len(self._pending) >= MAX_PENDING_COMMANDS:
            on_reply(StoreUnavailable("Redis is not connected, or too many commands are pending."))
            return
        now = self._loop.time()
        self._pending.append(_PendingCommand(now, on_reply, None if self.is_slow else on_slow))
        if self._timer is None:
            self._set_timer(now + SLOW_REPLY_SECONDS)
        self._transport.write(hiredis.pack_command(arguments))  # type: ignore[arg-type]  # its stub names one item
        if self.is_slow and on_slow is not None:
            on_slow()

    async def execute(self, *arguments: CommandArgument) -> RedisReply:
        future: asyncio.Future[RedisReply] = self._loop.create_future()
        self.send(lambda reply: complete_future(future, reply), arguments)
        return await future

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
        pending = list(self._pending)
        self._pending.clear()
        for command in pending:
            command.on_reply(OutcomeUnknown(self.close_reason))

    # slow and missing replies

    def _set_timer(self, due_at: float) -> None:
        self._timer_due_at = due_at
        self._timer = self._loop.call_at(due_at, self._check_pending)

    def _check_pending(self) -> None:
        """Check the age of the oldest command without a reply."""
        self._timer = None
        now = self._loop.time()
        self._loop_lag = now - self._timer_due_at
        if not self._pending:
            self._is_grace_period = False
            if self.is_slow:
                self.send(_ignore_reply, ("PING",))
            return
        sent_at = self._pending[0].sent_at
        age = now - sent_at
        if age < SLOW_REPLY_SECONDS:
            self._is_grace_period = False
            self._set_timer(sent_at + SLOW_REPLY_SECONDS)
        elif not self.is_slow:
            self._check_slow(now, age)
        elif age < REPLY_TIMEOUT_SECONDS:
            self._is_grace_period = False
            self._set_timer(min(now + SLOW_PROBE_SECONDS, sent_at + REPLY_TIMEOUT_SECONDS))
        elif not self._is_grace_period:
            self._is_grace_period = True
            self._set_timer(now + LATE_REPLY_GRACE_SECONDS)
        else:
            self.abort(f"It did not reply within {REPLY_TIMEOUT_SECONDS:g} s.")

    def _check_slow(self, now: float, age: float) -> None:
        """Handle a late reply: first read what has arrived, and wait again if this process was busy."""
        if self._loop_lag > MAX_LOOP_LAG_SECONDS and age < MAX_REPLY_WAIT_SECONDS:
            self._is_grace_period = False
            self._set_timer(now + SLOW_REPLY_SECONDS)
        elif not self._is_grace_period:
            self._is_grace_period = True
            self._set_timer(now + SLOW_REPLY_GRACE_SECONDS)
        else:
            self._mark_slow(now)

    def _mark_slow(self, now: float) -> None:
        self.is_slow, self._is_grace_period = True, False
        self._set_timer(now + SLOW_PROBE_SECONDS)
        if now - self._slow_logged_at >= SLOW_LOG_SECONDS:
            self._slow_logged_at = now
            log.warning(
                "Redis at %s takes longer than %g ms: requests do not wait for it",
                self._server_name,
                SLOW_REPLY_SECONDS * 1000,
            )
        for command in list(self._pending):
            on_slow, command.on_slow = command.on_slow, None
            if on_slow is not None:
                on_slow()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        reader.feed(data)
        sent_at = None
        try:
            while (reply := reader.gets()) is not _INCOMPLETE:
                if not pending:
                    self.abort("It sent a reply without a command.")
                    return
                command = pending.popleft()
                sent_at = command.sent_at
                command.on_reply(reply)
                if type(reply) is RedisReplyError and self._concerns_server(reply):
                    self.abort(WRONG_SCHEME_MESSAGE if reply.kind == "MOVED" else reply.message)
                    return
        except hiredis.ProtocolError as error:
            self.abort(f"It sent an invalid reply: {error}.")
            return
        if self.is_slow and sent_at is not None and self._loop.time() - sent_at - self._loop_lag < SLOW_REPLY_SECONDS:
            self.is_slow = False

    def _concerns_server(self, error: RedisReplyError) -> bool:
        return error.kind in SERVER_ERROR_KINDS or (error.kind == "MOVED" and not self._is_cluster_node)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(f"The connection is lost: {exc}." if exc else "Redis closed the connection.")


_INCOMPLETE = object()
"""The result of the parser for an incomplete reply. None is a reply."""


def _ignore_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: the time of the reply matters, not its value."""


def _error_reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no response within {REDIS_CONNECT_TIMEOUT_SECONDS:g} s"
    return str(error) or type(error).__name__


def _auth_command(user: str | None, password: str) -> Sequence[CommandArgument]:
    return ("AUTH", user, password) if user else ("AUTH", password)


def create_tls_context(address: RedisAddress) -> ssl.SSLContext:
    """Return the TLS context of an address, as redis-py makes it. Blocks. Raises StoreUnavailable."""
    try:
        context: ssl.SSLContext = SSLConnection(host="", **address.tls_options).ssl_context.get()
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
