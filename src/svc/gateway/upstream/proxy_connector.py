"""Connects the protocol of an upstream connection through an HTTP proxy.

plain HTTP:  the requests themselves name the provider, see `backends.build_request_head`
TLS:         CONNECT, then TLS with the provider through the tunnel
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from svc.gateway.net.proxy_tunnel import TlsProxyRelay, open_tunnel
from svc.gateway.net.read_mode import BufferedRead
from svc.gateway.net.tls import TlsTransport
from svc.gateway.routing.outbound_proxy import OutboundProxy
from svc.gateway.routing.providers import UpstreamOrigin


class ProxyConnector:
    """Opens connections through proxies, and owns the relays of proxies that speak TLS."""

    def __init__(self, get_ssl_context: Callable[[], ssl.SSLContext]) -> None:
        self._get_ssl_context = get_ssl_context
        self._relays: set[asyncio.Task[None]] = set()

    async def connect(
        self,
        protocol_factory: Callable[[], BufferedRead | TlsTransport],
        origin: UpstreamOrigin,
        proxy: OutboundProxy,
        address: str,
    ) -> None:
        """Connect a protocol to `origin` through the proxy at `address`. Raises OSError."""
        loop = asyncio.get_running_loop()
        proxy_socket = await (self._relay_tls if proxy.uses_tls else self._open_plain)(origin, proxy, address)
        try:
            if proxy.uses_tls:
                await loop.create_unix_connection(protocol_factory, sock=proxy_socket)  # type: ignore[type-var]
            else:
                await loop.create_connection(protocol_factory, sock=proxy_socket)  # type: ignore[type-var]
        except BaseException:
            proxy_socket.close()
            raise

    async def _open_plain(self, origin: UpstreamOrigin, proxy: OutboundProxy, address: str) -> socket.socket:
        """Return a socket that is connected to the proxy, and for TLS through it to the provider."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        proxy_socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            proxy_socket.setblocking(False)
            proxy_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(proxy_socket, (address, proxy.port))
            if origin.uses_tls:
                await open_tunnel(proxy_socket, origin.host, origin.port, proxy.authorization)
        except BaseException:
            proxy_socket.close()
            raise
        return proxy_socket

    async def _relay_tls(self, origin: UpstreamOrigin, proxy: OutboundProxy, address: str) -> socket.socket:
        """Return a local socket that a relay connects to the proxy over TLS."""
        reader, writer = await asyncio.open_connection(
            address, proxy.port, ssl=self._get_ssl_context(), server_hostname=proxy.host
        )
        relay = TlsProxyRelay(reader, writer)
        try:
            if origin.uses_tls:
                await relay.open_tunnel(origin.host, origin.port, proxy.authorization)
        except BaseException:
            relay.close()
            raise
        local_socket, task = relay.start()
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        return local_socket

    async def close(self) -> None:
        """End all relays."""
        for task in list(self._relays):
            task.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
