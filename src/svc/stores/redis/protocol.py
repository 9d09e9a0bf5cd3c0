"""One connection to Redis: it pipelines commands, and notices replies that are late or missing.

hiredis encodes commands and parses replies (RESP2, https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

import hiredis

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import (
    SERVER_ERROR_KINDS,
    CommandArgument,
    OnReply,
    OnSlow,
    OutcomeUnknown,
    RedisReply,
    RedisReplyError,
    complete_future,
)

REPLY_TIMEOUT_SECONDS: Final = 2.0
"""Timeout of a reply, after which the connection is closed."""
LATE_REPLY_GRACE_SECONDS: Final = 0.05
"""Time to read a reply that arrived while this process was not scheduled, before it counts as missing."""
SLOW_REPLY_SECONDS: Final = 0.04
"""The time that a request waits for a reply. A later reply makes the connection slow."""
SLOW_REPLY_GRACE_SECONDS: Final = 0.002
"""Time to read a reply that has arrived, before it counts as late."""
MAX_LOOP_LAG_SECONDS: Final = 0.01
"""With a larger delay of its own timer, this process was busy. Redis then gets another SLOW_REPLY_SECONDS."""
MAX_REPLY_WAIT_SECONDS: Final = 0.1
"""The time that a request waits for a reply while this process is busy."""
SLOW_PROBE_SECONDS: Final = 0.05
"""The interval of PING while the connection is slow and no command is pending."""
MAX_PENDING_COMMANDS: Final = 20_000
WRONG_SCHEME_MESSAGE: Final = (
    "It belongs to a cluster: SVC_REDIS_URL must begin with redis+cluster:// or rediss+cluster://."
)
_INCOMPLETE: Final = object()
"""The result of the parser for an incomplete reply. None is a reply."""


class _PendingCommand:
    """A command without a reply. `on_slow` is None once it was called."""

    __slots__ = ("on_reply", "on_slow", "sent_at")

    def __init__(self, sent_at: float, on_reply: OnReply, on_slow: OnSlow | None) -> None:
        self.sent_at = sent_at
        self.on_reply = on_reply
        self.on_slow = on_slow


class RedisProtocol:
    """One TCP or Unix connection to Redis. It has the methods of asyncio.Protocol."""

    def __init__(self, *, is_cluster_node: bool, on_slow: OnSlow | None = None) -> None:
        """Make a protocol that calls `on_slow` whenever the replies become slow."""
        self._is_cluster_node = is_cluster_node
        self._on_slow = on_slow
        self.closed = asyncio.Event()
        self.close_reason = "The connection is lost."
        self.is_slow = False
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(replyError=RedisReplyError, notEnoughData=_INCOMPLETE)
        self._pending: deque[_PendingCommand] = deque()
        self._unsent: list[bytes] = []
        """Encoded commands that the next iteration of the event loop writes."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_at = 0.0
        self._loop_lag = 0.0
        """The delay of the last timer in seconds: the time for which this process was busy."""
        self._is_grace_period = False

    def send(self, on_reply: OnReply, arguments: tuple[CommandArgument, ...], on_slow: OnSlow | None = None) -> None:
        if self._transport is None or len(self._pending) >= MAX_PENDING_COMMANDS:
            on_reply(StoreUnavailable("Redis is not connected, or too many commands are pending."))
            return
        now = self._loop.time()
        self._pending.append(_PendingCommand(now, on_reply, None if self.is_slow else on_slow))
        if self._timer is None:
            self._set_timer(now + SLOW_REPLY_SECONDS)
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(hiredis.pack_command(arguments))  # type: ignore[arg-type]  # its stub names one item
        if self.is_slow and on_slow is not None:
            on_slow()

    def flush(self) -> None:
        """Write the unsent commands. The next iteration of the event loop does it otherwise."""
        if self._transport is not None and self._unsent:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

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
        if self._on_slow is not None:
            self._on_slow()
        for command in list(self._pending):
            on_slow, command.on_slow = command.on_slow, None
            if on_slow is not None:
                on_slow()

    # the methods of asyncio.Protocol

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

    def eof_received(self) -> None:
        """Close the connection."""

    def pause_writing(self) -> None:
        """Continue: MAX_PENDING_COMMANDS limits the buffer."""

    def resume_writing(self) -> None:
        """Continue."""


def _ignore_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: the time of the reply matters, not its value."""
