"""Explains the cost of a request: token counts times prices. `cost` computes costs."""

from __future__ import annotations

from svc.gateway.accounting.cost import compute_token_cost
from svc.gateway.accounting.price import Price
from svc.stores.database.base import LedgerEntry
from svc.wire.usage import TokenUsage


def format_cost_formula(entry: LedgerEntry, price: Price) -> str | None:
    """Return for example `(10 x 0.15 + 5 x 0.6) / 1000000`, or None if the price does not result in the cost.

    The price can have changed since, and the cost of a resumed request has parts of several models.
    """
    usage = TokenUsage(
        prompt_tokens=entry.prompt_tokens or 0,
        completion_tokens=entry.completion_tokens or 0,
        cached_tokens=entry.cached_tokens or 0,
        cache_write_tokens=entry.cache_write_tokens or 0,
    )
    if compute_token_cost(price, usage) != entry.cost_usd:
        return None
    for start, tier in price.tiers:
        if usage.prompt_tokens > start:
            price = tier
    terms = [
        (usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens, price.input),
        (usage.cached_tokens, price.input if price.cached is None else price.cached),
        (usage.cache_write_tokens, price.input if price.written is None else price.written),
        (usage.completion_tokens, price.output),
    ]
    products = [f"{tokens} x {usd:g}" for tokens, usd in terms if tokens > 0]
    return f"({' + '.join(products)}) / 1000000" if products else None
