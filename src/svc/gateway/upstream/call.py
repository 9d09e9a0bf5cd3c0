"""A request to a provider, and the interface of the object that receives its response."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from svc.errors import ProviderFailed
from svc.gateway.upstream.splice import Splice, StreamSink

log = logging.getLogger("svc.gateway")


class ResponseReceiver(ABC):
    """Receives the response to a call.

    Unless the call is cancelled, its last callback is `on_end`, `on_connection_lost`, `on_load_failed` or
    `on_internal_error`.
    """

    sink: StreamSink | None = None
    """The receiver of chunks after the first one. The owner sets it, so that later chunks need no callback to it."""

    @abstractmethod
    def on_resend(self) -> None:
        """Called when the request is sent again, because the provider had closed the reused connection."""

    def on_connected(self, seconds: float) -> None:  # noqa: B027
        """Called before the request is sent on a new connection, which took so long to open."""

    @abstractmethod
    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Handle the response head. Header names are lower case, and the last of equal names wins."""

    @abstractmethod
    def on_body(self, data: bytes) -> None:
        """Handle a part of the body."""

    @abstractmethod
    def on_end(self) -> None:
        """Handle the end of a response that is complete by its HTTP framing."""

    @abstractmethod
    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None:
        """Handle a connection that could not be opened or that broke.

        `connected` says whether it was open, `timed_out` whether connecting took too long. `reason` is for the log.
        """

    def on_load_failed(self, error: ProviderFailed) -> None:
        """Handle a model of this machine that cannot be loaded. Nothing was sent."""
        self.on_connection_lost(error.message, timed_out=False, connected=False)

    def on_no_socket(self, reason: str) -> None:
        """Handle a connection for which this machine has no resources, such as file descriptors. Nothing was sent."""
        self.on_connection_lost(reason, timed_out=False, connected=False)

    @abstractmethod
    def on_internal_error(self) -> None:
        """Handle an exception in a callback. It has been logged, and the connection is closed."""


def report_end(receiver: ResponseReceiver) -> None:
    """Report the end of a complete response, or an internal error if that raises an exception."""
    try:
        receiver.on_end()
    except Exception:  # an internal error must not count as a failure of the provider
        log.exception("error while handling a response")
        receiver.on_internal_error()


class CallConnection(ABC):
    """The methods of an upstream connection that a call uses."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close the connection at once."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Continue reading."""

    @abstractmethod
    def enable_splice(self, splice: Splice) -> None:
        """Let the splice forward the next reads."""


class UpstreamCall:
    """A request in flight. Its sender cancels it, or waits for the receiver's last callback."""

    connection: CallConnection | None = None
    connect_task: asyncio.Task[None] | None = None
    awaits_load: bool = False
    """Whether the request waits until a model of this machine is loaded."""

    def __init__(self, receiver: ResponseReceiver, request_parts: tuple[bytes, ...]) -> None:
        self.receiver: ResponseReceiver | None = receiver
        self.request_parts = request_parts

    @property
    def is_waiting(self) -> bool:
        """Whether nothing was sent yet, because this machine is not ready. No timeout of the attempt runs meanwhile."""
        return self.awaits_load

    def cancel(self) -> None:
        """Cancel the call and close its connection. No callback follows."""
        self.receiver = None
        connect_task, self.connect_task = self.connect_task, None  # breaks a reference cycle: the task holds the call
        if connect_task is not None:
            connect_task.cancel()
        if self.connection is not None:
            self.connection.close()

    def fail(self, reason: str, *, timed_out: bool = False, connected: bool = False) -> None:
        """Report a failed connection to the receiver, unless the call is cancelled."""
        self.connect_task = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_connection_lost(reason, timed_out=timed_out, connected=connected)

    def fail_load(self, error: ProviderFailed) -> None:
        """Report a model that cannot be loaded to the receiver, unless the call is cancelled."""
        self.connect_task = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_load_failed(error)

    def fail_socket(self, reason: str) -> None:
        """Report that this machine has no resources for a connection, unless the call is cancelled."""
        self.connect_task = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_no_socket(reason)

    def run_step(self) -> None:
        """Report the end of a complete response to the receiver, unless the call is cancelled."""
        if self.receiver is not None:
            report_end(self.receiver)

    def pause(self) -> None:
        """Stop reading from the upstream until `resume`."""
        if self.connection is not None:
            self.connection.pause_reading()

    def resume(self) -> None:
        """Continue reading from the upstream."""
        if self.connection is not None:
            self.connection.resume_reading()

    def enable_splice(self, splice: Splice) -> None:
        """Let the splice forward the next reads. The receiver may call this only from `on_body`."""
        if self.connection is not None:
            self.connection.enable_splice(splice)
