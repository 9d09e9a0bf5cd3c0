"""Lines of the access log: for answers that leave no record, and what each line ends with."""

from __future__ import annotations

import asyncio
import functools

import msgspec

from svc.gateway.accounting.record import RequestStatus

MAX_LOGGED_PATH_CHARS = 200
"""Characters of a path in the log."""
IPV4_MAPPED_PREFIX = "::ffff:"
"""How an address of IPv4 begins that came through a socket of IPv6."""


class AccessLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the access log for an answer that no chat gave: a cold route's, a WebSocket's, a refusal at the door.

    Its names are those of a Record. Of either, `log_end` makes a line.
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


def truncate_path(path: str) -> str:
    """Never its query."""
    return path[:MAX_LOGGED_PATH_CHARS]


def peer_address(transport: asyncio.BaseTransport) -> str | None:
    """The address, without the port, that a connection came from; None where there is none, or it is gone already."""
    try:
        peer = transport.get_extra_info("peername")
    except OSError:  # reset before it was taken
        return None
    return str(peer[0]) if isinstance(peer, tuple) else None


def encode_limit_field(limit: str) -> bytes:
    """The field of a line that says which limit refused the request. The ledger does not have it."""
    return b',"limit":"%b"' % limit.encode()


@functools.lru_cache(maxsize=1024)
def encode_client_field(address: str | None) -> bytes:
    """What takes the place of the last brace in the access log: the client's address. The ledger does not have it."""
    plain_address = address.removeprefix(IPV4_MAPPED_PREFIX) if address and "." in address else address
    return b',"client":' + msgspec.json.encode(plain_address or None) + b"}\n"
