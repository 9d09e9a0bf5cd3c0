"""Access log entries for responses without a `RequestRecord`, and the fields at the end of each line."""

from __future__ import annotations

import asyncio
import functools

import msgspec

from svc.gateway.accounting.record import RequestStatus

MAX_LOGGED_PATH_CHARS = 200
"""The maximum number of characters of a path in the log."""
IPV4_MAPPED_PREFIX = "::ffff:"
"""The prefix of an IPv4 address on an IPv6 socket (RFC 4291, section 2.5.5.2)."""


class AccessLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An access log line for other responses: of ASGI routes and WebSockets, and early rejections.

    The field names are those of a `LedgerEntry`.
    """

    time: str
    request_id: str
    client_request_id: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    method: str
    endpoint: str
    status: RequestStatus
    http_status: int
    latency_ms: float | None = None
    code: str | None = None
    message: str | msgspec.UnsetType = msgspec.UNSET
    """The message of the error. The access log does not have it."""
    tags: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """The tags of the key. The access log does not have them."""


def truncate_path(path: str) -> str:
    """Return a path of limited length for the log. The caller removes the query."""
    return path[:MAX_LOGGED_PATH_CHARS]


def peer_address(transport: asyncio.BaseTransport) -> str | None:
    """Return the client address of a connection without the port, or None if it has none or is closed."""
    try:
        peer = transport.get_extra_info("peername")
    except OSError:  # reset before it was accepted
        return None
    return str(peer[0]) if isinstance(peer, tuple) else None


def encode_limit_field(limit: str) -> bytes:
    """Return the field with the limit that rejected the request. Only the access log has it, not the ledger."""
    return b',"limit":"%b"' % limit.encode()


@functools.lru_cache(maxsize=1024)
def encode_client_field(address: str | None) -> bytes:
    """Return the field with the client's address, and the closing brace. Only the access log has it, not the ledger."""
    plain_address = address.removeprefix(IPV4_MAPPED_PREFIX) if address and "." in address else address
    return b',"client":' + msgspec.json.encode(plain_address or None) + b"}\n"
