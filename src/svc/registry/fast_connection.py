"""A connection of the registry until it brings anything but a plain `GET` of an open bundle: then it is a `Door`'s.

Here a request is one look at its head. What is unusual in any way (a method, a header, a head in two pieces, a body, a
refusal, a file that is not open yet) is handed over with every byte of it, and the connection stays with the door.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from svc.errors import SvcError
from svc.registry import ranges
from svc.registry.connection import (
    BUNDLE_PATH_PATTERN,
    MAX_SINGLE_WRITE_BYTES,
    REGISTRY_HEAD_TIMEOUT_SECONDS,
    REGISTRY_MAX_HEAD_BYTES,
    RegistryConnection,
)
from svc.registry.open_files import OpenFile
from svc.registry.response_head import encode_response_head, read_cached
from svc.registry.sendfile import SendThreadPool, Transfer
from svc.registry.service import RegistryService

REGISTRY_IDLE_TIMEOUT_SECONDS = 75.0
"""A connection on which nothing was asked for so long, and at most twice as long, is closed."""

# There is one way only to match a line, else a head that fails at its end would be tried in 2^lines ways.
_PLAIN_GET = re.compile(
    rb"GET " + BUNDLE_PATH_PATTERN + rb" HTTP/1\.1\r\n((?:[A-Za-z0-9-]{1,64}:[\x20-\x7e]*\r\n)*)\r\n"
)
_HEADER_LINE = re.compile(rb"([^:]+): ?([^\r]*)\r\n")
_PLAIN_HEADERS = frozenset(
    b"host range if-range if-none-match authorization user-agent accept accept-encoding connection".split()
)
"""What may stand in the head of a request that is answered here; a header is there once."""
_KEEP_ALIVE_VALUES = (b"", b"keep-alive", b"Keep-Alive")


class FastConnection(asyncio.Protocol):
    """One connection. `options` are what uvicorn gives to a protocol."""

    def __init__(self, service: RegistryService, send_pool: SendThreadPool, **options: Any) -> None:
        self._service = service
        self._send_pool = send_pool
        self._options = options
        self._connections: set[Any] = options["server_state"].connections
        self._loop: asyncio.AbstractEventLoop = send_pool.loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._transfer: Transfer | None = None
        self._allowed_host = b""
        """The last one that was allowed."""
        self._active = False
        """Something was, since the last look."""
        self._closing = False
        """The server ends: so does the connection, with its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connections.add(self)
        self._timer = self._loop.call_later(REGISTRY_HEAD_TIMEOUT_SECONDS, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deregister()
        if self._transfer is not None:
            self._transfer.stop()

    def pause_writing(self) -> None:
        """Whoever does not read its answers is not heard: they would pile up here."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends."""
        if self._transfer is None:
            self._transport.close()
        self._closing = True

    def _check_idle(self) -> None:
        if self._transfer is None and not self._active:
            self._transport.abort()  # whatever it has not read
            return
        self._active = False
        self._timer = self._loop.call_later(REGISTRY_IDLE_TIMEOUT_SECONDS, self._check_idle)

    def _deregister(self) -> None:
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._active = True
        match = _PLAIN_GET.fullmatch(data) if len(data) <= REGISTRY_MAX_HEAD_BYTES else None
        if match is None or self._closing or not self._try_respond(match):
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        self._deregister()
        connection = RegistryConnection(self._service, self._send_pool, **self._options)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        connection.data_received(data)
        if self._closing:
            connection.shutdown()

    def _try_respond(self, match: re.Match[bytes]) -> bool:
        """False if nothing was done."""
        header_lines = _HEADER_LINE.findall(match[3])
        headers = {name.lower(): value for name, value in header_lines}
        if len(headers) < len(header_lines) or not headers.keys() <= _PLAIN_HEADERS or b"host" not in headers:
            return False
        if headers.get(b"connection", b"") not in _KEEP_ALIVE_VALUES:
            return False
        if headers[b"host"] != self._allowed_host:
            if not self._service.hosts.allows([headers[b"host"].decode()]):
                return False
            self._allowed_host = headers[b"host"]
        file = self._find_open_file(match[1].decode(), match[2].decode(), headers.get(b"authorization", b""))
        if file is None:
            return False
        byte_range = ranges.select_range(
            file.size,
            file.etag,
            range_=headers.get(b"range", b"").decode(),
            if_range=headers.get(b"if-range", b"").decode(),
            if_none_match=headers.get(b"if-none-match", b"").decode(),
        )
        return self._send(file, byte_range)

    def _find_open_file(self, key: str, file_name: str, authorization: bytes) -> OpenFile | None:
        service = self._service
        if (
            not service.store.is_on_disk
            or service.accel_prefix is not None
            or file_name != f"{key.partition('/')[0]}.xyb"
        ):
            return None
        try:
            return service.open_files.get(key) if service.try_authorize_read(authorization.decode()) else None
        except SvcError:  # the door says so
            return None

    def _send(self, file: OpenFile, byte_range: ranges.ByteRange) -> bool:
        head = encode_response_head(self._service, file, byte_range, keep_alive=True)
        if byte_range.end - byte_range.start > MAX_SINGLE_WRITE_BYTES:
            return self._send_large(file, byte_range, head)
        data = read_cached(file, byte_range)
        if data is None:
            return False
        self._transport.write(head + data)
        self._service.counters.requests["GET", byte_range.status] += 1
        self._service.counters.bundle_bytes += len(data)
        return True

    def _send_large(self, file: OpenFile, byte_range: ranges.ByteRange, head: bytes) -> bool:
        if self._transport.get_write_buffer_size():  # earlier answers have to leave first
            return False
        sock = self._transport.get_extra_info("socket")
        try:
            transfer = Transfer(
                self._send_pool, sock, file, (byte_range.start, byte_range.end), head, self._on_transfer_end
            )
            transfer.start()
        except OSError:
            self._transport.abort()
            return True
        self._transport.pause_reading()
        self._transfer = transfer
        self._service.counters.requests["GET", byte_range.status] += 1
        self._service.counters.bundle_bytes += byte_range.end - byte_range.start
        return True

    def _on_transfer_end(self, complete: bool) -> None:
        self._transfer, self._active = None, True
        if not complete:
            self._transport.abort()
        elif self._closing:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.resume_reading()
