"""One HTTP/1.1 connection to a provider, and the calls that use it one after the other. llhttp (httptools) parses.

idle ── start ──> waiting ── head ──> reading ── end ──> idle (in the pool) or closed
                     └── lost, or not HTTP ──> closed
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import httptools

from svc.gateway.bounded import SMALL, Bounded
from svc.gateway.call import Call, Receiver
from svc.gateway.heads import STRANGE, halves
from svc.gateway.known import KnownAnswer
from svc.gateway.providers import Origin
from svc.gateway.relay import Relay
from svc.gateway.tls import Transport
from svc.gateway.writer import Writer

log = logging.getLogger("svc.gateway")

LF: Final = 10
MAX_HEAD: Final = 64 * 1024
"""Bytes of an answer's head, and of what comes in a row that is no body: interim answers, extensions, trailers."""
HEADER_COST: Final = 64
"""Bytes that a header counts beside its own, so that there are at most some thousand."""


class Pool(Protocol):
    """Where connections come from and go back to."""

    body: list[bytes]
    """Where every connection's parser lays the body's parts of one read: used up before the next read."""

    def connect(self, origin: Origin, call: Call) -> None: ...

    def opened(self, connection: Connection) -> None: ...

    def park(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Connection:
    """One connection to an origin: a Protocol of asyncio's, by its methods; over TLS those of an `Upper`.

    llhttp calls the `on_…` ones.
    """

    __deletable__ = ("_feed", "_parser")
    __slots__ = (
        "_between",
        "_body",
        "_call",
        "_delimited",
        "_ended",
        "_feed",
        "_fresh",
        "_head_size",
        "_headers",
        "_known",
        "_overhead",
        "_parser",
        "_pool",
        "_receiver",
        "_reusable",
        "_silent",
        "_size",
        "_strange",
        "_writer",
        "bounded",
        "idle_since",
        "on_body",
        "origin",
        "relay",
        "transport",
    )

    transport: Transport

    def __init__(self, pool: Pool, origin: Origin) -> None:
        self._pool = pool
        self.origin = origin
        self.idle_since = 0.0
        self._body = pool.body
        self.on_body = pool.body.append
        """For llhttp: no Python is run for a chunk but what handles it."""
        self._call: Call | None = None
        self._receiver: Receiver | None = None
        """The call's: one step less for each piece."""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._overhead = 0
        """Bytes since the last ones of a body."""
        self.relay: Relay | None = None
        """Carries the next read, if it can; forgotten wherever the parser is not between two chunks."""
        self._between = False
        self._fresh = False
        """Nothing of the present answer has come."""
        self._known: KnownAnswer | None = None
        """Of the last answer that came whole and alone."""
        self._strange = 0
        self._ended = False
        self._reusable = False
        self._delimited = False
        self._size = 0
        """Bytes of the last read that was not carried."""
        self.bounded: Bounded | None = None
        """What reads for this; None over TLS."""
        self._writer: Writer | None = None
        """None over TLS, which has its own."""
        self._silent = False
        """Used before, and silent since the present request: if it closes now, that is old age and no failure."""

    @property
    def usable(self) -> bool:
        """It is open, and nothing has come since it was parked, which the next answer would seem to begin with."""
        return self.transport.is_reading()

    def start(self, call: Call, *, reused: bool) -> None:
        """Sends a call's request on this connection, which must be idle."""
        if call.receiver is None:  # cancelled while connecting
            self.close()
            return
        self._call = call
        self._receiver = call.receiver
        call.connection = self
        self._delimited = False
        self._ended = False
        self._head_size = self._overhead = 0
        self._silent = reused
        self._fresh = True
        to = self._writer or self.transport
        if len(call.request) == 1:
            to.write(call.request[0])
        else:
            to.writelines(call.request)

    def lay(self, relay: Relay) -> None:
        """It carries the next reads, if it can; the first of them comes from here, and if that is small, it reads."""
        self.relay = relay
        relay.lay(self)

    def _lift(self) -> None:
        """What comes next is not for the relay."""
        if self.relay is not None:
            self.relay.laid = False
            self.relay = None

    def close(self) -> None:
        """Closes at once: what was not sent yet is of no use to anyone."""
        self._release()
        self.transport.abort()

    def _release(self) -> Call | None:
        call, self._call = self._call, None
        self._receiver = None
        self._lift()
        if call is not None:
            call.connection = None
        return call

    # asyncio

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        if self.bounded is not None:
            self._writer = Writer(transport)  # type: ignore[arg-type]
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Of what is no stream yet, of TLS, and while it is bounded; else see `Relay.data_received`."""
        if len(data) > SMALL:
            self.bind()
        relay = self.relay
        begin = relay.carry(data) if relay is not None else 0
        if begin < len(data):
            self.read(data, begin)
        if relay is not None and relay.laid and self.bounded is not None:
            self.bounded.let(len(data), relay)

    def bind(self) -> None:
        """A large one has come."""
        if self.bounded is not None:
            self.bounded.bind_large()

    def pause_reading(self) -> None:
        """Nothing more is wanted, until `resume_reading`."""
        if self.bounded is None:
            self.transport.pause_reading()
            return
        self.bounded.pause_reading()
        self.bounded.bind()  # what comes meanwhile will be there at once

    def resume_reading(self) -> None:
        if self.bounded is None:
            self.transport.resume_reading()
        else:
            self.bounded.resume_reading()

    def read(self, data: bytes, begin: int) -> None:
        """What was not carried: all from `begin` on."""
        self._lift()
        self._size = len(data)
        if self._call is None:  # nobody asked: the connection's state cannot be known any more
            self.transport.abort()
            return
        self._silent = False
        fresh, self._fresh, receiver = self._fresh, False, self._receiver
        try:
            if (fresh and self._is_known(data)) or self._parse(data, begin, fresh):
                self._hand_on(data[-1])
        except Exception:  # the edge: a fault of ours is not the provider's
            log.exception("fault while an answer was handled")
            self.close()
            if receiver is not None:
                receiver.on_fault()

    def _parse(self, data: bytes, begin: int, fresh: bool) -> bool:
        """False for what is not HTTP: it has failed. `fresh`: it is the beginning of an answer."""
        try:
            self._feed(data[begin:] if begin else data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            good, receiver = b"".join(self._body), self._receiver
            self._body.clear()
            if good and receiver is not None and receiver.sink is not None:  # before a stream begins: the next target
                receiver.on_body(good)
            self._fail(f"sent what is not HTTP: {error.__context__ or error}")
            return False
        if self._body or self._ended:
            self._overhead = 0
        else:
            self._overhead += len(data) - begin
            if self._overhead > MAX_HEAD:
                self._fail(f"sent more than {MAX_HEAD // 1024} KiB in a row that are no body")
                return False
        if fresh and self._ended:
            self._know(data)
        return True

    def _hand_on(self, last: int) -> None:
        """What one read has brought of the body, and its end. `last`: the byte that it ended with."""
        receiver, body = self._receiver, self._body
        if body:
            data = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            if receiver is not None:
                receiver.on_body(data)  # one piece for each read, however many chunks it came in
        if self._ended:
            self._finish()
        elif not self._between or last != LF:
            self._lift()

    def _is_known(self, data: bytes) -> bool:
        """The head is that of the last answer, and all is there: the parser need not look."""
        known, receiver = self._known, self._receiver
        if known is None or receiver is None:
            return False
        body = known.body(data)
        if not body:
            return False
        self._strange = 0
        self._ended = self._reusable = True
        receiver.on_head(known.status, known.headers)
        self._body.append(body)
        return True

    def _know(self, data: bytes) -> None:
        """The head of an answer that came in one read is kept, unless it is another one each time."""
        self._known = None
        if not self._reusable or self._strange >= STRANGE:
            return
        self._strange += 1
        size = sum(len(part) for part in self._body)
        parts = halves(data, size) if size else None
        if parts is not None:
            self._known = KnownAnswer(parts, self._parser.get_status_code(), self._headers)

    def eof_received(self) -> None:
        """Closes; `connection_lost` follows."""

    def pause_writing(self) -> None:
        """A request waits for the provider to read it: it is in memory anyway."""

    def resume_writing(self) -> None:
        """See above."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.closed(self)
        self.bounded = None
        if self._writer is not None:
            self._writer.close()
        del self._parser, self._feed  # which, like it, hold this: no garbage collector is needed
        if self._call is None:
            return
        if self._silent:
            call = self._release()
            if call is not None and call.receiver is not None:
                call.receiver.on_resent()
                self._pool.connect(self.origin, call)
        elif self._delimited and exc is None:  # neither length nor chunks: the close is the end
            receiver = self._call.receiver
            self._release()
            if receiver is not None:
                receiver.on_end()
        else:
            self._fail(f"connection closed: {exc}" if exc else "connection closed")

    def _fail(self, reason: str) -> None:
        call = self._release()
        self.transport.abort()
        if call is not None:
            call.lost(reason, made=True)

    # llhttp

    def on_message_begin(self) -> None:
        if self._ended:
            raise ValueError("more than one answer")
        self._headers = {}
        self._between = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + HEADER_COST
        if self._head_size > MAX_HEAD:
            raise ValueError("head too large")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer, for which nobody waits
            if status < 100:
                raise ValueError(f"status {status}")
            return
        headers = self._headers
        self._delimited = b"content-length" not in headers and b"transfer-encoding" not in headers
        if self._receiver is not None:
            self._receiver.on_head(status, headers)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self._ended = True
        self._reusable = self._parser.should_keep_alive()  # true only here, see the bench's notes

    def _finish(self) -> None:
        call = self._release()  # None if its last piece made it let go
        if self._reusable and self._is_at_rest():  # whether it is still open is looked at when it is used
            if self.bounded is not None:
                self.bounded.let(self._size)
            self._pool.park(self)
        else:
            self.transport.abort()
        if call is not None and call.receiver is not None:
            call.receiver.on_end()

    def _is_at_rest(self) -> bool:
        """All is sent, and it reads: it may have been paused for a client by the very piece that was the last.

        Over TLS, nothing has come beyond the answer either, which the next request's answer would begin with.
        """
        is_reading = self.transport.is_reading() or (self.bounded is not None and self.bounded.end_turn())
        return is_reading and not self.transport.get_write_buffer_size()
