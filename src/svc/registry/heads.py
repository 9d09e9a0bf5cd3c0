"""The head of an answer that sends a bundle, or says why it need not: bytes for the socket."""

from __future__ import annotations

import os
from urllib.parse import quote

from svc.registry.desk import Desk
from svc.registry.ranges import Part
from svc.registry.shelf import Item

_LINES = {
    200: b"HTTP/1.1 200 OK\r\n",
    206: b"HTTP/1.1 206 Partial Content\r\n",
    304: b"HTTP/1.1 304 Not Modified\r\n",
    416: b"HTTP/1.1 416 Range Not Satisfiable\r\n",
}


def head_of(desk: Desk, item: Item, part: Part, *, keep_alive: bool) -> bytes:
    """Everything up to the body, the blank line included."""
    lines = [_LINES[part.status], item.tail or _describe(desk, item)]
    if part.status in (200, 206):
        length = part.end - part.start if desk.accel is None else 0
        lines.append(b"content-type: application/octet-stream\r\ncontent-length: %d\r\n" % length)
        if desk.accel is not None:
            lines.append(f"x-accel-redirect: {desk.accel}{quote(item.inside)}\r\n".encode())
    if part.status == 206:
        lines.append(b"content-range: bytes %d-%d/%d\r\n" % (part.start, part.end - 1, item.size))
    elif part.status == 416:
        lines.append(b"content-range: bytes */%d\r\ncontent-length: 0\r\n" % item.size)
    lines.append(desk.date_line())
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _describe(desk: Desk, item: Item) -> bytes:
    scope = "private" if desk.private else "public"
    item.tail = (
        f"etag: {item.etag}\r\naccept-ranges: bytes\r\ncache-control: {scope}, max-age=31536000, immutable\r\n"
    ).encode()
    return item.tail


def read_cached(item: Item, part: Part) -> bytes | bytearray | None:
    """The part, if it is in memory; never waits for a disk."""
    length = part.end - part.start
    data = bytearray(length)
    try:
        done = os.preadv(item.fd, [data], part.start, getattr(os, "RWF_NOWAIT", 0))
    except OSError:
        return None
    return data if done == length else None
