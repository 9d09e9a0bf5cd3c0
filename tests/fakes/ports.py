"""Addresses on 127.0.0.1 that fail below HTTP."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

QUIET = range(20_000, 32_768)
"""Ports outside ip_local_port_range, which Linux assigns only on request. A port that Linux chose may become the local
end of another test's connection as soon as it is closed. This range is also below the ports of Ray's workers."""

CLUSTER_BUS_OFFSET = 10_000


def closed_port() -> int:
    """Return a port without a listener: connections are refused, and a test may start a server there."""
    while True:
        port = secrets.choice(QUIET)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def closed_cluster_port() -> int:
    """Return a closed port for a node of a Redis cluster, whose bus listens 10,000 ports above it."""
    while True:
        port = secrets.choice(range(QUIET.start, QUIET.stop - CLUSTER_BUS_OFFSET))
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", port + CLUSTER_BUS_OFFSET)),
        ):
            return port


def closed_ports(count: int) -> list[int]:
    """Return several different closed ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(closed_port())
    return list(found)


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port whose listen queue is full: a connection neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = int(listener.getsockname()[1])
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port
