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
from svc.registry.desk import Desk
from svc.registry.door import HEAD_SECONDS, MAX_HEAD, PATH, SMALL, Door
from svc.registry.heads import head_of, read_cached
from svc.registry.sending import Lanes, Transfer
from svc.registry.shelf import Item

IDLE_SECONDS = 75.0
"""A connection on which nothing was asked for so long, and at most twice as long, is closed."""

# There is one way only to match a line, else a head that fails at its end would be tried in 2^lines ways.
_HEAD = re.compile(rb"GET " + PATH + rb" HTTP/1\.1\r\n((?:[A-Za-z0-9-]{1,64}:[\x20-\x7e]*\r\n)*)\r\n")
_HEADERS = re.compile(rb"([^:]+): ?([^\r]*)\r\n")
_PLAIN = frozenset(
    b"host range if-range if-none-match authorization user-agent accept accept-encoding connection".split()
)
"""What may stand in the head of a request that is answered here; a header is there once."""
_STAYS = (b"", b"keep-alive", b"Keep-Alive")


class Front(asyncio.Protocol):
    """One connection. `options` are what uvicorn gives to a protocol."""

    def __init__(self, desk: Desk, lanes: Lanes, **options: Any) -> None:
        self._desk = desk
        self._lanes = lanes
        self._options = options
        self._connections: set[Any] = options["server_state"].connections
        self._loop: asyncio.AbstractEventLoop = lanes.loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._transfer: Transfer | None = None
        self._host = b""
        """The last one that was allowed."""
        self._asked = False
        """Something was, since the last look."""
        self._last = False
        """The server ends: so does the connection, with its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connections.add(self)
        self._timer = self._loop.call_later(HEAD_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
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
        self._last = True

    def _look(self) -> None:
        if self._transfer is None and not self._asked:
            self._transport.abort()  # whatever it has not read
            return
        self._asked = False
        self._timer = self._loop.call_later(IDLE_SECONDS, self._look)

    def _forget(self) -> None:
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._asked = True
        match = _HEAD.fullmatch(data) if len(data) <= MAX_HEAD else None
        if match is None or self._last or not self._answer(match):
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        self._forget()
        door = Door(self._desk, self._lanes, **self._options)
        self._transport.set_protocol(door)
        door.connection_made(self._transport)
        door.data_received(data)
        if self._last:
            door.shutdown()

    def _answer(self, match: re.Match[bytes]) -> bool:
        """False if nothing was done."""
        found = _HEADERS.findall(match[3])
        headers = {name.lower(): value for name, value in found}
        if len(headers) < len(found) or not headers.keys() <= _PLAIN or b"host" not in headers:
            return False
        if headers.get(b"connection", b"") not in _STAYS:
            return False
        if headers[b"host"] != self._host:
            if not self._desk.hosts.allows([headers[b"host"].decode()]):
                return False
            self._host = headers[b"host"]
        item = self._item(match[1].decode(), match[2].decode(), headers.get(b"authorization", b""))
        if item is None:
            return False
        part = ranges.choose(
            item.size,
            item.etag,
            range_=headers.get(b"range", b"").decode(),
            if_range=headers.get(b"if-range", b"").decode(),
            if_none_match=headers.get(b"if-none-match", b"").decode(),
        )
        return self._send(item, part)

    def _item(self, key: str, name: str, authorization: bytes) -> Item | None:
        desk = self._desk
        if not desk.store.on_disk or desk.accel is not None or name != f"{key.partition('/')[0]}.xyb":
            return None
        try:
            return desk.shelf.get(key) if desk.may_read_now(authorization.decode()) else None
        except SvcError:  # the door says so
            return None

    def _send(self, item: Item, part: ranges.Part) -> bool:
        head = head_of(self._desk, item, part, keep_alive=True)
        if part.end - part.start > SMALL:
            return self._send_large(item, part, head)
        data = read_cached(item, part)
        if data is None:
            return False
        self._transport.write(head + data)
        self._desk.counters.requests["GET", part.status] += 1
        self._desk.counters.bundle_bytes += len(data)
        return True

    def _send_large(self, item: Item, part: ranges.Part, head: bytes) -> bool:
        if self._transport.get_write_buffer_size():  # earlier answers have to leave first
            return False
        sock = self._transport.get_extra_info("socket")
        try:
            transfer = Transfer(self._lanes, sock, item, (part.start, part.end), head, self._sent)
            transfer.start()
        except OSError:
            self._transport.abort()
            return True
        self._transport.pause_reading()
        self._transfer = transfer
        self._desk.counters.requests["GET", part.status] += 1
        self._desk.counters.bundle_bytes += part.end - part.start
        return True

    def _sent(self, whole: bool) -> None:
        self._transfer, self._asked = None, True
        if not whole:
            self._transport.abort()
        elif self._last:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.resume_reading()
