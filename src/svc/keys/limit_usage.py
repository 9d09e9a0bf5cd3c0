"""Define the limit usage of a key for the admin API and the command line. Data only."""

from __future__ import annotations

import msgspec

from svc.stores.budget_period import BudgetPeriod


class KeyLimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a key, and their current use."""

    id: str
    """The id of the key."""
    name: str
    """The name of the key."""
    revoked: bool
    """Whether the key is revoked."""
    rpm: int | None
    """Requests per minute. Null means no limit."""
    requests: int
    """Requests in the last 61 seconds. Counted only if the key has the limit."""
    tokens: int
    """Tokens used or reserved in the last 61 seconds. Counted only if the key has the limit."""
    tpm: int | None
    """Tokens per minute. Null means no limit."""
    concurrency: int | None
    """Concurrent requests. Null means no limit."""
    running: int
    """Requests in flight. Counted only if the key has the limit."""
    budget_usd: float | None
    """The budget in USD. Null means no limit."""
    budget_period: BudgetPeriod | None
    """When the budget refills, in UTC."""
    spent_usd: float
    """USD spent in the budget period, or in total without a budget."""
    reserved_usd: float
    """USD reserved for requests in flight."""
