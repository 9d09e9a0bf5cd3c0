"""Addresses of 127.0.0.1 that misbehave below HTTP."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


def closed_port() -> int:
    """A port where nobody listens: connections are refused."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


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
