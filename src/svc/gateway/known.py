"""What is known of a connection's next message by its head, since it is the head of the last one again. Pure.

Programs send the same head with each request, and local servers with each answer. llhttp has read it once, with all our
checks; it need not read it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from svc.gateway.heads import SameHead, halves
from svc.gateway.request import Request
from svc.wire.key import Key


class KnownHead(SameHead):
    """What was read from a head: `request`, whose body is another each time, and its `key`, found by `digest`."""

    __slots__ = ("digest", "key", "request")

    def __init__(self, parts: tuple[bytes, bytes], request: Request, key: Key, digest: bytes) -> None:
        super().__init__(parts)
        self.request = request
        self.key = key
        self.digest = digest

    def again(self, body: bytes) -> Request:
        """The request with another body. The one before has to be answered."""
        request = self.request
        request.keep_alive = True
        request.size = request.declared = len(body)
        request.body.append(body)
        return request


def known_head(data: bytes, request: Request, digest: bytes) -> KnownHead | None:
    """Of a request to a hot route that came as `data`; None if there is more to it than a head and a body.

    It must have been parsed and let in.
    """
    plain = request.keep_alive and request.chunkable and not request.expects and request.refusal is None
    parts = halves(data, request.declared)
    if not plain or request.key is None or parts is None:
        return None
    request.headers.clear()  # they are for those who take it over, and it is answered here
    return KnownHead(parts, request, request.key, digest)


class KnownAnswer(SameHead):
    """Of a provider that keeps the connection: what `Receiver.on_head` is told."""

    __slots__ = ("headers", "status")

    def __init__(self, parts: tuple[bytes, bytes], status: int, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(parts)
        self.status = status
        self.headers = headers
