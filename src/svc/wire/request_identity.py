"""What identifies a request of the ASGI application in the ledger, in the logs and in the client's trace."""

from __future__ import annotations

from typing import Final, NamedTuple

SCOPE_IDENTITY: Final = "request_ids"
"""The key of the RequestIdentity in an ASGI scope."""


class RequestIdentity(NamedTuple):
    """The ids and the address of one request."""

    request_id: str
    """The gateway's id."""
    client_request_id: str | None
    """The id that the client sent in `x-request-id`, or None."""
    client_address: str | None
    """The client's IP address. None if the socket has none."""
    trace_context: bytes
    """The header lines of the client's trace, or empty. Each line ends in CRLF."""
