"""The types of RedisCounters (`redis`). No implementation."""

from __future__ import annotations

import msgspec

from svc.stores.counters.base import LimitExceeded


class RedisReservation(msgspec.Struct, frozen=True):
    """A reservation in Redis, to be committed once, with the requests and tokens that remained after it."""

    key_id: str
    process: str
    second: int
    tokens: int
    nano_usd: int
    has_budget: bool
    has_concurrency: bool
    requests_left: int
    tokens_left: int
    reset_seconds: float
    """Seconds until this request leaves the window."""


class CachedRejection(msgspec.Struct, frozen=True):
    """The key is rejected until `until` (monotonic seconds), unless its request limit changes."""

    request_limit: int
    until: float
    rejection: LimitExceeded


class Spending(msgspec.Struct, frozen=True):
    """Money whose report to Redis has an unknown outcome."""

    key_id: str
    process: str
    number: int
    nano_usd: int


class SpentRequired(msgspec.Struct, frozen=True):
    """The counters do not have the spent sum of the key. The caller must repeat the reservation with it."""
