"""The connection to a client, as an exchange sees it. No implementation: that is the door's."""

from __future__ import annotations

from abc import abstractmethod

from svc.dialects.fastpath.body_cache import BodyCache
from svc.gateway.upstream.splice import StreamSink


class Downstream(StreamSink):
    """The connection to the client, as an exchange sees it."""

    __slots__ = ("body_cache", "client_field")

    body_cache: BodyCache
    """Of its requests."""
    client_field: bytes
    """How lines of the access log end that are about it."""

    @abstractmethod
    def send_response(self, status: int, headers: str, body: bytes) -> None:
        """A whole answer; `headers` are lines that each end in CRLF."""

    @abstractmethod
    def start_stream(self, headers: str) -> None:
        """The head of a stream with status 200."""
