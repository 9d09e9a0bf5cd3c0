"""A connection of the registry that brought more than plain requests: uvicorn's protocol, but for `GET` and `HEAD` of
bundles.

Those never reach the application. They are answered here: small parts in one write, large ones by `sending`. Heads
that are slow or too large end the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from svc.errors import BundleNotFound, InternalError, InvalidRequest, SvcError
from svc.registry import ranges
from svc.registry.desk import Desk
from svc.registry.heads import head_of, read_cached
from svc.registry.metrics import OTHER
from svc.registry.sending import STALLED_SECONDS, Lanes, Transfer
from svc.registry.shelf import Item
from svc.request_line import RequestLines
from svc.wire.problem import encode_problem

log = logging.getLogger("svc.registry")

SMALL = 64 * 1024
"""Bytes that are read at once and written in one piece."""
MAX_HEAD = 32 * 1024
HEAD_SECONDS = 20.0
MOST_IN_ADVANCE = 2048
"""Requests that may wait for the answers before theirs."""

PATH = rb"/bundles/({0}/{0}/{0})/({0})(?:\?[\x21-\x7e]*)?".replace(b"{0}", rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH = re.compile(PATH)


class _Cycle:
    """What uvicorn's protocol wants to know of an answer under way."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False
        self.more_body = False
        self.body = bytearray()
        self.message_event = asyncio.Event()


class Door(HttpToolsProtocol):
    """One connection. `options` are uvicorn's."""

    def __init__(self, desk: Desk, lanes: Lanes, **options: Any) -> None:
        super().__init__(**options)
        self._desk = desk
        self._lanes = lanes
        self._transfer: Transfer | None = None
        self._own = _Cycle(True)
        """Of the latest answer from here; `cycle` is the latest request's, which may have been sent in advance."""
        self._heading = False
        self._head_size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._unread_timer: asyncio.TimerHandle | None = None
        self._half_closed = False
        self._lines = RequestLines()
        self._between = True
        """The last read ended between two requests."""
        self._refusal: InvalidRequest | None = None
        """Why the request is refused, if it was not the parser that did."""

    # connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heading = True
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._stop_watch()
        if self._transfer is not None:
            self._transfer.stop()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Who has asked, and will ask no more, still gets the answer."""
        self._half_closed = True
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        self._head_size += len(data)
        self._lines.add(data, between=self._between, in_head=self._heading and not self._between)
        super().data_received(data)
        if not self._heading or self._between:
            self._lines.clear()
        if self._heading and self.parser is not None:
            if self._head_size > MAX_HEAD:
                self.transport.abort()
            elif self._timer is None:
                self._expect_head()

    def on_message_begin(self) -> None:
        self._heading = True
        self._between = False
        self._head_size = 0  # up to here it was a body
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """A request that cannot be read is refused in our own shape."""
        self._desk.counters.requests[OTHER, 400] += 1
        body = encode_problem(self._refusal or InvalidRequest(msg))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n%b\r\n%b" % (len(body), self._desk.date_line(), body)
        )
        self.transport.close()

    def _check_form(self) -> None:
        """Raises InvalidRequest for a request line of another form, and for two keys."""
        if not self._lines.has(self.parser.get_method(), self.url, self.parser.get_http_version()):
            self._refusal = InvalidRequest("The request line is not 'METHOD TARGET HTTP/1.1' with single spaces.")
        elif sum(name == b"authorization" for name, _ in self.headers) > 1:
            self._refusal = InvalidRequest("The request has more than one Authorization header.")
        if self._refusal is not None:
            raise self._refusal

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_is_there(self) -> None:
        self._heading = False
        self._head_size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # a client that does not read gets no more, and is asked for no more

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watch()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._half_closed and self.cycle.response_complete:
            self.transport.close()
        elif self.pipeline or self.flow.write_paused:
            self.flow.pause_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Nor is it waited for, whatever it has not read."""
        self.transport.abort()

    def _watch(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(STALLED_SECONDS, self._has_it_read)

    def _stop_watch(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _has_it_read(self) -> None:
        if self.transport.get_write_buffer_size() == self._unread:
            self.transport.abort()
        else:
            self._watch()

    # bundles

    def on_headers_complete(self) -> None:
        self._head_is_there()
        if len(self.pipeline) >= MOST_IN_ADVANCE:
            self.transport.abort()
        if self.transport.is_closing():
            return
        self._check_form()
        method = self.parser.get_method()
        idle = self.cycle is None or self.cycle.response_complete
        # Whoever does not read its answers has to wait, as uvicorn sees to it: else they would pile up here.
        files = idle and not self.flow.write_paused and self._desk.store.on_disk
        if files and method in (b"GET", b"HEAD") and (match := _PATH.fullmatch(self.url)):
            headers = dict(self.headers)
            if b"content-length" not in headers and b"transfer-encoding" not in headers:
                self._answer(method == b"HEAD", match[1].decode(), match[2].decode(), headers)
                return
        super().on_headers_complete()

    def _answer(self, bare: bool, key: str, name: str, headers: dict[bytes, bytes]) -> None:
        keep = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self._own = self.cycle = _Cycle(keep)  # type: ignore[assignment]
        try:
            admitted = self._desk.may_read_now(_text(headers, b"authorization"))
            admitted = admitted and self._desk.hosts.allows(self._hosts())
            if name != f"{key.partition('/')[0]}.xyb":
                raise BundleNotFound(f"There is no file {name[:80]} here.")
        except SvcError as error:
            self._refuse(error, bare)
            return
        item = self._desk.shelf.get(key) if admitted else None
        if item is not None:
            self._serve(item, bare, headers)
        else:
            self._in_task(self._fetch(bare, key, headers, self._hosts()))

    def _in_task(self, work: Any) -> None:
        self.flow.pause_reading()
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _hosts(self) -> list[str]:
        return [value.decode("latin-1") for name, value in self.headers if name == b"host"]

    async def _fetch(self, bare: bool, key: str, headers: dict[bytes, bytes], hosts: list[str]) -> None:
        try:
            await self._desk.may_read(_text(headers, b"authorization"))
            await self._desk.check_host(hosts, _text(headers, b"authorization"))
            item = await self._desk.item(key)
        except SvcError as error:
            self._refuse(error, bare)
            return
        except Exception:  # the edge: without it the client would wait for an answer that nobody gives
            log.exception("a fault while opening %s", key)
            self._refuse(InternalError("Something went wrong here; the log has it."), bare)
            return
        if not self.transport.is_closing():
            self._serve(item, bare, headers)

    def _serve(self, item: Item, bare: bool, headers: dict[bytes, bytes]) -> None:
        part = ranges.choose(
            item.size,
            item.etag,
            range_="" if bare else _text(headers, b"range"),
            if_range=_text(headers, b"if-range"),
            if_none_match=_text(headers, b"if-none-match"),
        )
        head = head_of(self._desk, item, part, keep_alive=self._own.keep_alive)
        length = part.end - part.start
        counters = self._desk.counters
        counters.requests["HEAD" if bare else "GET", part.status] += 1
        counters.bundle_bytes += 0 if bare else length
        if bare or length == 0 or self._desk.accel is not None:
            self._write(head)
        elif length <= SMALL:
            self._send_small(item, part, head)
        else:
            self.flow.pause_reading()
            if self.transport.get_write_buffer_size():
                self._in_task(self._send_later(item, part, head))
            else:
                self._send(item, part, head)

    def _send_small(self, item: Item, part: ranges.Part, head: bytes) -> None:
        data = read_cached(item, part)
        if data is not None:
            self._write(head + data)
        else:  # the disk is asked in a thread
            self._in_task(self._send_cold(item, part, head))

    async def _send_cold(self, item: Item, part: ranges.Part, head: bytes) -> None:
        try:
            data = await asyncio.to_thread(os.pread, item.fd, part.end - part.start, part.start)
        except OSError:
            data = b""
        if len(data) == part.end - part.start:
            self._write(head + data)
        else:
            self.transport.abort()

    async def _send_later(self, item: Item, part: ranges.Part, head: bytes) -> None:
        """What was written before has to leave first. Hardly ever: several answers that were asked for at once."""
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                while self.transport.get_write_buffer_size():  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        except TimeoutError:
            self.transport.abort()
        else:
            self._send(item, part, head)

    def _send(self, item: Item, part: ranges.Part, head: bytes) -> None:
        if self.transport.is_closing():
            return
        sock = self.transport.get_extra_info("socket")
        try:
            transfer = Transfer(self._lanes, sock, item, (part.start, part.end), head, self._sent)
            transfer.start()
        except OSError:
            self.transport.abort()
        else:
            self._transfer = transfer

    def _sent(self, whole: bool) -> None:
        self._transfer = None
        if not whole:
            self.transport.abort()
        elif not self.transport.is_closing():
            self._done()

    def _refuse(self, error: SvcError, bare: bool) -> None:
        self._desk.counters.requests["HEAD" if bare else "GET", error.status] += 1
        body = encode_problem(error)
        head = (
            f"HTTP/1.1 {error.status} {type(error).__name__}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: {'keep-alive' if self._own.keep_alive else 'close'}\r\n"
        ) + "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        self._write(head.encode() + self._desk.date_line() + b"\r\n" + (b"" if bare else body))

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)
            self._done()

    def _done(self) -> None:
        self._own.response_complete = True
        if not self._own.keep_alive:
            self.transport.close()
        self.on_response_complete()


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
