"""What is known of a connection's next message by its head, since it is the head of the last one again. Pure.

Programs send the same head with each request, and local servers with each answer. llhttp has read it once, with all our
checks; it need not read it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from svc.gateway.net.head_match import HeadMatcher, split_at_content_length
from svc.gateway.server.request import Request
from svc.wire.key import ApiKey


class RequestHeadCache(HeadMatcher):
    """What was read from a head: `request`, whose body is another each time, and its `key`, found by `digest`."""

    __slots__ = ("api_key", "key_digest", "request")

    def __init__(self, parts: tuple[bytes, bytes], request: Request, api_key: ApiKey, key_digest: bytes) -> None:
        super().__init__(parts)
        self.request = request
        self.api_key = api_key
        self.key_digest = key_digest

    def build_request(self, body: bytes) -> Request:
        """The request with another body. The one before has to be answered."""
        request = self.request
        request.keep_alive = True
        request.body_bytes = request.content_length = len(body)
        request.body.append(body)
        return request


def cache_request_head(data: bytes, request: Request, key_digest: bytes) -> RequestHeadCache | None:
    """Of a request to a hot route that came as `data`; None if there is more to it than a head and a body.

    It must have been parsed and let in.
    """
    is_cacheable = (
        request.keep_alive and request.supports_chunked and not request.expects_continue and request.rejection is None
    )
    parts = split_at_content_length(data, request.content_length)
    if not is_cacheable or request.api_key is None or parts is None:
        return None
    request.headers.clear()  # they are for those who take it over, and it is answered here
    return RequestHeadCache(parts, request, request.api_key, key_digest)


class ResponseHeadCache(HeadMatcher):
    """Of a provider that keeps the connection: what `Receiver.on_head` is told."""

    __slots__ = ("headers", "status")

    def __init__(self, parts: tuple[bytes, bytes], status: int, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(parts)
        self.status = status
        self.headers = headers
