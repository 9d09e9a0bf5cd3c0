"""Bind listening sockets. Servers bind first, so that a port in use is reported immediately."""

from __future__ import annotations

import socket

from svc.errors import UsageError

LISTEN_BACKLOG = 2048


def listen(host: str, port: int, *, port_option: str = "--port") -> socket.socket:
    """Return a bound socket. Raises UsageError with the port if it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(
            f"Cannot listen on {host} port {port}: {reason.rstrip('.')}. "
            f"Choose another with {port_option}, or 0 for a free one."
        ) from error
    listener.setblocking(False)
    return listener


def listener_url(listener: socket.socket, *, uses_tls: bool = False) -> str:
    """Return `http://host:port` of a bound socket, or `https://host:port`."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if uses_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
