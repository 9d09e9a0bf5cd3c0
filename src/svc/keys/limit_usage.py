"""What a key uses of its limits, as the admin API says it and the command shows it. Data only."""

from __future__ import annotations

import msgspec

from svc.stores.database.base import BudgetPeriod


class KeyLimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a key (null is no limit), and what counts against it now. Nothing is counted without a limit."""

    id: str
    name: str
    revoked: bool
    rpm: int | None
    requests: int
    """Let through in the last 61 seconds."""
    tokens: int
    """Used or reserved in these."""
    tpm: int | None
    concurrency: int | None
    running: int
    budget_usd: float | None
    budget_period: BudgetPeriod | None
    spent_usd: float
    """In the budget's period, or ever."""
    reserved_usd: float
    """For what runs."""
