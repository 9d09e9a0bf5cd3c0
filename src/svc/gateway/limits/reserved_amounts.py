"""How many tokens and how much money a request reserves of the limits of its key. On the hot path."""

from __future__ import annotations

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import ASSUMED_OUTPUT_TOKENS, estimate_input_tokens
from svc.gateway.accounting.cost import PriceTable, compute_token_cost, to_nano_usd
from svc.gateway.limits.limit_errors import check_fits_limits, check_output_bounded
from svc.gateway.routing.backends import Backend
from svc.stores.counters.key_limits import KeyLimits
from svc.wire.usage import TokenUsage


def estimate_amounts(
    limits: KeyLimits,
    routing_info: RoutingInfo,
    body: RequestBody,
    backends: tuple[Backend, ...],
    prices: PriceTable,
) -> tuple[int, int]:
    """Return the tokens and nano-USD to reserve: those of the prompt and of the longest possible response.

    Each is 0 without its limit. Raises InvalidRequest if they can never meet the limits.
    """
    budget: int = limits.budget_nano_usd
    prompt = tokens = cost_nano_usd = 0
    if limits.tokens or budget:
        prompt = estimate_input_tokens(body, routing_info)
        check_output_bounded(routing_info)
        max_output_tokens = routing_info.choice_count * max(
            routing_info.max_tokens or _max_output_tokens(backends), routing_info.min_reserved_tokens
        )
        if not routing_info.has_completion:
            usage = TokenUsage(prompt)
        else:
            usage = TokenUsage(prompt, max_output_tokens or routing_info.choice_count * ASSUMED_OUTPUT_TOKENS)
        tokens = prompt + usage.completion_tokens if limits.tokens else 0
        cost_nano_usd = _max_cost_nano_usd(backends, prices, usage) if budget else 0
        if not max_output_tokens and routing_info.has_completion:
            tokens = _estimate_reservation(prompt, tokens, limits.tokens)
            cost_nano_usd = (
                _estimate_reservation(_max_cost_nano_usd(backends, prices, TokenUsage(prompt)), cost_nano_usd, budget)
                if budget
                else 0
            )
    check_fits_limits(limits, routing_info, prompt, tokens, cost_nano_usd)
    return tokens, cost_nano_usd


def _max_output_tokens(backends: tuple[Backend, ...]) -> int:
    """Return the largest maximum of output tokens, or 0 if no backend has a known maximum."""
    max_tokens = 0
    for backend in backends:
        max_tokens = max(max_tokens, backend.profile.max_output_tokens or 0)
    return max_tokens


def _max_cost_nano_usd(backends: tuple[Backend, ...], prices: PriceTable, usage: TokenUsage) -> int:
    """Return the cost at the most expensive backend. A backend without a known price counts as free."""
    max_usd = 0.0
    for backend in backends:
        price = prices.get_for_backend(backend)
        if price is not None:
            max_usd = max(max_usd, compute_token_cost(price, usage))
    return to_nano_usd(max_usd)


def _estimate_reservation(prompt_amount: int, full_amount: int, limit: int) -> int:
    """Return the amount to reserve for a prompt and a response of unknown length.

    The response gets at most 10 % of the limit. A key with a small limit can then send sequential requests, and an
    estimate alone never makes a request permanently impossible.
    """
    return max(prompt_amount, min(full_amount, prompt_amount + limit // 10, limit))
