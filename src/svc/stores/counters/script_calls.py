"""Calls of the counters' script. Those of one iteration of the event loop run together, as one command to Redis.

A command costs the gateway several microseconds, and Redis as much as a call of the script. The script ends at the
first call that fails. The calls after it are sent again, since they were not executed. In a cluster each call is a
command, because a script can use the keys of one slot only.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import LuaScript, RedisClient, RedisReply, RedisReplyError, complete_future
from svc.stores.redis.protocol import SERVER_ERROR_KINDS

MAX_CALLS: Final = 64
"""Maximum number of calls in a command. Redis executes nothing else meanwhile: about a millisecond."""
_encode: Final = msgspec.msgpack.Encoder().encode
"""Encodes the arguments of all calls as one, which takes a third of the time of many."""


class ScriptCall:
    """A call of the script with one key. The first of `arguments` is the operation."""

    __slots__ = ("arguments", "key")

    def __init__(self, key: str, arguments: tuple[str | int, ...]) -> None:
        self.key = key
        self.arguments = arguments

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        """Do nothing: the next heartbeat follows soon, and a request without cost leaves nothing to repeat."""

    def on_slow(self) -> None:
        """Do nothing: nobody waits. Called, perhaps repeatedly, if the reply takes longer than a request waits."""


class ScriptCalls:
    """Sends calls of a script. Belongs to one event loop."""

    def __init__(self, redis: RedisClient, script: LuaScript) -> None:
        self._redis = redis
        self._script = script
        self._unsent: list[ScriptCall] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, call: ScriptCall) -> None:
        """Send a call with the others of this iteration. Its methods are called, possibly before this returns."""
        if self._redis.has_key_slots:
            self.send([call])
            return
        if self._redis.is_down:
            call.on_reply(StoreUnavailable("Redis is not connected."))
            return
        if not self._unsent:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()  # kept, since it calls getpid each time
            self._loop.call_soon(self.flush)
        self._unsent.append(call)
        if len(self._unsent) >= MAX_CALLS:
            self.flush()
        if self._redis.is_slow:
            call.on_slow()

    def flush(self) -> None:
        """Write the unsent calls now, instead of at the end of the iteration."""
        if self._unsent:
            calls, self._unsent = self._unsent, []
            self.send(calls)
        self._redis.flush()

    def fail_unsent(self) -> None:
        """Give the unsent calls an error: they belong to an earlier connection."""
        calls, self._unsent = self._unsent, []
        for call in calls:
            call.on_reply(StoreUnavailable("The connection to Redis is new."))

    async def execute(self, key: str, *arguments: str | int) -> RedisReply:
        """Call the script, and return its result. Raises StoreUnavailable."""
        call = _AwaitedCall(key, arguments)
        self.add(call)
        return await call.future

    def send(self, calls: list[ScriptCall]) -> None:
        """Send calls as one command."""
        command = _Command(self, calls)
        keys, argument = [call.key for call in calls], _encode([call.arguments for call in calls])
        self._redis.run_script(command.on_reply, self._script, keys, (argument,), command.on_slow)


class _AwaitedCall(ScriptCall):
    __slots__ = ("future",)

    def __init__(self, key: str, arguments: tuple[str | int, ...]) -> None:
        super().__init__(key, arguments)
        self.future: asyncio.Future[RedisReply] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        complete_future(self.future, reply)


class _Command:
    """Calls that were sent together."""

    __slots__ = ("_calls", "_sender")

    def __init__(self, sender: ScriptCalls, calls: list[ScriptCall]) -> None:
        self._sender = sender
        self._calls = calls

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        calls = self._calls
        if isinstance(reply, list) and 0 < len(reply) <= len(calls):
            for call, result in zip(calls, reply, strict=False):
                call.on_reply(result)
            self._send_again(calls[len(reply) :])
        elif isinstance(reply, RedisReplyError) and reply.kind not in SERVER_ERROR_KINDS:
            calls[0].on_reply(reply)
            self._send_again(calls[1:])
        else:
            error = (
                reply if isinstance(reply, StoreUnavailable) else StoreUnavailable("Redis sent an unexpected reply.")
            )
            for call in calls:
                call.on_reply(error)

    def _send_again(self, calls: list[ScriptCall]) -> None:
        """Send calls that were not executed."""
        if calls:
            self._sender.send(calls)

    def on_slow(self) -> None:
        for call in self._calls:
            call.on_slow()
