"""What is known of an answer when it has ended: an entry of the ledger, and a line of the access log."""

from __future__ import annotations

from typing import Literal

import msgspec

from svc.stores.base import Entry

Status = Literal["ok", "error", "cut", "client_closed"]
Record = Entry
"""One request; those that never reached for an upstream are logged, and not kept in the ledger."""
MAX_SHOWN = 200
"""Characters of a path in the log."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the access log for an answer that no chat gave: a cold route's, a WebSocket's, a refusal at the door.

    Its names are those of a Record.
    """

    time: str
    request_id: str
    client_request_id: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    method: str
    endpoint: str
    status: Status
    http_status: int
    latency_ms: float | None = None
    code: str | None = None


def path_shown(path: str) -> str:
    """Never its query."""
    return path[:MAX_SHOWN]
