"""The only way to providers: a pool of keep-alive connections for each origin.

    Upstream ── send(offer, body, receiver) ──> Call ── on an idle Connection, or on one that is made

Nothing here knows a dialect, or retries.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from typing import Final

from svc.errors import UsageError
from svc.gateway.bounded import Bounded
from svc.gateway.call import Call, Receiver
from svc.gateway.connection import Connection
from svc.gateway.forwarding import ForwardedHead
from svc.gateway.names import Names
from svc.gateway.offers import Offer
from svc.gateway.providers import Origin
from svc.gateway.tls import TlsTransport
from svc.gateway.turns import Turns

log = logging.getLogger("svc.gateway")

READ_SIZE: Final = 32 * 1024
"""Bytes of one read. A client that has stopped reading costs seven of them: see tests/e2e/test_backpressure.py."""
SHORT_BODY: Final = 64 * 1024
"""Bytes that are copied behind their head, so that there is one thing to send."""
IDLE_SECONDS: Final = 45.0
"""An unused connection is kept so long; providers close theirs after a minute or more."""
IDLE_CONNECTIONS: Final = 1024
"""Unused connections kept per origin."""


class Upstream:
    """Connections to every origin. Belongs to one event loop; `close` ends them all."""

    def __init__(self, *, connect_timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._names = Names()
        self._loop = asyncio.get_running_loop()
        self.buffer = bytearray(READ_SIZE)
        """Shared by all connections: what is read is used up before the next read."""
        self.view = memoryview(self.buffer)
        self.turns = Turns(self._loop)
        """The order in which connections read, clients' connections included."""
        self.body: list[bytes] = []
        self._swept = time.monotonic()
        """When unused connections were looked at: from then on one that is parked counts as unused."""

    def configure(self, connect_timeout: float, tls: ssl.SSLContext | None) -> None:
        """For connections that are made from now on."""
        self._connect_timeout = connect_timeout
        if tls is not None:
            self._tls = tls

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def send(
        self,
        offer: Offer,
        body: bytes,
        receiver: Receiver,
        *,
        stream: bool = False,
        forwarded: ForwardedHead | None = None,
    ) -> Call:
        """Sends a request; the answer comes to `receiver`, never from within this call."""
        head = offer.head if forwarded is None else forwarded.merged_into(offer.head)
        head = b"%b%d\r\n\r\n" % (head, len(body))
        call = Call(receiver, (head + body,) if len(body) < SHORT_BODY else (head, body))
        idle = self._idle.get(offer.origin)
        while idle:
            connection = idle.pop()
            if connection.usable:
                if stream and connection.bounded is not None:  # its client may not read
                    connection.bounded.bind()
                connection.start(call, reused=True)
                return call
            connection.close()
        self.connect(offer.origin, call)
        return call

    def connect(self, origin: Origin, call: Call) -> None:
        """Sends a call's request on a connection of its own."""
        task = self._loop.create_task(self._connect(origin, call))
        call.connecting = task
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, origin: Origin, call: Call) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._open_one(origin)
        except TimeoutError:
            what = "no TLS connection" if origin.tls else "no connection"
            call.lost(f"{what} to {origin.host}:{origin.port} within {self._connect_timeout:g} s", timed_out=True)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
            error.with_traceback(None)  # whose frames hold the connection, which holds the error
            call.lost(f"no connection to {origin.host}:{origin.port}: {type(error).__name__}: {error}")
        else:
            call.connecting = None
            connection.start(call, reused=False)

    async def _open_one(self, origin: Origin) -> Connection:
        """To the first of the host's addresses that takes it; raises what the last one fails with."""
        addresses = await self._names.addresses(origin.host)
        for address in addresses[:-1]:
            try:
                return await self._open_at(origin, address)
            except OSError as error:
                log.info("%s at %s: %s", origin.host, address, error.with_traceback(None))  # see `_connect`
        if not addresses:
            raise OSError("the name has no address")
        return await self._open_at(origin, addresses[-1])

    async def _open_at(self, origin: Origin, address: str) -> Connection:
        connection = Connection(self, origin)
        if not origin.tls:
            bounded = Bounded(connection, self.buffer, self.turns)
            try:
                await self._loop.create_connection(lambda: bounded, address, origin.port)  # type: ignore[type-var]
            except asyncio.CancelledError:
                if connection in self._open:  # uvloop does not tell who has just heard of its connection
                    bounded.forget()
                raise
            return connection
        sealed = TlsTransport(self._tls_context(), origin.host, connection, self.buffer, self.turns)
        await self._loop.create_connection(lambda: sealed, address, origin.port)  # type: ignore[type-var]
        try:
            await sealed.secured
        except asyncio.CancelledError:
            sealed.abort()
            raise
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = default_tls()
        return self._tls

    def park(self, connection: Connection) -> None:
        """Keeps a connection whose answer has ended for the next request."""
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = []
        if len(idle) < IDLE_CONNECTIONS:
            connection.idle_since = self._swept
            idle.append(connection)
        else:
            connection.close()

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Closes what has been unused for too long. The oldest are at the front."""
        self._swept = now
        for idle in self._idle.values():
            while idle and now - idle[0].idle_since > IDLE_SECONDS:
                idle.pop(0).close()

    async def close(self) -> None:
        """Closes every connection and cancels those being made."""
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await self._names.close()
        for connection in list(self._open):
            connection.close()


def default_tls() -> ssl.SSLContext:
    """Verifies certificates and names; `SSL_CERT_FILE` names other authorities. Takes some ms: make it at start.

    OpenSSL by itself would trust the system's folder beside that file, and say nothing of one that holds no
    certificates. Raises UsageError for such a file.
    """
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    try:
        context = ssl.create_default_context(cafile=file, capath=folder if file else None)
    except OSError as error:
        raise UsageError(f"SSL_CERT_FILE={file} holds no certificates in PEM form: {error}.") from error
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context
