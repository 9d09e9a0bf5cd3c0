"""A client connection of the registry: uvicorn's HTTP/1.1 protocol, except for `GET` and `HEAD` of bundles.

Those requests do not reach the application. The connection sends small ranges in one write, and large ranges with
sendfile(2) (`sendfile.py`). It closes if a request head is slow or too large.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from svc.errors import BundleNotFound, InternalError, InvalidRequest, SvcError
from svc.registry import ranges
from svc.registry.cors import encode_cors_headers
from svc.registry.metrics import OTHER_METHOD
from svc.registry.open_files import OpenFile
from svc.registry.operations import RegistryOperation, describe_request
from svc.registry.response_head import encode_response_head, read_cached
from svc.registry.sendfile import STALL_TIMEOUT_SECONDS, SendThreadPool, Transfer
from svc.registry.service import RegistryService
from svc.registry.traces import RegistrySpan, RegistryTracer
from svc.wire.error import encode_error_body
from svc.wire.request_line import RequestLineChecker

log = logging.getLogger("svc.registry")

MAX_SINGLE_WRITE_BYTES = 64 * 1024
"""Maximum length of a range that is read into memory and sent with its head in one write."""
REGISTRY_MAX_HEAD_BYTES = 32 * 1024
REGISTRY_HEAD_TIMEOUT_SECONDS = 20.0
REGISTRY_MAX_PIPELINED_REQUESTS = 2048
"""Maximum requests that wait for the response of an earlier request."""

_BUNDLE_PATH = re.compile(
    rb"/bundles/({0}/{0}/{0})/({0})(?:\?[\x21-\x7e]*)?".replace(b"{0}", rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
)


class _ResponseCycle:
    """The state of a response, with the attributes that uvicorn's protocol reads."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False
        self.more_body = False
        self.body = bytearray()
        self.message_event = asyncio.Event()


class RegistryConnection(HttpToolsProtocol):
    """One client connection. `options` are those of uvicorn's protocol."""

    def __init__(self, service: RegistryService, send_pool: SendThreadPool, **options: Any) -> None:
        super().__init__(**options)
        self._service = service
        self._send_pool = send_pool
        self._transfer: Transfer | None = None
        self._response_cycle = _ResponseCycle(True)
        """The cycle of the last response of this class. `cycle` is that of the last request, which may be pipelined."""
        self._reading_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._half_closed = False
        self._request_lines = RequestLineChecker()
        self._between_requests = True
        """True if the last read ended between two requests."""
        self._span: RegistrySpan | None = None
        """The span of the current response of this class, if it is sampled."""
        self._operation: RegistryOperation = "download"
        self._started_at = 0.0
        """When the request of the current response arrived, in seconds of the monotonic clock."""
        self._request_error: InvalidRequest | None = None
        """Why this class rejected the request. None if the parser rejected it."""

    # connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading_head = True
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        if self._transfer is not None:
            self._transfer.stop()
        if self._span is not None:
            self._span.finish(is_complete=False)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a half-closed connection open until the current response is complete."""
        self._half_closed = True
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        self._request_lines.add(
            data,
            is_between_requests=self._between_requests,
            is_in_head=self._reading_head and not self._between_requests,
        )
        super().data_received(data)
        if not self._reading_head or self._between_requests:
            self._request_lines.clear()
        if self._reading_head and self.parser is not None:
            if self._head_bytes > REGISTRY_MAX_HEAD_BYTES:
                self.transport.abort()
            elif self._head_timer is None:
                self._start_head_timer()

    def on_message_begin(self) -> None:
        self._reading_head = True
        self._between_requests = False
        self._head_bytes = 0  # the bytes so far were a body
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._between_requests = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject a malformed request with an error in the gateway's format."""
        self._service.counters.requests[OTHER_METHOD, 400] += 1
        body = encode_error_body(self._request_error or InvalidRequest(msg))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n%b\r\n%b" % (len(body), self._service.date_header_line(), body)
        )
        self.transport.close()

    def _validate_request(self) -> None:
        """Raise InvalidRequest for a malformed request line, or for more than one key."""
        if not self._request_lines.matches(self.parser.get_method(), self.url, self.parser.get_http_version()):
            self._request_error = InvalidRequest(
                "The request line must be 'METHOD TARGET HTTP/1.1' with single spaces."
            )
        elif sum(name == b"authorization" for name, _ in self.headers) > 1:
            self._request_error = InvalidRequest("The request has more than one Authorization header.")
        if self._request_error is not None:
            raise self._request_error

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(REGISTRY_HEAD_TIMEOUT_SECONDS, self.transport.abort)

    def _stop_head_timer(self) -> None:
        self._reading_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # backpressure: while a client does not read, its requests are not read either

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()
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
        """Abort instead of closing: a close would wait for a client that does not read."""
        self.transport.abort()

    def _start_stall_timer(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_SECONDS, self._check_stalled)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _check_stalled(self) -> None:
        if self.transport.get_write_buffer_size() == self._unread_bytes:
            self.transport.abort()
        else:
            self._start_stall_timer()

    # bundles

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        if len(self.pipeline) >= REGISTRY_MAX_PIPELINED_REQUESTS:
            self.transport.abort()
        if self.transport.is_closing():
            return
        self._validate_request()
        method = self.parser.get_method()
        idle = self.cycle is None or self.cycle.response_complete
        # Otherwise uvicorn queues the request, so that responses to a client that does not read cannot accumulate.
        can_send_file = idle and not self.flow.write_paused and self._service.store.is_on_disk
        if can_send_file and method in (b"GET", b"HEAD") and (match := _BUNDLE_PATH.fullmatch(self.url)):
            headers = dict(self.headers)
            if b"content-length" not in headers and b"transfer-encoding" not in headers:
                self._respond(method == b"HEAD", match[1].decode(), match[2].decode(), headers)
                return
        super().on_headers_complete()

    def _respond(self, head_only: bool, key: str, file_name: str, headers: dict[bytes, bytes]) -> None:
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self._response_cycle = self.cycle = _ResponseCycle(keep_alive)  # type: ignore[assignment]
        self._operation, self._started_at = "head" if head_only else "download", time.monotonic()
        if self._service.tracer is not None:
            self._start_span(self._service.tracer, "HEAD" if head_only else "GET")
        try:
            authorized = self._service.try_authorize_read(_header_text(headers, b"authorization"))
            authorized = authorized and self._service.hosts.allows(self._host_headers())
            if file_name != f"{key.partition('/')[0]}.xyb":
                raise BundleNotFound(f"There is no file {file_name[:80]} here.")
        except SvcError as error:
            self._send_error(error, head_only, headers)
            return
        file = self._service.open_files.get(key) if authorized else None
        if file is not None:
            self._send_bundle(file, head_only, headers)
        else:
            self._run_task(self._open_and_send(head_only, key, headers, self._host_headers()))

    def _start_span(self, tracer: RegistryTracer, method: str) -> None:
        path = self.url.partition(b"?")[0].decode("ascii", "replace")
        address = self.client[0] if self.client else None
        self._span = tracer.start(method, path, describe_request(method, path), self.headers, address)

    def _run_task(self, coroutine: Any) -> None:
        self.flow.pause_reading()
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _host_headers(self) -> list[str]:
        return [value.decode("latin-1") for name, value in self.headers if name == b"host"]

    async def _open_and_send(self, head_only: bool, key: str, headers: dict[bytes, bytes], hosts: list[str]) -> None:
        try:
            await self._service.authorize_read(_header_text(headers, b"authorization"))
            await self._service.check_host(hosts, _header_text(headers, b"authorization"))
            file = await self._service.get_open_file(key)
        except SvcError as error:
            self._send_error(error, head_only, headers)
            return
        except Exception:  # task boundary: without it, the client would wait forever
            log.exception("an error while opening %s", key)
            self._send_error(InternalError("Internal error; see the log of the registry."), head_only, headers)
            return
        if not self.transport.is_closing():
            self._send_bundle(file, head_only, headers)

    def _send_bundle(self, file: OpenFile, head_only: bool, headers: dict[bytes, bytes]) -> None:
        byte_range = ranges.select_range(
            file.size,
            file.etag,
            range_="" if head_only else _header_text(headers, b"range"),
            if_range=_header_text(headers, b"if-range"),
            if_none_match=_header_text(headers, b"if-none-match"),
        )
        head = encode_response_head(
            self._service,
            file,
            byte_range,
            keep_alive=self._response_cycle.keep_alive,
            origin=_header_text(headers, b"origin"),
        )
        length = byte_range.end - byte_range.start
        counters = self._service.counters
        counters.requests["HEAD" if head_only else "GET", byte_range.status] += 1
        counters.bundle_bytes += 0 if head_only else length
        if self._span is not None:
            self._span.http_status, self._span.response_bytes = byte_range.status, 0 if head_only else length
        if head_only or length == 0 or self._service.accel_prefix is not None:
            self._write(head)
        elif length <= MAX_SINGLE_WRITE_BYTES:
            self._send_small(file, byte_range, head)
        else:
            self.flow.pause_reading()
            if self.transport.get_write_buffer_size():
                self._run_task(self._send_after_flush(file, byte_range, head))
            else:
                self._start_transfer(file, byte_range, head)

    def _send_small(self, file: OpenFile, byte_range: ranges.ByteRange, head: bytes) -> None:
        data = read_cached(file, byte_range)
        if data is not None:
            self._write(head + data)
        else:  # reading from the disk could block, so a thread does it
            self._run_task(self._send_uncached(file, byte_range, head))

    async def _send_uncached(self, file: OpenFile, byte_range: ranges.ByteRange, head: bytes) -> None:
        try:
            data = await asyncio.to_thread(os.pread, file.fd, byte_range.end - byte_range.start, byte_range.start)
        except OSError:
            data = b""
        if len(data) == byte_range.end - byte_range.start:
            self._write(head + data)
        else:
            self.transport.abort()

    async def _send_after_flush(self, file: OpenFile, byte_range: ranges.ByteRange, head: bytes) -> None:
        """Start the transfer after the write buffer is empty. It rarely has data: only after pipelined requests."""
        try:
            async with asyncio.timeout(STALL_TIMEOUT_SECONDS):
                while self.transport.get_write_buffer_size():  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        except TimeoutError:
            self.transport.abort()
        else:
            self._start_transfer(file, byte_range, head)

    def _start_transfer(self, file: OpenFile, byte_range: ranges.ByteRange, head: bytes) -> None:
        if self.transport.is_closing():
            return
        sock = self.transport.get_extra_info("socket")
        try:
            transfer = Transfer(
                self._send_pool, sock, file, (byte_range.start, byte_range.end), head, self._on_transfer_end
            )
            transfer.start()
        except OSError:
            self.transport.abort()
        else:
            self._transfer = transfer

    def _on_transfer_end(self, complete: bool) -> None:
        self._transfer = None
        if not complete:
            self.transport.abort()
        elif not self.transport.is_closing():
            self._complete_response()

    def _send_error(self, error: SvcError, head_only: bool, headers: dict[bytes, bytes]) -> None:
        self._service.counters.requests["HEAD" if head_only else "GET", error.status] += 1
        body = encode_error_body(error)
        if self._span is not None:
            self._span.http_status, self._span.code, self._span.response_bytes = error.status, error.code, len(body)
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"connection: {'keep-alive' if self._response_cycle.keep_alive else 'close'}\r\n"
        ) + "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        cors = encode_cors_headers(_header_text(headers, b"origin"), self._service.cors_origins)
        self._write(head.encode() + cors + self._service.date_header_line() + b"\r\n" + (b"" if head_only else body))

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)
            self._complete_response()

    def _complete_response(self) -> None:
        self._response_cycle.response_complete = True
        self._service.counters.record_duration(self._operation, time.monotonic() - self._started_at)
        if self._span is not None:
            self._span.finish()
            self._span = None
        if not self._response_cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()


def _header_text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
