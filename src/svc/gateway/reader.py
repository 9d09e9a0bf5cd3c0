"""What a client sends, read into requests: HTTP/1.1, parsed by llhttp (httptools), with limits.

    head ── all headers ──> body ── complete ──> came: to the door, which answers
                              └── long, of a known key ──> its rest goes straight to where it is to lie

What becomes of requests, and of a connection that cannot be read any further, is the door's.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from io import BytesIO
from typing import Final
from urllib.parse import unquote_to_bytes

import httptools

from svc.dialects.base import Dialect
from svc.dialects.bodies import Bodies
from svc.errors import InvalidRequest, SvcError
from svc.gateway import heap, reply
from svc.gateway.access_log import log_end
from svc.gateway.bounded import Free
from svc.gateway.client_connection import Client
from svc.gateway.credentials import digest_in, identify, trust
from svc.gateway.forwarding import forwarded_head
from svc.gateway.heads import STRANGE
from svc.gateway.known import KnownHead, known_head
from svc.gateway.plane import Plane
from svc.gateway.request import MAX_AT_ONCE, Request, head_too_large, is_far_ahead
from svc.gateway.upstream import READ_SIZE
from svc.gateway.writer import Writer
from svc.request_line import RequestLines

MAX_STRANGERS_BODY: Final = 64 * 1024
"""Bytes of a body that are kept for who has shown no key."""
LONG_BODY: Final = 64 * 1024
"""Bytes yet to come of a body that are read without the parser: their number is known, and no copy is needed."""


class Reader(Client):
    """The side of a client connection that reads: an asyncio.BufferedProtocol by its methods."""

    __deletable__ = ("_free", "_parser")
    __slots__ = (
        "_busy",
        "_deadline",
        "_free",
        "_head_size",
        "_hot",
        "_known",
        "_latest",
        "_lines",
        "_long",
        "_parser",
        "_plane",
        "_queue",
        "_request",
        "_room",
        "_state",
        "_strange",
        "_throttled",
        "_unreadable",
        "_waits",
        "transport",
        "writer",
    )

    transport: asyncio.Transport
    writer: Writer
    _free: Free
    """Reads while what comes is small; of a connection that is made."""

    def __init__(self, plane: Plane, hot: Mapping[bytes, Dialect]) -> None:
        self.bodies = Bodies()
        self.log_end = log_end(None)
        self._plane = plane
        self._hot = hot
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._busy: Request | None = None
        """The request that is being answered."""
        self._request: Request | None = None
        """The request that is being read."""
        self._long: BytesIO | None = None
        """A long body that is being read without the parser."""
        self._room: memoryview | None = None
        """What of it is still to come, but for its last byte."""
        self._head_size = 0
        self._lines = RequestLines()
        self._known: KnownHead | None = None
        """Of the last request that came whole and alone."""
        self._latest: Request | None = None
        """The last request, while what it came in is read."""
        self._strange = 0
        self._throttled = False
        self._waits = False
        """For its turn to read."""
        self._unreadable: tuple[SvcError, int | None] | None = None
        """What the client is told after the running answer, when it has sent in advance what cannot be read."""
        self._state = "idle"
        self._deadline = math.inf

    # the door's

    @abstractmethod
    def _next(self) -> None:
        """Nothing is being answered: takes the next request."""

    @abstractmethod
    def _take(self, request: Request) -> None:
        """Answers a request; nothing is being answered, or still to be read by the client."""

    @abstractmethod
    def _loaded(self, request: Request) -> None:
        """The database has been asked about the request's key."""

    @abstractmethod
    def _upgrade(self, rest: bytes) -> None:
        """The request asks for another protocol; `rest` came after it."""

    @abstractmethod
    def _reject(self, error: SvcError, status: int | None = None) -> None:
        """Nothing more can be read here."""

    # asyncio

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return self._plane.upstream.buffer if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._room is None:
            if nbytes == READ_SIZE:
                self.wait_turn()
            self.read(self._plane.upstream.view[:nbytes].tobytes())
        elif self._state != "lingering" and self._unreadable is None:
            self._fill(self._room, nbytes)

    def wait_turn(self) -> None:
        """Much has come at once: what follows is read in a later turn of the loop."""
        if not (self._waits or self.transport.is_closing()):
            self._waits = True
            self.transport.pause_reading()
            self._plane.upstream.turns.wait(self)

    def read_on(self) -> None:
        """Its turn has come."""
        self._waits = False
        if not self._throttled and self._state != "unread":
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not (self._waits or self.transport.is_closing()):
            self.transport.resume_reading()

    def read(self, data: bytes) -> None:
        """What has come of anything but the inside of a long body."""
        if self._state == "lingering" or self._unreadable is not None:
            return
        if self._long is not None and self._request is not None:
            self._finish(self._request, self._long, data)
        else:
            self._read(data)

    def data_received(self, data: bytes) -> None:
        """For loops that take only its children for a BufferedProtocol, and for what came before an upgrade."""
        done = 0
        while done < len(data):
            room = memoryview(self.get_buffer(-1))
            size = min(len(room), len(data) - done)
            room[:size] = data[done : done + size]
            self.buffer_updated(size)
            done += size

    def _read(self, data: bytes) -> None:
        fresh = self._state == "idle" and self._busy is None
        if fresh:
            if self._known is not None and self._is_known(self._known, data):
                return
            self._wait("head", self._plane.bounds.header_timeout)
        request = self._request
        if request is None or not request.headed:
            self._head_size += len(data)
        self._lines.add(data, between=request is None, in_head=request is not None and not request.headed)
        size = request.size if request is not None else 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._latest = None
            self._upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            refusal = error.__context__ if isinstance(error.__context__, SvcError) else None
            self._reject(refusal or InvalidRequest("The request is not valid HTTP."))
            return
        if request is not None and request is self._request and request.headed:  # trailers and extensions are no body
            self._head_size = self._head_size + len(data) if request.size == size else 0
        if self._request is None or self._request.headed:
            self._lines.clear()
        latest, self._latest = self._latest, None
        if fresh and latest is not None:
            self._know(latest, data)
        self._check_unfinished()

    def _is_known(self, known: KnownHead, data: bytes) -> bool:
        """It is the last request again, but for its body, and is taken if so."""
        plane, body = self._plane, known.body(data)
        if not body or len(body) > plane.bounds.max_body or not plane.keyring.has(known.digest, known.key):
            return False
        self._strange = 0
        self._free.let(len(data))
        self._take(known.again(body))
        return True

    def _know(self, request: Request, data: bytes) -> None:
        """The head of a request that came in one read is kept, unless it is another one each time."""
        self._known = None
        if request.key is not None and self._strange < STRANGE and self._request is None:
            self._strange += 1
            self._known = known_head(data, request, digest_in(request))

    def _wait(self, state: str, seconds: float) -> None:
        self._state = state
        self._deadline = self._plane.now() + seconds

    # long bodies

    def _take_over(self, request: Request) -> None:
        """The rest of a body is read straight into its place."""
        self._free.bind()
        request.keep_alive = self._parser.should_keep_alive()
        self._parser = httptools.HttpRequestParser(self)
        self._long = BytesIO(heap.room(request.declared))
        view = self._long.getbuffer()
        view[: request.size] = b"".join(request.body)
        self._room = view[request.size : -1]

    def _fill(self, room: memoryview, nbytes: int) -> None:
        self._room = room[nbytes:] if nbytes < len(room) else None

    def _finish(self, request: Request, long: BytesIO, data: bytes) -> None:
        """The last byte comes by itself, when nothing holds the body any more: so it is taken without a copy."""
        self._request = self._long = None
        long.getbuffer()[-1:] = data[:1]
        request.size = request.declared
        request.body = [long.getvalue()]
        self._came(request)
        if len(data) > 1:
            self._read(data[1:])

    # llhttp

    def on_message_begin(self) -> None:
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        if self._request is not None:
            self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is not None and not self._request.headed:  # else a trailer: never a header
            self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._request
        if request is None:
            return
        bounds = self._plane.bounds
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if not self._lines.has(method, request.url, version):
            raise InvalidRequest("The request line is not 'METHOD TARGET HTTP/1.1' with single spaces.")
        request.head(method, version, bounds.max_header)
        self._head_size = 0
        if request.method == b"POST":
            request.dialect = self._hot.get(request.path)
            if request.dialect is None and b"%" in request.path:
                self._decode(request)
        refusal = request.refusal  # by a name of its own: the compiler would take the attribute for None from here on
        if refusal is not None:
            raise refusal
        if request.declared > bounds.max_body:
            raise bounds.too_large()
        if request.dialect is not None:
            if request.dialect.forwarded_headers:
                request.forwarded = forwarded_head(request.url, request.headers, request.dialect.forwarded_headers)
            identify(request, self._plane.keyring, self._loaded)
        if request.expects and self._busy is None and not self._parser.should_upgrade():
            if request.refusal is not None:
                raise request.refusal
            self.writer.write(reply.CONTINUE)

    def _decode(self, request: Request) -> None:
        """A hot route may be written with escapes, as the others may: they are resolved once."""
        path = unquote_to_bytes(request.path)
        request.dialect = self._hot.get(path)
        if request.dialect is not None:
            request.path = path

    def on_body(self, data: bytes) -> None:
        request = self._request
        if request is None:
            return
        request.size += len(data)
        if request.size > self._plane.bounds.max_body:
            raise self._plane.bounds.too_large()
        if request.size > MAX_STRANGERS_BODY and request.dialect is None and not request.known:
            trust(request, self._plane.keyring)
        if request.refusal is None:
            request.body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():  # `_upgrade` follows, and wants the request
            return
        request, self._request = self._request, None
        if request is None:
            return
        request.keep_alive = self._parser.should_keep_alive()
        self._latest = request
        if len(self._queue) >= MAX_AT_ONCE:
            raise InvalidRequest("Too many requests were sent in advance.")
        self._came(request)

    def _came(self, request: Request) -> None:
        """A request is whole."""
        self._queue.append(request)
        if self._busy is None:
            self._next()

    def _check_unfinished(self) -> None:
        """After each read: how much of a head, or of a body, has come."""
        request = self._request
        bounds = self._plane.bounds
        if self._busy is not None and not self._throttled and is_far_ahead(self._queue, request):
            self._throttled = True
            self.transport.pause_reading()
        if request is not None and self._busy is None:
            if self._state == "idle":  # it has begun behind one that was answered at once
                self._wait("head", bounds.header_timeout)
            if self._state == "head" and request.headed:
                self._wait("body", bounds.body_timeout)
                if request.key is not None and request.refusal is None and request.declared - request.size >= LONG_BODY:
                    self._take_over(request)
        if self._head_size > bounds.max_header:
            self._reject(head_too_large(bounds.max_header))

    def _go_on(self, request: Request) -> None:
        """Of `request` a part came while the answer before it was running."""
        bounds = self._plane.bounds
        self._wait(*(("body", bounds.body_timeout) if request.headed else ("head", bounds.header_timeout)))
        if request.expects and not request.size:
            if request.refusal is not None:
                self._reject(request.refusal)
            else:
                self.writer.write(reply.CONTINUE)
