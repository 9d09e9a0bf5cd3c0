"""Bind listening sockets. Servers bind first, so that a port in use is reported immediately."""

from __future__ import annotations

import errno
import socket

from svc.errors import UsageError

LISTEN_BACKLOG = 2048


def listen(host: str, port: int, *, port_option: str = "--port") -> socket.socket:
    """Return a bound socket. Raises UsageError that names the option to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener: socket.socket | None = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        raise UsageError(describe_listen_error(error, host, port, port_option)) from error
    listener.setblocking(False)
    return listener


def describe_listen_error(
    error: OSError | OverflowError | UnicodeError, host: str, port: int, port_option: str = "--port"
) -> str:
    """Return the message for an address that cannot be used, with the option that changes what is wrong."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"Cannot listen on {host} port {port}: {reason.rstrip('.')}. Raise the limit of open files (ulimit -n)."
    is_host_wrong = isinstance(error, socket.gaierror | UnicodeError) or (
        isinstance(error, OSError) and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    )
    advice = "address with --host" if is_host_wrong else f"with {port_option}, or 0 for a free one"
    return f"Cannot listen on {host} port {port}: {reason.rstrip('.')}. Choose another {advice}."


def listener_url(listener: socket.socket, *, uses_tls: bool = False) -> str:
    """Return `http://host:port` of a bound socket, or `https://host:port`."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if uses_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
