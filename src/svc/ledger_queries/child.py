"""The query process of a gateway. Run with `python -m svc.ledger_queries.child`. Queries arrive on standard input.

It exits when standard input is closed, so it never outlives the gateway. The gateway ends it, so signals that a
terminal or a service manager sends to all processes of a gateway have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from typing import Final

import msgspec

from svc import telemetry
from svc.ledger_queries.messages import (
    CancelQuery,
    OpenDatabase,
    QueryError,
    QueryResult,
    StartQuery,
    encode_message,
    read_message,
)
from svc.stores.database.base import Database, StoreUnavailable
from svc.stores.database.factory import open_database
from svc.stores.database.query_thread import IsCancelled, QueryThread

QUERY_PROCESS_NICENESS: Final = 5
"""Below that of the gateway, so that requests come first on a busy machine."""
CLOSE_TIMEOUT_SECONDS: Final = 5.0


class QueryServer:
    """Runs the queries of a gateway one after the other."""

    def __init__(self, queries: QueryThread, writer: asyncio.StreamWriter) -> None:
        self._queries = queries
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve until the gateway closes the stream."""
        decoder = msgspec.msgpack.Decoder(StartQuery | CancelQuery)
        while (data := await read_message(reader)) is not None:
            message = decoder.decode(data)
            if isinstance(message, CancelQuery):
                if (task := self._tasks.get(message.id)) is not None:
                    task.cancel()
            else:
                name = f"query {message.id}"
                self._tasks[message.id] = asyncio.get_running_loop().create_task(self._run(message), name=name)
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, message: StartQuery) -> None:
        try:
            response = await self._execute(message)
        finally:
            del self._tasks[message.id]
        self._writer.write(encode_message(response))
        with contextlib.suppress(OSError):  # the gateway is gone
            await self._writer.drain()

    async def _execute(self, message: StartQuery) -> QueryResult | QueryError:
        def execute(database: Database, is_cancelled: IsCancelled) -> bytes:
            return msgspec.msgpack.encode(message.query.execute(database, is_cancelled))

        try:
            return QueryResult(message.id, await self._queries.run_cancellable(execute))
        except StoreUnavailable as error:
            return QueryError(message.id, error.message, is_store_unavailable=True)
        except Exception as error:  # noqa: BLE001  # the gateway logs it, and this process serves the next query
            return QueryError(message.id, "".join(traceback.format_exception(error)), is_store_unavailable=False)


async def main() -> None:
    """Serve the gateway at the other ends of standard input and output."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    if (data := await read_message(reader)) is None:
        return
    queries = QueryThread(open_database(msgspec.msgpack.decode(data, type=OpenDatabase).url))
    await QueryServer(queries, asyncio.StreamWriter(transport, protocol, None, loop)).serve(reader)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await queries.close()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(QUERY_PROCESS_NICENESS)
    telemetry.configure_child()
    asyncio.run(main())
    os._exit(0)  # does not wait for a query that cannot be interrupted
