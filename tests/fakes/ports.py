"""Addresses of 127.0.0.1 that misbehave below HTTP."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

QUIET = range(20_000, 32_768)
"""Ports that Linux gives to nobody who does not ask for one by its number (ip_local_port_range). One that it chose and
that is closed again may be the local end of another test's connection the next moment. Below these are those that
Ray keeps for its workers."""


def closed_port() -> int:
    """A port where nobody listens: connections are refused, and a server may be started there."""
    while True:
        port = secrets.choice(QUIET)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def closed_ports(count: int) -> list[int]:
    """As many different ones."""
    found: set[int] = set()
    while len(found) < count:
        found.add(closed_port())
    return list(found)


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port whose queue is full: a connection neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = int(listener.getsockname()[1])
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port
