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
from svc.gateway.net.dns import DnsResolver
from svc.gateway.net.read_mode import BufferedRead
from svc.gateway.net.read_scheduler import ReadScheduler
from svc.gateway.net.tls import TlsTransport
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.connection import UpstreamConnection
from svc.gateway.upstream.forwarded_head import ForwardedHead

log = logging.getLogger("svc.gateway")

READ_BUFFER_BYTES: Final = 32 * 1024
"""Bytes of one read. A client that has stopped reading costs seven of them: see tests/e2e/test_backpressure.py."""
MAX_INLINE_BODY_BYTES: Final = 64 * 1024
"""Bytes that are copied behind their head, so that there is one thing to send."""
IDLE_CONNECTION_SECONDS: Final = 45.0
"""Seconds after which an idle connection is closed. Providers close theirs after a minute or more."""
MAX_IDLE_CONNECTIONS: Final = 1024
"""The maximum number of idle connections per origin."""


class UpstreamPool:
    """Connections to every origin. Belongs to one event loop; `close` ends them all."""

    def __init__(
        self, *, connect_timeout: float, ssl_context: ssl.SSLContext | None = None, fast_paths: bool = True
    ) -> None:
        self._connect_timeout = connect_timeout
        self._ssl_context = ssl_context
        self.fast_paths = fast_paths
        """Whether its connections may skip the parsing of what they know."""
        self._idle_connections: dict[UpstreamOrigin, list[UpstreamConnection]] = {}
        self._connections: set[UpstreamConnection] = set()
        self._connect_tasks: set[asyncio.Task[None]] = set()
        self._resolver = DnsResolver()
        self._loop = asyncio.get_running_loop()
        self.buffer = bytearray(READ_BUFFER_BYTES)
        """Shared by all connections: what is read is used up before the next read."""
        self.view = memoryview(self.buffer)
        self.read_scheduler = ReadScheduler(self._loop)
        """The order in which connections read, clients' connections included."""
        self.body_parts: list[bytes] = []
        self._swept_at = time.monotonic()
        """When unused connections were looked at: from then on one that is parked counts as unused."""

    def configure(self, connect_timeout: float, ssl_context: ssl.SSLContext | None) -> None:
        """Set connect timeout and TLS context of new connections."""
        self._connect_timeout = connect_timeout
        if ssl_context is not None:
            self._ssl_context = ssl_context

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def send(
        self,
        backend: Backend,
        path: bytes,
        body: bytes,
        receiver: ResponseReceiver,
        *,
        stream: bool = False,
        forwarded: ForwardedHead | None = None,
    ) -> UpstreamCall:
        """Send a request to `path` below the base address. The receiver is never called from within this call."""
        before_path, after_path = backend.request_head
        if forwarded is None:
            head = b"%b%b%b%d\r\n\r\n" % (before_path, path, after_path, len(body))
        else:
            head = b"%b%d\r\n\r\n" % (forwarded.merge_into(before_path + path + after_path), len(body))
        call = UpstreamCall(receiver, (head + body,) if len(body) < MAX_INLINE_BODY_BYTES else (head, body))
        idle_connections = self._idle_connections.get(backend.origin)
        while idle_connections:
            connection = idle_connections.pop()
            if connection.is_usable:
                if stream and connection.buffered_read is not None:  # its client may not read
                    connection.buffered_read.use_buffered()
                connection.start(call, reused=True)
                return call
            connection.close()
        self.connect(backend.origin, call)
        return call

    def connect(self, origin: UpstreamOrigin, call: UpstreamCall) -> None:
        """Send a call's request on a new connection."""
        task = self._loop.create_task(self._connect(origin, call))
        call.connect_task = task
        self._connect_tasks.add(task)
        task.add_done_callback(self._connect_tasks.discard)

    async def _connect(self, origin: UpstreamOrigin, call: UpstreamCall) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._open_connection(origin)
        except TimeoutError:
            what = "no TLS connection" if origin.tls else "no connection"
            call.fail(f"{what} to {origin.host}:{origin.port} within {self._connect_timeout:g} s", timed_out=True)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
            error.with_traceback(None)  # whose frames hold the connection, which holds the error
            call.fail(f"no connection to {origin.host}:{origin.port}: {type(error).__name__}: {error}")
        else:
            call.connect_task = None
            connection.start(call, reused=False)

    async def _open_connection(self, origin: UpstreamOrigin) -> UpstreamConnection:
        """Connect to the first address that accepts. Raise the error of the last address if none does."""
        addresses = await self._resolver.resolve(origin.host)
        for address in addresses[:-1]:
            try:
                return await self._connect_to_address(origin, address)
            except OSError as error:
                log.info("%s at %s: %s", origin.host, address, error.with_traceback(None))  # see `_connect`
        if not addresses:
            raise OSError("the name has no address")
        return await self._connect_to_address(origin, addresses[-1])

    async def _connect_to_address(self, origin: UpstreamOrigin, address: str) -> UpstreamConnection:
        connection = UpstreamConnection(self, origin)
        if not origin.tls:
            buffered_read = BufferedRead(connection, self.buffer, self.read_scheduler)
            try:
                await self._loop.create_connection(lambda: buffered_read, address, origin.port)  # type: ignore[type-var]
            except asyncio.CancelledError:
                if connection in self._connections:  # uvloop does not tell who has just heard of its connection
                    buffered_read.detach()
                raise
            return connection
        tls_transport = TlsTransport(self._get_ssl_context(), origin.host, connection, self.buffer, self.read_scheduler)
        await self._loop.create_connection(lambda: tls_transport, address, origin.port)  # type: ignore[type-var]
        try:
            await tls_transport.handshake_done
        except asyncio.CancelledError:
            tls_transport.abort()
            raise
        return connection

    def _get_ssl_context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = default_ssl_context()
        return self._ssl_context

    def release(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request after its response is complete."""
        idle_connections = self._idle_connections.get(connection.origin)
        if idle_connections is None:
            idle_connections = self._idle_connections[connection.origin] = []
        if len(idle_connections) < MAX_IDLE_CONNECTIONS:
            connection.idle_since = self._swept_at
            idle_connections.append(connection)
        else:
            connection.close()

    def add(self, connection: UpstreamConnection) -> None:
        self._connections.add(connection)

    def remove(self, connection: UpstreamConnection) -> None:
        self._connections.discard(connection)
        idle = self._idle_connections.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def close_idle(self, now: float) -> None:
        """Close connections that have been idle for too long. The oldest are at the front."""
        self._swept_at = now
        for idle in self._idle_connections.values():
            while idle and now - idle[0].idle_since > IDLE_CONNECTION_SECONDS:
                idle.pop(0).close()

    async def close(self) -> None:
        """Close every connection, and cancel connection attempts."""
        for task in list(self._connect_tasks):
            task.cancel()
        await asyncio.gather(*self._connect_tasks, return_exceptions=True)
        await self._resolver.close()
        for connection in list(self._connections):
            connection.close()


def default_ssl_context() -> ssl.SSLContext:
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
