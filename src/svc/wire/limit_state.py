"""The state of a limit when it rejected a request. Data only."""

from __future__ import annotations

from typing import Literal

import msgspec


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a key that rejected a request, and its use at that time."""

    name: Literal["rpm", "tpm", "concurrency", "budget"]
    """The name of the limit."""
    scope: Literal["key", "ephemeral_key"]
    """Whether the limit is that of a key, or of an ephemeral key."""
    scope_id: str
    """The id of the key that has the limit."""
    unit: Literal["requests", "tokens", "concurrent requests", "USD"]
    """The unit of `size`, `used`, `reserved` and `requested`."""
    size: float
    """The size of the limit."""
    used: float
    """The use before this request: in the last minute, at this moment, or in the period of the budget. For `tpm`, it
    includes the reservations of running requests."""
    reserved: float
    """The reservations of running requests in a budget. 0 for the other limits."""
    requested: float
    """The amount that this request needed."""
    running: int
    """Requests of the key that were in flight."""
    period: Literal["minute", "day", "month", "total"] | None
    """The period of the limit. Null for `concurrency`."""
    period_start: float | None
    """When the period of the budget began, in Unix seconds. Null for the other limits."""
    refill_seconds: float | None
    """Seconds after which the request would fit if nothing else is sent. Null if only a running request's end or a
    larger limit helps."""
