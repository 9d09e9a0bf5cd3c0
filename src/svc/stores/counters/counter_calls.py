"""Calls of the counters' script. Those of one iteration of the event loop go to Redis as one command.

A command costs the gateway several microseconds, and Redis needs less time for several calls of one script.

Redis executes the calls of a command in order, up to the first one that fails. The calls after it are sent again, each
as a command of its own. In a cluster every call is a command, because a script can use the keys of one slot only.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import (
    SERVER_ERROR_KINDS,
    LuaScript,
    OutcomeUnknown,
    RedisClient,
    RedisReply,
    RedisReplyError,
    complete_future,
)

log = logging.getLogger("svc.stores")

MAX_CALLS: Final = 16
"""Maximum number of calls in a command. Redis executes nothing else meanwhile, and more calls save little."""
_encode: Final = msgspec.msgpack.Encoder().encode
"""Encodes the arguments of all calls as one, which takes a third of the time of many."""
_INTEGER_END: Final = 2.0**63
"""Integers of Redis and of its MessagePack are below this number."""
FAILURE_LOG_SECONDS: Final = 60.0
MAX_LOGGED_FAILURES: Final = 100
"""Maximum number of keys whose failures are logged within FAILURE_LOG_SECONDS."""
MAX_REASON_CHARS: Final = 200
_DAMAGE: Final = re.compile(r"WRONGTYPE|user_script:\d+: (?:attempt to (?:perform|compare)|bad argument)")
"""Errors of the script that the hash of the key causes: another type, and fields that are not the script's numbers."""
_decode: Final = msgspec.msgpack.Decoder(list[list[int | str]]).decode
_decode_floats: Final = msgspec.msgpack.Decoder(list[list[int | float | str]]).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError)

CallResult = list[Any]
"""What the script returns for a call: integers, and texts in the places that `counters.lua` names."""


class CounterCall:
    """A call of the script for one key. The first of `arguments` is the operation."""

    __slots__ = ("arguments", "key")

    def __init__(self, key: str, arguments: tuple[str | int, ...]) -> None:
        self.key = key
        self.arguments = arguments

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        """Handle the result or the failure. Called once."""

    def on_slow(self) -> None:
        """Stop waiting for the reply. Called, perhaps repeatedly, if it takes longer than a request waits."""


class CounterCallBatcher:
    """Sends calls. Belongs to one event loop."""

    def __init__(self, redis: RedisClient, script: LuaScript) -> None:
        self._redis = redis
        self._script = script
        self._unsent: list[CounterCall] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sends_single_calls = redis.has_key_slots
        self._logged_failures: set[tuple[str, str]] = set()
        """The messages and keys that were logged since `_logged_since` (monotonic seconds)."""
        self._logged_since = -FAILURE_LOG_SECONDS

    def add(self, call: CounterCall) -> None:
        """Send a call with the others of this iteration. Its methods are called, possibly before this returns."""
        if self._sends_single_calls:
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
        if self._redis.is_slow:
            call.on_slow()
        if len(self._unsent) >= MAX_CALLS:
            self._send_unsent()

    def flush(self) -> None:
        """Write the unsent calls now, instead of at the end of the iteration."""
        self._send_unsent()
        self._redis.flush()

    def _send_unsent(self) -> None:
        if self._unsent:
            calls, self._unsent = self._unsent, []
            self.send(calls)

    async def execute(self, key: str, *arguments: str | int) -> CallResult:
        """Call the script, and return its result. Raises StoreUnavailable."""
        call = _AwaitedCall(key, arguments)
        self.add(call)
        return await call.future

    def send(self, calls: list[CounterCall]) -> None:
        """Send calls as one command."""
        try:
            argument = _encode([call.arguments for call in calls])
        except OverflowError as error:
            self._isolate_oversized(calls, error)
            return
        command = _CounterCommand(self, calls)
        self._redis.run_script(
            command.on_reply, self._script, [call.key for call in calls], (argument,), command.on_slow
        )

    def _isolate_oversized(self, calls: list[CounterCall], error: OverflowError) -> None:
        """Fail the call with an integer of more than 64 bits. Send the others one by one."""
        if len(calls) > 1:
            self.send_singly(calls)
        else:
            key = calls[0].key
            self.log_failure("A number of %s is too large for Redis: %s", (key, str(error)), key)
            _report(calls[0], StoreUnavailable(f"A number is too large for Redis: {error}"))

    def send_singly(self, calls: list[CounterCall]) -> None:
        """Send each call as a command."""
        for call in calls:
            self.send([call])

    def log_damage(self, key: str, reason: str) -> None:
        """Log that the hash of a key is damaged, and how to repair it."""
        self.log_failure(
            "Redis cannot count in %s: %s. Requests of this key are handled as if Redis were down. "
            "To let its counters begin again, execute this command in Redis: DEL %s",
            (key, reason, key),
            key,
        )

    def log_failure(self, message: str, arguments: tuple[str, ...] = (), key: str = "") -> None:
        """Log a failure, of one key or of all, once within FAILURE_LOG_SECONDS."""
        now, logged = time.monotonic(), self._logged_failures
        if now - self._logged_since >= FAILURE_LOG_SECONDS:
            logged.clear()
            self._logged_since = now
        if (message, key) not in logged and not (key and len(logged) >= MAX_LOGGED_FAILURES):
            logged.add((message, key))
            log.error(message, *arguments)

    def stop_batching(self) -> None:
        """Send only single calls from now on: the server is a cluster behind one address."""
        self._sends_single_calls = True


class _AwaitedCall(CounterCall):
    __slots__ = ("future",)

    def __init__(self, key: str, arguments: tuple[str | int, ...]) -> None:
        super().__init__(key, arguments)
        self.future: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        complete_future(self.future, reply)


class _CounterCommand:
    """Calls that were sent together."""

    __slots__ = ("_batcher", "_calls")

    def __init__(self, batcher: CounterCallBatcher, calls: list[CounterCall]) -> None:
        self._batcher = batcher
        self._calls = calls

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        calls = self._calls
        results = _decode_results(reply) if isinstance(reply, bytes) else ()
        if 0 < len(results) <= len(calls):
            for call, result in zip(calls, results, strict=False):
                if result is None:
                    self._batcher.log_damage(call.key, "a field of its hash is no integer of 64 bits")
                    _report(call, OutcomeUnknown("The counters of the key are damaged."))
                else:
                    _report(call, result)
            self._batcher.send_singly(calls[len(results) :])
        elif not isinstance(reply, RedisReplyError) or reply.kind in SERVER_ERROR_KINDS:
            # An unexpected reply does not tell which calls were executed.
            error = reply if isinstance(reply, StoreUnavailable) else OutcomeUnknown("Redis sent an unexpected reply.")
            if error is not reply:
                self._batcher.log_failure("Redis sent a reply that the script of the counters does not make")
            for call in calls:
                _report(call, error)
        elif reply.kind == "CROSSSLOT" and len(calls) > 1:  # nothing was executed
            self._batcher.stop_batching()
            self._batcher.send_singly(calls)
        else:
            self._log_error(calls[0], reply)
            _report(calls[0], reply)
            self._batcher.send_singly(calls[1:])

    def _log_error(self, call: CounterCall, error: RedisReplyError) -> None:
        reason = error.text[:MAX_REASON_CHARS].rstrip(". ")
        if _DAMAGE.search(error.text) is not None:
            self._batcher.log_damage(call.key, reason)
        else:
            self._batcher.log_failure("Redis rejected the script of the counters: %s", (reason,))

    def on_slow(self) -> None:
        for call in self._calls:
            try:
                call.on_slow()
            except Exception:  # boundary, as in `_report`
                log.exception("error while deciding without Redis")


def _decode_results(reply: bytes) -> Sequence[CallResult | None]:
    """Return the results of a command, or none if the script has not made this reply.

    The result is None if it has a number that is no integer of 64 bits.
    """
    try:
        results: list[CallResult] = _decode(reply)
    except _DECODE_ERRORS:
        pass
    else:
        return results
    try:
        return [_to_integers(result) for result in _decode_floats(reply)]  # the fields of a key are damaged
    except _DECODE_ERRORS:
        return []


def _to_integers(result: CallResult) -> CallResult | None:
    """Return a result without fractions, as Redis returns numbers. None if one cannot be sent back to Redis."""
    if any(isinstance(value, float) and not abs(value) < _INTEGER_END for value in result):  # NaN is not smaller
        return None
    return [int(value) if isinstance(value, float) else value for value in result]


def _report(call: CounterCall, reply: CallResult | StoreUnavailable) -> None:
    try:
        call.on_reply(reply)
    except Exception:  # boundary: the other calls of the command need their replies
        log.exception("error while handling a reply of Redis")
