"""The connection to a client, as an exchange sees it. No implementation: that is the door's."""

from __future__ import annotations

from abc import abstractmethod

from svc.dialects.bodies import Bodies
from svc.gateway.relay import Sink


class Client(Sink):
    """The connection to the client, as an exchange sees it."""

    __slots__ = ("bodies", "log_end")

    bodies: Bodies
    """Of its requests."""
    log_end: bytes
    """How lines of the access log end that are about it."""

    @abstractmethod
    def answer(self, status: int, headers: str, body: bytes) -> None:
        """A whole answer; `headers` are lines that each end in CRLF."""

    @abstractmethod
    def begin(self, headers: str) -> None:
        """The head of a stream with status 200."""
