"""The current usage of the keys' limits, for the admin API. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from svc.gateway.accounting.cost import NANO_USD_PER_USD
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.keys.lifecycle import ShownKey
from svc.keys.limit_usage import KeyLimitUsage
from svc.settings import LimitSettings
from svc.stores.budget_period import budget_period_start
from svc.stores.counters.base import LimitUsage
from svc.stores.counters.key_limits import KeyLimits


async def current_key_usage(
    limiter: RateLimiter, keys: Sequence[ShownKey], defaults: LimitSettings
) -> list[KeyLimitUsage]:
    """Return the current usage of each key, in the order of `keys`."""
    key_limits = [_key_limits(key, defaults) for key in keys]
    usages = await limiter.current_usage(key_limits)
    return [_key_usage(key, limits, usage) for key, limits, usage in zip(keys, key_limits, usages, strict=True)]


def _key_limits(key: ShownKey, defaults: LimitSettings) -> KeyLimits:
    period = key.budget_period or "total"
    return KeyLimits(
        key_id=key.id,
        requests=key.rpm or defaults.rpm,
        tokens=key.tpm or defaults.tpm,
        concurrency=key.concurrency or 0,
        period=period,
        period_start=int(budget_period_start(period)),
    )


def _key_usage(key: ShownKey, limits: KeyLimits, usage: LimitUsage) -> KeyLimitUsage:
    spent_is_known = key.budget_usd is not None and usage.spent_nano_usd is not None
    return KeyLimitUsage(
        id=key.id,
        name=key.name,
        revoked=key.revoked is not None,
        rpm=limits.requests or None,
        requests=usage.requests,
        tokens=usage.tokens,
        tpm=limits.tokens or None,
        concurrency=key.concurrency,
        running=usage.running,
        budget_usd=key.budget_usd,
        budget_period=key.budget_period,
        spent_usd=(usage.spent_nano_usd or 0) / NANO_USD_PER_USD if spent_is_known else key.spent_usd,
        reserved_usd=usage.reserved_nano_usd / NANO_USD_PER_USD,
    )
