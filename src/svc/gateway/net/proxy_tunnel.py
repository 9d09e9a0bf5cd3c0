"""Opens a tunnel through an HTTP proxy with CONNECT (RFC 9110, section 9.3.6).

gateway ── CONNECT api.example.com:443 ──> proxy ──> api.example.com
        <── 200 ───────────────────────────
The connection then carries the bytes of both sides unchanged.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

MAX_CONNECT_RESPONSE_BYTES: Final = 16 * 1024
"""Maximum bytes of the head of a proxy's response to CONNECT."""
RELAY_BYTES: Final = 64 * 1024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r]")
_HEAD_END: Final = b"\r\n\r\n"


class ProxyFailed(OSError):
    """The proxy did not open a tunnel. The message has no credentials."""


async def open_tunnel(proxy_socket: socket.socket, host: str, port: int, authorization: str) -> None:
    """Ask the proxy at the other end of a connected, non-blocking socket for a tunnel to `host`.

    Raises ProxyFailed if the proxy refuses, and OSError if the connection breaks. The caller limits the time.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(proxy_socket, encode_connect(host, port, authorization))
    await read_connect_response(lambda count: loop.sock_recv(proxy_socket, count))


class TlsProxyRelay:
    """Relays one connection to a proxy that speaks TLS. A socket on this machine carries the plaintext.

    The gateway reads providers with its own TLS, which needs a socket below it. Call `close` when it is not needed.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._task: asyncio.Task[None] | None = None

    async def open_tunnel(self, host: str, port: int, authorization: str) -> None:
        """Ask the proxy for a tunnel, as `proxy_tunnel.open_tunnel` does."""
        self._writer.write(encode_connect(host, port, authorization))
        await self._writer.drain()
        await read_connect_response(self._reader.read)

    def start(self) -> tuple[socket.socket, asyncio.Task[None]]:
        """Return the socket with the plaintext, and the task that relays until either side closes."""
        local_socket, relay_socket = socket.socketpair()
        local_socket.setblocking(False)
        relay_socket.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._relay(relay_socket))
        return local_socket, task

    async def _relay(self, relay_socket: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        async def send() -> None:
            while data := await loop.sock_recv(relay_socket, RELAY_BYTES):
                self._writer.write(data)
                await self._writer.drain()

        async def receive() -> None:
            while data := await self._reader.read(RELAY_BYTES):
                await loop.sock_sendall(relay_socket, data)

        tasks = [loop.create_task(send()), loop.create_task(receive())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            relay_socket.close()
            self.close()

    def close(self) -> None:
        """Close the connection to the proxy at once."""
        self._writer.transport.abort()


def encode_connect(host: str, port: int, authorization: str) -> bytes:
    """Return a CONNECT request."""
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"host: {authority}", "user-agent: svc"]
    if authorization:
        lines.append(f"proxy-authorization: {authorization}")
    return "\r\n".join([*lines, "\r\n"]).encode("ascii")


async def read_connect_response(read: Callable[[int], Awaitable[bytes]]) -> None:
    """Read the head of the response. Raises ProxyFailed unless its status is 2xx.

    The provider sends nothing before the gateway does, so that no data may follow the head.
    """
    head = b""
    while _HEAD_END not in head:
        if len(head) > MAX_CONNECT_RESPONSE_BYTES:
            raise ProxyFailed(
                f"the proxy's response to CONNECT is larger than {MAX_CONNECT_RESPONSE_BYTES // 1024} KiB"
            )
        data = await read(4096)
        if not data:
            raise ProxyFailed("the proxy closed the connection instead of opening a tunnel")
        head += data
        if not b"HTTP/1.".startswith(head[:7]):
            raise ProxyFailed("the proxy's response to CONNECT is not HTTP")
    status = _STATUS_LINE.match(head)
    code = int(status[1]) if status is not None else 0
    if code in (401, 407):  # Tinyproxy sends 401 for a wrong password
        raise ProxyFailed(f"the proxy rejected the credentials, or needs some (status {code})")
    if not 200 <= code < 300:
        raise ProxyFailed(
            f"the proxy refused the tunnel (status {code})" if code else "the proxy's response is not HTTP"
        )
    if not head.endswith(_HEAD_END):
        raise ProxyFailed("the proxy sent data before the tunnel was used")
