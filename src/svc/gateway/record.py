"""What is known of an answer when it has ended. Data only; the ledger and the access log are made of it."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "error", "cut", "client_closed"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request; the names are those of decisions.md, section 8. Unknown is None, never 0."""

    request_id: str
    client_request_id: str | None
    key_id: str
    key_name: str
    endpoint: str
    model_asked: str | None
    model: str | None
    provider: str | None
    attempts: int
    status: Status
    http_status: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    latency_ms: float
    ttfb_ms: float | None
