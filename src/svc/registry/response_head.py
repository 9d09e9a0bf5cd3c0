"""Encode the response head of a bundle download as bytes for the socket."""

from __future__ import annotations

import os
from urllib.parse import quote

from svc.registry.cors import encode_cors_headers
from svc.registry.open_files import OpenFile
from svc.registry.ranges import ByteRange
from svc.registry.service import RegistryService

_BUNDLE_STATUS_LINES = {
    200: b"HTTP/1.1 200 OK\r\n",
    206: b"HTTP/1.1 206 Partial Content\r\n",
    304: b"HTTP/1.1 304 Not Modified\r\n",
    416: b"HTTP/1.1 416 Range Not Satisfiable\r\n",
}


def encode_response_head(
    service: RegistryService, file: OpenFile, byte_range: ByteRange, *, keep_alive: bool, origin: str
) -> bytes:
    """Return the status line, all headers and the empty line. `origin` is that of the web page, if there is one."""
    lines = [
        _BUNDLE_STATUS_LINES[byte_range.status],
        file.cached_headers or _encode_cached_headers(service, file),
        encode_cors_headers(origin, service.cors_origins),
    ]
    if byte_range.status in (200, 206):
        length = byte_range.end - byte_range.start if service.accel_prefix is None else 0
        lines.append(b"content-type: application/octet-stream\r\ncontent-length: %d\r\n" % length)
        if service.accel_prefix is not None:
            lines.append(f"x-accel-redirect: {service.accel_prefix}{quote(file.relative_path)}\r\n".encode())
    if byte_range.status == 206:
        lines.append(b"content-range: bytes %d-%d/%d\r\n" % (byte_range.start, byte_range.end - 1, file.size))
    elif byte_range.status == 416:
        lines.append(b"content-range: bytes */%d\r\ncontent-length: 0\r\n" % file.size)
    lines.append(service.date_header_line())
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _encode_cached_headers(service: RegistryService, file: OpenFile) -> bytes:
    scope = "private" if service.is_private else "public"
    file.cached_headers = (
        f"etag: {file.etag}\r\naccept-ranges: bytes\r\ncache-control: {scope}, max-age=31536000, immutable\r\n"
    ).encode()
    return file.cached_headers


def read_cached(file: OpenFile, byte_range: ByteRange) -> bytes | bytearray | None:
    """Return the range if it is in the page cache. Never waits for a disk."""
    length = byte_range.end - byte_range.start
    data = bytearray(length)
    try:
        done = os.preadv(file.fd, [data], byte_range.start, getattr(os, "RWF_NOWAIT", 0))
    except OSError:
        return None
    return data if done == length else None
