"""The periods of budgets: calendar days and months in UTC, or the whole life of a key. Pure."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Literal

BudgetPeriod = Literal["day", "month", "total"]


def budget_period_start(period: str | None, now: float | None = None) -> float:
    """Return the start (Unix seconds, UTC) of the budget period that contains `now`. 0 for the total."""
    now = time.time() if now is None else now
    if period == "day":
        return now - now % 86_400
    if period == "month":
        month_start = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return month_start.timestamp()
    return 0.0


def budget_period_end(period: str | None, start: float) -> float:
    """Return the end (Unix seconds) of the budget period that began at `start`. Infinity for the total."""
    if period == "day":
        return start + 86_400
    if period == "month":
        return budget_period_start("month", start + 32 * 86_400)
    return math.inf
