"""Sends requests to providers over a pool of keep-alive connections for each origin.

    UpstreamPool ── send(backend, path, body, receiver) ──> UpstreamCall ── on an idle or a new UpstreamConnection

Dialects and retries are not handled here.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from svc.errors import ProviderFailed, UsageError
from svc.gateway.net.connection_race import ConnectionRace
from svc.gateway.net.dns import DnsResolver
from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.read_mode import BufferedRead
from svc.gateway.net.read_scheduler import ReadScheduler
from svc.gateway.net.tls import TlsTransport
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.connection import UpstreamConnection
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.gateway.upstream.proxy_connector import ProxyConnector
from svc.gateway.upstream.stream_poller import StreamPoller
from svc.tls_context import create_client_context

READ_BUFFER_BYTES: Final = 32 * 1024
"""Maximum bytes of one read. A client that stops reading occupies up to 7 such reads in memory.

tests/e2e/test_backpressure.py measures it.
"""
MAX_INLINE_BODY_BYTES: Final = 64 * 1024
"""Smaller bodies are copied into one buffer with the head, which takes a single write."""
IDLE_CONNECTION_SECONDS: Final = 45.0
"""Seconds after which an idle connection is closed. Providers close theirs after a minute or more."""
NEXT_ADDRESS_SECONDS: Final = 1.0
"""Seconds after which the next address of a host is tried as well. TCP repeats a lost SYN after a second."""
MAX_IDLE_CONNECTIONS: Final = 1024
"""Maximum number of idle connections per origin."""
NO_RESOURCES_ERRNOS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of a new socket that say nothing about its peer."""


class LocalModelLoader(Protocol):
    """Loads models of this machine for the first request."""

    async def load(self, name: str) -> int:
        """Return the loopback port of a model's server. Raises ProviderFailed if the model cannot be loaded."""


class UpstreamPool:
    """The connections of one event loop to all origins."""

    def __init__(
        self, *, connect_timeout: float, ssl_context: ssl.SSLContext | None = None, fast_paths: bool = True
    ) -> None:
        self._connect_timeout = connect_timeout
        self._ssl_context = ssl_context
        self.fast_paths = fast_paths
        """Whether connections may reuse the cached parse of a response head."""
        self._idle_connections: dict[UpstreamOrigin, list[UpstreamConnection]] = {}
        self._connections: set[UpstreamConnection] = set()
        self._connect_tasks: set[asyncio.Task[None]] = set()
        self._resolver = DnsResolver()
        self._race = ConnectionRace(UpstreamConnection.close)
        self._proxy_connector = ProxyConnector(self._get_ssl_context)
        self.local_models: LocalModelLoader | None = None
        """Knows the ports of origins that are models of this machine."""
        self._loop = asyncio.get_running_loop()
        self.buffer = bytearray(READ_BUFFER_BYTES)
        """The read buffer of all connections. Each read is processed or copied before the next read."""
        self.view = memoryview(self.buffer)
        self.read_scheduler = ReadScheduler(self._loop)
        """Defers large reads of upstream and client connections."""
        self.io_batch = IoBatch(self._loop)
        """Handles small reads of upstream and client connections together."""
        self.stream_poller = StreamPoller(self._loop)
        """Forwards the chunks of streams without TLS."""
        self.body_parts: list[bytes] = []
        self._swept_at = time.monotonic()
        """When `close_idle` last ran, in seconds. Connections released since then count as idle from that time."""

    def configure(self, connect_timeout: float, ssl_context: ssl.SSLContext | None) -> None:
        """Set the connect timeout in seconds and the TLS context of new connections."""
        self._connect_timeout = connect_timeout
        if ssl_context is not None:
            self._ssl_context = ssl_context

    @property
    def open_connections(self) -> int:
        """The number of open connections, idle ones included."""
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
        trace_context: bytes = b"",
    ) -> UpstreamCall:
        """Send a POST request to `path` below the backend's base URL.

        `stream` says that the response may be a stream, whose client may read slowly. `forwarded` is merged into the
        head, and the header lines `trace_context` follow it. The receiver is never called before this method returns.
        """
        before_path, after_path = backend.request_head
        if forwarded is not None:
            before_path, path, after_path = forwarded.merge_into(before_path + path + after_path), b"", b""
        parts: tuple[bytes, ...]
        if len(body) < MAX_INLINE_BODY_BYTES:
            parts = (b"%b%b%b%d\r\n%b\r\n%b" % (before_path, path, after_path, len(body), trace_context, body),)
        else:
            parts = (b"%b%b%b%d\r\n%b\r\n" % (before_path, path, after_path, len(body), trace_context), body)
        call = UpstreamCall(receiver, parts)
        idle_connections = self._idle_connections.get(backend.origin)
        while idle_connections:
            connection = idle_connections.pop()
            if connection.is_usable:
                if stream and connection.buffered_read is not None:  # limits the size of a read for a slow client
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
        port = origin.port
        try:
            if origin.local_model:
                port = await self._load_local_model(origin.local_model, call)
            started_at = time.monotonic()  # the time of the loop stands still within a turn
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._open_connection(origin, port)
        except ProviderFailed as error:
            call.fail_load(error)
        except TimeoutError:
            kind = "TLS connection" if origin.uses_tls else "connection"
            reason = ", as the name server is silent" if self._resolver.is_pending(_first_host(origin)) else ""
            call.fail(f"no {kind} to {_describe(origin)} within {self._connect_timeout:g} s{reason}", timed_out=True)
        except (OSError, ValueError) as error:  # ValueError: the host name cannot be encoded
            error.with_traceback(None)  # breaks a reference cycle through the frames and the connection
            reason = f"no connection to {_describe(origin)}: {type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno in NO_RESOURCES_ERRNOS:
                call.fail_socket(reason)
            else:
                call.fail(reason)
        else:
            call.connect_task = None
            if call.receiver is not None:
                call.receiver.on_connected(time.monotonic() - started_at)
            connection.start(call, reused=False)

    async def _load_local_model(self, name: str, call: UpstreamCall) -> int:
        if self.local_models is None:
            raise ProviderFailed(f"The local model {name} is not available.")
        call.awaits_load = True
        try:
            return await self.local_models.load(name)
        finally:
            call.awaits_load = False

    async def _open_connection(self, origin: UpstreamOrigin, port: int) -> UpstreamConnection:
        """Connect to the first address that responds. Raise the error of the last address if none accepts.

        With a proxy, the addresses are those of the proxy, which resolves the name of the provider itself.
        """
        addresses = await self._resolver.resolve(_first_host(origin))
        if not addresses:
            raise OSError("the host name has no address")
        if len(addresses) == 1:
            return await self._connect_to_address(origin, port, addresses[0])
        next_after = min(NEXT_ADDRESS_SECONDS, self._connect_timeout / len(addresses))
        return await self._race.connect(addresses, partial(self._connect_to_address, origin, port), next_after)

    async def _connect_to_address(self, origin: UpstreamOrigin, port: int, address: str) -> UpstreamConnection:
        connection = UpstreamConnection(self, origin)
        if not origin.uses_tls:
            buffered_read = BufferedRead(connection, self.buffer, self.read_scheduler)
            try:
                await self._create_connection(lambda: buffered_read, origin, address, port)
            except asyncio.CancelledError:
                if connection in self._connections:  # uvloop does not call `connection_lost` in this case
                    buffered_read.detach()
                raise
            return connection
        tls_transport = TlsTransport(
            self._get_ssl_context(), origin.host, connection, self.buffer, self.read_scheduler, self.io_batch
        )
        await self._create_connection(lambda: tls_transport, origin, address, port)
        try:
            await tls_transport.handshake_done
        except asyncio.CancelledError:
            tls_transport.abort()
            raise
        return connection

    async def _create_connection(
        self,
        protocol_factory: Callable[[], BufferedRead | TlsTransport],
        origin: UpstreamOrigin,
        address: str,
        port: int,
    ) -> None:
        """Connect a protocol to the origin, directly or through its proxy. `address` is that of the first hop."""
        if origin.proxy is None:
            await self._loop.create_connection(protocol_factory, address, port)  # type: ignore[type-var]
        else:
            await self._proxy_connector.connect(protocol_factory, origin, origin.proxy, address)

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
        """Register an open connection."""
        self._connections.add(connection)

    def remove(self, connection: UpstreamConnection) -> None:
        """Unregister a closed connection."""
        self._connections.discard(connection)
        idle = self._idle_connections.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def close_idle(self, now: float) -> None:
        """Close connections that have been idle for IDLE_CONNECTION_SECONDS. `now` is `time.monotonic()`."""
        self._swept_at = now
        for idle in self._idle_connections.values():
            while idle and now - idle[0].idle_since > IDLE_CONNECTION_SECONDS:
                idle.pop(0).close()

    def last_request_at(self, origin: UpstreamOrigin) -> float:
        """Return the time of the last request to an origin, to the second: now while one is in progress."""
        idle = self._idle_connections.get(origin, [])
        open_count = sum(connection.origin == origin for connection in self._connections)
        if open_count > len(idle):
            return time.monotonic()
        return max((connection.idle_since for connection in idle), default=-math.inf)

    def close_origin(self, origin: UpstreamOrigin) -> None:
        """Close the idle connections to an origin."""
        for connection in self._idle_connections.pop(origin, []):
            connection.close()

    async def close(self) -> None:
        """Close every connection, and cancel connection attempts and name lookups."""
        for task in list(self._connect_tasks):
            task.cancel()
        await asyncio.gather(*self._connect_tasks, return_exceptions=True)
        await self._resolver.close()
        for connection in list(self._connections):
            connection.close()
        self.stream_poller.close()
        await self._proxy_connector.close()


def _first_host(origin: UpstreamOrigin) -> str:
    """Return the host to which connections are made: that of the proxy, if there is one."""
    return origin.host if origin.proxy is None else origin.proxy.host


def _describe(origin: UpstreamOrigin) -> str:
    """Return host and port, with those of the proxy if there is one."""
    target = f"{origin.host}:{origin.port}"
    return target if origin.proxy is None else f"{target} through the proxy {origin.proxy.host}:{origin.proxy.port}"


def default_ssl_context() -> ssl.SSLContext:
    """Create a TLS context that verifies certificates and host names. It takes some ms, so call it at start.

    `SSL_CERT_FILE` replaces the system's certificate authorities. Without the arguments below, OpenSSL would
    also trust the system's directory, and ignore a file without certificates. Raises UsageError for such a file.
    """
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    try:
        context = create_client_context(cafile=file, capath=folder if file else None)
    except OSError as error:
        raise UsageError(f"SSL_CERT_FILE={file} contains no certificates in PEM format: {error}.") from error
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context
