"""A request to a provider, and the interface of the object that receives its response."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

from svc.gateway.upstream.splice import Splice, StreamSink


class ResponseReceiver(ABC):
    """Receives the response to a call. One of `on_end`, `on_lost` and `on_fault` comes last, unless it is cancelled."""

    __slots__ = ("sink",)

    sink: StreamSink | None
    """Where pieces go once a stream has begun; its owner sets it, and need not be asked for each of them."""

    @abstractmethod
    def on_resend(self) -> None:
        """The request is sent once more: the provider had closed the connection, which was kept from an earlier one."""

    @abstractmethod
    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the response head. Header names are lower case, and the last of equal names wins."""

    @abstractmethod
    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""

    @abstractmethod
    def on_end(self) -> None:
        """Handle the end of a response that is complete by its HTTP framing."""

    @abstractmethod
    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        """The connection could not be made (`timed_out`: in time), or was `made` and broke; `reason` is for the log."""

    @abstractmethod
    def on_internal_error(self) -> None:
        """Handle an exception in a callback. It has been logged, and the connection is closed."""


class CallConnection(ABC):
    """The connection that a call uses, as the call sees it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close at once."""

    @abstractmethod
    def pause_reading(self) -> None: ...

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    def enable_splice(self, splice: Splice) -> None:
        """Let the splice forward the next reads."""


class UpstreamCall:
    """A request on its way; owned by whoever sent it, who cancels it or waits for the receiver's last callback."""

    __slots__ = ("connect_task", "connection", "receiver", "request_parts")

    def __init__(self, receiver: ResponseReceiver, request_parts: tuple[bytes, ...]) -> None:
        self.receiver: ResponseReceiver | None = receiver
        self.request_parts = request_parts
        self.connection: CallConnection | None = None
        self.connect_task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel the call and close its connection. No callback follows."""
        self.receiver = None
        connect_task, self.connect_task = self.connect_task, None  # its frames hold this
        if connect_task is not None:
            connect_task.cancel()
        if self.connection is not None:
            self.connection.close()

    def fail(self, reason: str, *, timed_out: bool = False, connected: bool = False) -> None:
        self.connect_task = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_connection_lost(reason, timed_out=timed_out, connected=connected)

    def pause(self) -> None:
        """Stop reading from the upstream until `resume`."""
        if self.connection is not None:
            self.connection.pause_reading()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.resume_reading()

    def enable_splice(self, splice: Splice) -> None:
        """It may carry the next piece. For the receiver, while it is handed one."""
        if self.connection is not None:
            self.connection.enable_splice(splice)
