"""A request on its way to a provider, and who gets the answer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from svc.gateway.relay import Relay, Sink

if TYPE_CHECKING:
    from svc.gateway.connection import Connection


class Receiver(ABC):
    """Who gets the answer of a call. One of `on_end`, `on_lost` and `on_fault` comes last, unless it was cancelled."""

    __slots__ = ("sink",)

    sink: Sink | None
    """Where pieces go once a stream has begun; its owner sets it, and need not be asked for each of them."""

    @abstractmethod
    def on_resent(self) -> None:
        """The request is sent once more: the provider had closed the connection, which was kept from an earlier one."""

    @abstractmethod
    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The head; names are lower case, the last of equal names wins."""

    @abstractmethod
    def on_body(self, data: bytes) -> None:
        """A piece of the body."""

    @abstractmethod
    def on_end(self) -> None:
        """The answer is whole, as far as HTTP can tell."""

    @abstractmethod
    def on_lost(self, reason: str, *, timed_out: bool, made: bool) -> None:
        """The connection could not be made (`timed_out`: in time), or was `made` and broke; `reason` is for the log."""

    @abstractmethod
    def on_fault(self) -> None:
        """One of the calls above raised; it has been logged, and the connection is closed. The last call."""


class Call:
    """A request on its way; owned by whoever sent it, who cancels it or waits for the receiver's last callback."""

    __slots__ = ("connecting", "connection", "receiver", "request")

    def __init__(self, receiver: Receiver, request: tuple[bytes, ...]) -> None:
        self.receiver: Receiver | None = receiver
        self.request = request
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Lets go of the upstream at once: its connection is closed. No callback follows."""
        self.receiver = None
        connecting, self.connecting = self.connecting, None  # its frames hold this
        if connecting is not None:
            connecting.cancel()
        if self.connection is not None:
            self.connection.close()

    def lost(self, reason: str, *, timed_out: bool = False, made: bool = False) -> None:
        self.connecting = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_lost(reason, timed_out=timed_out, made=made)

    def pause(self) -> None:
        """Reads no more from the upstream until `resume`."""
        if self.connection is not None:
            self.connection.pause_reading()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.resume_reading()

    def relay(self, relay: Relay) -> None:
        """It may carry the next piece. For the receiver, while it is handed one."""
        if self.connection is not None:
            self.connection.lay(relay)
