"""The interface of Redis for the gateway: commands with callbacks, and their replies. No implementation.

RedisConnection (`connection`) has one server, which Sentinel may name. ClusterClient (`cluster`) has several.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from svc.stores.database.base import StoreUnavailable

T = TypeVar("T")

CommandArgument = bytes | str | int | float
"""One argument of a command. Text is sent as UTF-8."""


SERVER_ERROR_KINDS: Final = frozenset(
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
_SCRIPT_ERROR: Final = re.compile(r"ERR Error running script .*?: -([A-Z]+) ")
_SCRIPT_NOT_PERMITTED: Final = ("The user executing the script can't run this command", "ACL failure in script")
"""The texts up to Redis 7.0, and from 7.2 on."""


class RedisReplyError(StoreUnavailable):
    """Redis replied to a command with an error. `kind` is its first word, such as `NOSCRIPT`.

    For an error of a command in a script, it is the first word of that error. Before version 7, Redis puts it into a
    text such as `ERR Error running script (…): @user_script:8: -READONLY You can't write against a read only replica.`
    """

    def __init__(self, text: str) -> None:
        super().__init__(f"Redis rejected the command: {text[:200]}")
        self.text = text
        inner = _SCRIPT_ERROR.match(text)
        self.kind = inner[1] if inner is not None else text.partition(" ")[0]
        if any(phrase in text for phrase in _SCRIPT_NOT_PERMITTED):
            self.kind = "NOPERM"


class OutcomeUnknown(StoreUnavailable):
    """There is no valid reply, since the connection was lost, for example.

    Redis may have executed the command, or may execute it later.
    """


RedisReply = bytes | int | None | RedisReplyError | list[Any]
"""A reply. The items of a list are replies."""
OnReply = Callable[[RedisReply | StoreUnavailable], None]
OnSlow = Callable[[], None]


class LuaScript:
    """A Lua script. Redis caches a script after its first run and identifies it by its SHA-1."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class RedisClient(ABC):
    """Connections to Redis that reconnect by themselves. They belong to one event loop, from `start` to `close`."""

    @property
    @abstractmethod
    def is_down(self) -> bool:
        """True while commands fail immediately. In a cluster: while those of any server do."""

    @property
    @abstractmethod
    def is_slow(self) -> bool:
        """True while replies take longer than a request waits. In a cluster: while those of any server do."""

    @property
    @abstractmethod
    def has_key_slots(self) -> bool:
        """True for a cluster, where all keys of a command must be in one slot."""

    @abstractmethod
    def add_connect_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each connect to a server. Redis may have lost data, or have old data."""

    @abstractmethod
    async def start(self) -> None:
        """Connect, and return after the first attempt, successful or not."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections. Pending commands fail."""

    @abstractmethod
    async def check_connection(self) -> None:
        """Connect, authenticate and write once, without `start`. Raises StoreUnavailable with the cause."""

    @abstractmethod
    def send(self, on_reply: OnReply, arguments: tuple[CommandArgument, ...], on_slow: OnSlow | None = None) -> None:
        """Send a command. `on_reply` gets the reply or a StoreUnavailable, possibly before `send` returns.

        If Redis rejects the command, the reply is a RedisReplyError. `on_slow` is called, perhaps repeatedly, if the
        reply takes longer than a request waits: before `on_reply`, and possibly before `send` returns.
        """

    @abstractmethod
    def flush(self) -> None:
        """Write what was sent in this iteration of the event loop now, instead of at its end."""

    def run_script(
        self,
        on_reply: OnReply,
        script: LuaScript,
        keys: Sequence[CommandArgument],
        arguments: Sequence[CommandArgument],
        on_slow: OnSlow | None = None,
    ) -> None:
        """Run a script as `send` does. It takes a second command if Redis has not cached the script."""
        call = _ScriptCall(self, on_reply, script.source, (len(keys), *keys, *arguments), on_slow)
        self.send(call.on_reply, ("EVALSHA", script.sha1, *call.arguments), on_slow)

    async def execute(self, *arguments: CommandArgument) -> RedisReply:
        """Send a command and return the reply. Raises StoreUnavailable."""
        future: asyncio.Future[RedisReply] = asyncio.get_running_loop().create_future()
        self.send(lambda reply: complete_future(future, reply), arguments)
        return await future


class _ScriptCall:
    """A script that runs. It is sent with its source if Redis has not cached it."""

    __slots__ = ("_client", "_on_reply", "_on_slow", "_source", "arguments")

    def __init__(
        self,
        client: RedisClient,
        on_reply: OnReply,
        source: str,
        arguments: tuple[CommandArgument, ...],
        on_slow: OnSlow | None,
    ) -> None:
        self._client = client
        self._on_reply = on_reply
        self._source = source
        self.arguments = arguments
        self._on_slow = on_slow

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if type(reply) is RedisReplyError and reply.kind == "NOSCRIPT":
            self._client.send(self._on_reply, ("EVAL", self._source, *self.arguments), self._on_slow)
        else:
            self._on_reply(reply)


def complete_future(future: asyncio.Future[T], reply: T | StoreUnavailable) -> None:
    """Set the result of a future, or the exception if the command failed."""
    if future.done():  # the waiting task was cancelled
        return
    if isinstance(reply, StoreUnavailable):
        future.set_exception(reply)
    else:
        future.set_result(reply)
