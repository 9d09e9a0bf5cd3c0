"""What keys use of their limits at this moment, as the admin API shows it. It counts nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from svc.gateway.limits import Gate
from svc.gateway.refusals import NANO
from svc.keys.issuing import ShownKey
from svc.keys.using import KeyUse
from svc.settings import LimitSettings
from svc.stores.base import midnight
from svc.stores.counting import Limits, Use


async def uses(gate: Gate, keys: Sequence[ShownKey], defaults: LimitSettings) -> list[KeyUse]:
    """Of each key."""
    wanted = [_limits(key, defaults) for key in keys]
    found = await gate.use(wanted)
    return [_use(key, limits, use) for key, limits, use in zip(keys, wanted, found, strict=True)]


def _limits(key: ShownKey, defaults: LimitSettings) -> Limits:
    period = key.budget_period or "total"
    return Limits(
        key_id=key.id,
        requests=key.rpm or defaults.rpm,
        tokens=key.tpm or defaults.tpm,
        concurrency=key.concurrency or 0,
        period=period,
        start=int(midnight(period)),
    )


def _use(key: ShownKey, limits: Limits, use: Use) -> KeyUse:
    known = key.budget_usd is not None and use.spent is not None
    return KeyUse(
        id=key.id,
        name=key.name,
        revoked=key.revoked is not None,
        rpm=limits.requests or None,
        requests=use.requests,
        tokens=use.tokens,
        tpm=limits.tokens or None,
        concurrency=key.concurrency,
        running=use.running,
        budget_usd=key.budget_usd,
        budget_period=key.budget_period,
        spent_usd=(use.spent or 0) / NANO if known else key.spent_usd,
        reserved_usd=use.reserved / NANO,
    )
