"""Runs queries in a child process, which starts with the first query, and again if it is lost.

With a thread instead, a long query would hold Python's global lock for milliseconds at a time, and requests would wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from svc import telemetry
from svc.errors import InternalError
from svc.ledger_queries.messages import (
    AnyQuery,
    CancelQuery,
    LedgerQuery,
    OpenDatabase,
    QueryError,
    QueryResult,
    StartQuery,
    encode_message,
    read_message,
)
from svc.stores.database.base import StoreUnavailable
from svc.stores.database.factory import database_url
from svc.subprocess_env import build_subprocess_env

log = logging.getLogger("svc.queries")
T = TypeVar("T")

LEDGER_QUERY_TIMEOUT_SECONDS: Final = 60.0
"""More than a statement may take, and those of the queries before it. Then the process is killed."""
QUERY_PROCESS_IDLE_SECONDS: Final = 300.0
"""The process is stopped when there was no query for this time. It needs about 40 MB."""
QUERY_PROCESS_EXIT_SECONDS: Final = 5.0
ATTEMPTS_PER_QUERY: Final = 2
QUERY_PROCESS_COMMAND: Final = (sys.executable, "-m", "svc.ledger_queries.child")


class _ProcessLost(Exception):
    """The process ended before the result of a query."""


class QueryProcess:
    """Starts, restarts and stops the process. Belongs to one event loop."""

    def __init__(self, environ: Mapping[str, str], home: Path, command: Sequence[str] = QUERY_PROCESS_COMMAND) -> None:
        self._database_url = database_url(environ, home)
        self._command = command
        self._child: _QueryChild | None = None
        self._running: set[_QueryChild] = set()
        """This process, and earlier ones that have not ended yet."""
        self._starting: asyncio.Task[_QueryChild] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return None if self._child is None or self._child.is_lost else self._child.pid

    async def run(self, query: LedgerQuery[T], timeout_seconds: float = LEDGER_QUERY_TIMEOUT_SECONDS) -> T:
        """Return the result. A query is cancelled if the awaiting task is.

        If the process is lost, the query is tried once more in a new one.
        Raises StoreUnavailable, also after `timeout_seconds`, and InternalError.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                data = await self._run(query)
        except TimeoutError:
            if self._child is not None:
                self._child.kill()
            raise StoreUnavailable(f"The query took longer than {timeout_seconds:g} seconds.") from None
        return cast(T, msgspec.msgpack.decode(data, type=query.result_type))

    async def _run(self, query: LedgerQuery[Any]) -> bytes:
        for _ in range(ATTEMPTS_PER_QUERY):
            try:
                child = await self._get_child()
                return await child.run(query)
            except (_ProcessLost, OSError) as error:
                if self._is_closed:
                    break
                log.warning("the query process is lost: %s", error)
            finally:
                self._restart_idle_timer()
        raise StoreUnavailable("The gateway shuts down." if self._is_closed else "The query process does not run.")

    async def _get_child(self) -> _QueryChild:
        """Return the running process, or start one."""
        if self._is_closed:
            raise _ProcessLost("the gateway shuts down")
        if self._child is None or self._child.is_lost:
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start(), name="query process")
            return await asyncio.shield(self._starting)  # other queries wait for it too
        return self._child

    async def _start(self) -> _QueryChild:
        try:
            child = self._child = await _QueryChild.start(self._command, self._database_url)
            self._running.add(child)
            child.on_end(self._running.discard)
            return child
        finally:
            self._starting = None

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if not self._is_closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(QUERY_PROCESS_IDLE_SECONDS, self._stop_idle)

    def _stop_idle(self) -> None:
        if self._child is not None and self._child.is_idle:
            self._child.stop()

    async def aclose(self) -> None:
        """Stop the process. Running queries raise StoreUnavailable."""
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        for child in list(self._running):
            child.stop()
            await child.wait()


class _QueryChild:
    """A running process and the queries that wait for it."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._results: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self.is_lost = False
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="query results")

    @classmethod
    async def start(cls, command: Sequence[str], url: str) -> _QueryChild:
        """Start a process. It gets the URL on standard input, where no other user can read it."""
        # PostgreSQL's client library reads its options from variables that begin with PG.
        postgres = {name: value for name, value in os.environ.items() if name.startswith("PG")}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=build_subprocess_env(**postgres, **telemetry.child_environment())
        )
        child = cls(process)
        child._stdin.write(encode_message(OpenDatabase(url)))
        return child

    def on_end(self, callback: Callable[[_QueryChild], object]) -> None:
        """Call `callback` when the process has ended."""
        self._reader.add_done_callback(lambda _: callback(self))

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether no query runs."""
        return not self._results

    async def run(self, query: LedgerQuery[Any]) -> bytes:
        """Return the result as MessagePack. Raises _ProcessLost, StoreUnavailable and InternalError."""
        if self.is_lost:
            raise _ProcessLost("it has ended")
        self._last_id += 1
        id = self._last_id
        result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._results[id] = result
        self._stdin.write(encode_message(StartQuery(id, cast(AnyQuery, query))))
        try:
            return await result
        except asyncio.CancelledError:
            if not self.is_lost:
                self._stdin.write(encode_message(CancelQuery(id)))
            raise
        finally:
            self._results.pop(id, None)

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(QueryResult | QueryError)
        while (data := await read_message(self._stdout)) is not None:
            message = decoder.decode(data)
            result = self._results.get(message.id)
            if result is None or result.done():  # it was cancelled
                continue
            if isinstance(message, QueryResult):
                result.set_result(message.data)
            elif message.is_store_unavailable:
                result.set_exception(StoreUnavailable(message.message))
            else:
                log.error("error in a query: %s", message.message)
                result.set_exception(InternalError("Internal error in a query. The log of the gateway has it."))
        await self._end()

    async def _end(self) -> None:
        """Wait until the process has ended, and then fail its queries."""
        self.is_lost = True
        try:
            async with asyncio.timeout(QUERY_PROCESS_EXIT_SECONDS):
                status = await self._process.wait()
        except TimeoutError:
            self.kill()
            status = await self._process.wait()
        for result in self._results.values():
            if not result.done():
                result.set_exception(_ProcessLost(f"it ended with status {status}"))

    def kill(self) -> None:
        """Kill the process."""
        self.is_lost = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def stop(self) -> None:
        """Let the process end. `_end` kills it if it does not."""
        self.is_lost = True
        self._stdin.close()

    async def wait(self) -> None:
        """Wait until it has ended after `stop`. Kill it after QUERY_PROCESS_EXIT_SECONDS."""
        _, pending = await asyncio.wait([self._reader], timeout=QUERY_PROCESS_EXIT_SECONDS)
        if pending:
            self.kill()
            await asyncio.wait([self._reader])
