"""What is known of an answer when it has ended: an entry of the ledger, and a line of the access log."""

from __future__ import annotations

from typing import Literal

from svc.stores.base import Entry

Status = Literal["ok", "error", "cut", "client_closed"]
Record = Entry
"""One request; those that never reached for an upstream are logged, and not kept in the ledger."""
