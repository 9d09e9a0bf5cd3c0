"""The interface between an exchange and its client connection. `server.connection` implements it."""

from __future__ import annotations

from abc import abstractmethod

from svc.gateway.upstream.splice import StreamSink


class Downstream(StreamSink):
    """The client connection of an exchange."""

    __slots__ = ("client_field",)

    client_field: bytes
    """The client's address, as the end of an access log line."""

    @abstractmethod
    def send_response(self, status: int, headers: str, body: bytes) -> None:
        """Send a complete response. Each line in `headers` ends in CRLF."""

    @abstractmethod
    def start_stream(self, headers: str, content_type: str) -> None:
        """Start a stream with status 200. Each line in `headers` ends in CRLF."""

    @abstractmethod
    def abort_stream(self) -> None:
        """Close the connection so that the client sees an incomplete response."""
