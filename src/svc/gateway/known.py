"""The head of a connection's last request, by which its next one is known: compared, where it would be parsed. Pure.

    POST /v1/chat/completions HTTP/1.1 CRLF … content-length: 123 CRLF … CRLF CRLF {"model":…
    └────────────────────── before ────────────────────────┘└─┘└───── after ─────┘└── body ──

Programs send the same head again and again, but for the length of their body. llhttp has read it once, with all our
checks; the same bytes at the same place mean the same.
"""

from __future__ import annotations

import re
from typing import Final

from svc.gateway.request import Request
from svc.wire.key import Key

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)\r\n", re.IGNORECASE)


class KnownHead:
    """What was read from a head: `request`, whose body is another each time, and its `key`, found by `digest`."""

    __slots__ = ("_after", "_before", "_fixed", "digest", "key", "request")

    def __init__(self, before: bytes, after: bytes, request: Request, key: Key, digest: bytes) -> None:
        self._before = before
        self._after = after
        self._fixed = len(before) + len(after)
        self.request = request
        self.key = key
        self.digest = digest

    def body(self, data: bytes) -> bytes:
        """The body of a request that has this head, and has come whole and alone; empty for all else."""
        rest = len(data) - self._fixed  # the digits of the length, and as many bytes as they say
        width, over = 1, 10
        while rest - width >= over:
            width += 1
            over *= 10
        size = rest - width
        if size <= 0:
            return b""
        head = b"%b%d%b" % (self._before, size, self._after)
        return data[len(head) :] if len(head) + size == len(data) and data.startswith(head) else b""

    def again(self, body: bytes) -> Request:
        """The request with another body. The one before has to be answered."""
        request = self.request
        request.keep_alive = True
        request.size = request.declared = len(body)
        request.body.append(body)
        return request


def known_head(data: bytes, request: Request, digest: bytes) -> KnownHead | None:
    """Of a request to a hot route that came as `data`; None if there is more to it than a head and a body.

    It must be parsed, let in, and its body taken.
    """
    end = data.find(b"\r\n\r\n") + 4
    length = _LENGTH.search(data, 0, end)
    plain = request.keep_alive and request.chunkable and not request.expects and request.refusal is None
    if not plain or request.key is None or length is None or end + request.declared != len(data):
        return None
    request.headers.clear()  # they are for those who take it over, and it is answered here
    return KnownHead(data[: length.start(1)], data[length.end(1) : end], request, request.key, digest)
