"""Rate limit headers, and errors for limits that are reached or that a request can never meet. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final

from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest, RateLimited
from svc.gateway.accounting.cost import NANO_USD_PER_USD
from svc.stores.budget_period import budget_period_end
from svc.stores.counters.base import LimitExceeded
from svc.stores.counters.key_limits import KeyLimits
from svc.wire.limit_state import LimitState
from svc.wire.usage import format_usd

MAX_BUDGET_RETRY_AFTER_SECONDS: Final = 120.0
"""If a budget refills later than this many seconds, the response tells clients not to retry."""
_FORMATTED_DURATIONS: Final = tuple(f"{n / 10:.1f}s" if n < 600 else f"1m{(n - 600) / 10:.1f}s" for n in range(611))
"""Formatted durations in steps of 0.1 s. Precomputed, because each request needs two."""
LIMIT_REACHED_MESSAGES: Final = {
    "rpm": "The rate limit of this API key is reached: {} per minute (rpm).",
    "tpm": "The rate limit of this API key is reached: {} per minute (tpm).",
    "concurrency": "The limit of this API key is reached: {} (concurrency).",
    "budget": "The budget of this API key, ${}, is used up or too small for this request (budget). "
    "A lower limit of output tokens may fit.",
}
LIMIT_UNITS: Final = {"rpm": "request", "tpm": "token", "concurrency": "concurrent request"}
BUDGET_RESERVED_MESSAGE: Final = (
    "Too much of the budget of this API key, ${}, is reserved by running requests (budget)."
)


class LimitReached(RateLimited):
    """A limit of the gateway is reached. The headers contain the remaining amounts. The client may retry later."""

    def __init__(
        self, message: str, *, retry_after: float, header_lines: str, limit: str, state: LimitState | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after, limit=limit)
        self._header_lines = header_lines
        self.state = state
        """The limit and its use, for the explanation of the request."""

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, **self._rate_limit_headers()}

    def _rate_limit_headers(self) -> dict[str, str]:
        """Return the rate limit headers."""
        pairs = [line.partition(": ")[::2] for line in self._header_lines.split("\r\n") if line]
        return dict(pairs)


class QuotaExhausted(LimitReached):
    """A budget is spent and does not refill soon. The headers tell clients not to retry.

    The error type is OpenAI's `insufficient_quota`. OpenAI's SDK and others obey `x-should-retry`.
    """

    type = "insufficient_quota"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"x-should-retry": "false", **self._rate_limit_headers()}


def format_rate_limit_headers(
    limits: KeyLimits, remaining_requests: int, remaining_tokens: int, requests_reset: float, tokens_reset: float
) -> str:
    """Return header lines with the limits, the remaining amounts, and the seconds until the limits are full again."""
    lines = ""
    limit: int = limits.requests
    if limit:
        lines = (
            f"x-ratelimit-limit-requests: {limit}\r\nx-ratelimit-remaining-requests: {remaining_requests}\r\n"
            f"x-ratelimit-reset-requests: {_format_duration(requests_reset)}\r\n"
        )
    limit = limits.tokens
    if limit:
        lines += (
            f"x-ratelimit-limit-tokens: {limit}\r\nx-ratelimit-remaining-tokens: {remaining_tokens}\r\n"
            f"x-ratelimit-reset-tokens: {_format_duration(tokens_reset)}\r\n"
        )
    return lines


def _format_duration(seconds: float) -> str:
    """Format a duration, such as `1m0.3s`, `45.1s` or `0.0s`. The maximum is the window of 61 seconds."""
    return _FORMATTED_DURATIONS[max(0, min(int(seconds * 10 + 0.5), len(_FORMATTED_DURATIONS) - 1))]


def build_limit_error(
    limits: KeyLimits, denied: LimitExceeded, tokens: int = 0, cost_nano_usd: int = 0
) -> LimitReached:
    """Return the error for a limit that is reached. `tokens` and `cost_nano_usd` are what the request needs."""
    error = _build_error(limits, denied)
    error.state = _describe_state(limits, denied, tokens, cost_nano_usd, error.retry_after)
    return error


def _describe_state(
    limits: KeyLimits, denied: LimitExceeded, tokens: int, cost_nano_usd: int, retry_after: float
) -> LimitState:
    usage, name = denied.usage, denied.limit
    is_ephemeral = bool(limits.parent_id)
    refill_seconds: float | None = retry_after if retry_after < math.inf else None
    if name == "budget":
        if denied.retry_after < math.inf:  # a running request may cost less than it reserves
            refill_seconds = None
        return LimitState(
            name="budget",
            scope="ephemeral_key" if is_ephemeral else "key",
            scope_id=limits.key_id,
            unit="USD",
            size=limits.budget_nano_usd / NANO_USD_PER_USD,
            used=(usage.spent_nano_usd or 0) / NANO_USD_PER_USD,
            reserved=usage.reserved_nano_usd / NANO_USD_PER_USD,
            requested=cost_nano_usd / NANO_USD_PER_USD,
            running=usage.running,
            period="day" if limits.period == "day" else "month" if limits.period == "month" else "total",
            period_start=float(limits.period_start),
            refill_seconds=refill_seconds,
        )
    return LimitState(
        name="rpm" if name == "rpm" else "tpm" if name == "tpm" else "concurrency",
        scope="ephemeral_key" if is_ephemeral else "key",
        scope_id=limits.key_id,
        unit="requests" if name == "rpm" else "tokens" if name == "tpm" else "concurrent requests",
        size={"rpm": limits.requests, "tpm": limits.tokens, "concurrency": limits.concurrency}[name],
        used={"rpm": usage.requests, "tpm": usage.tokens, "concurrency": usage.running}[name],
        reserved=0,
        requested=tokens if name == "tpm" else 1,
        running=usage.running,
        period=None if name == "concurrency" else "minute",
        period_start=None,
        refill_seconds=None if name == "concurrency" else refill_seconds,
    )


def _build_error(limits: KeyLimits, denied: LimitExceeded) -> LimitReached:
    header_lines = format_rate_limit_headers(
        limits, denied.requests_left, denied.tokens_left, denied.requests_reset, denied.tokens_reset
    )
    if denied.limit == "budget":
        return _build_budget_error(limits, denied, header_lines)
    limit = {"rpm": limits.requests, "tpm": limits.tokens, "concurrency": limits.concurrency}[denied.limit]
    message = describe_reached_limit(denied.limit, limit)
    return LimitReached(message, retry_after=denied.retry_after, header_lines=header_lines, limit=denied.limit)


def describe_reached_limit(name: str, limit: int) -> str:
    """Return the message for a reached `rpm`, `tpm` or `concurrency`."""
    return LIMIT_REACHED_MESSAGES[name].format(_format_count(limit, LIMIT_UNITS[name]))


def _format_count(count: int, unit: str) -> str:
    """Format a count with its unit: `1 request`, `2 requests`."""
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _build_budget_error(limits: KeyLimits, denied: LimitExceeded, header_lines: str) -> LimitReached:
    if denied.retry_after < math.inf:
        message = BUDGET_RESERVED_MESSAGE.format(format_usd(limits.budget_nano_usd / NANO_USD_PER_USD))
        return LimitReached(message, retry_after=denied.retry_after, header_lines=header_lines, limit="budget")
    message = LIMIT_REACHED_MESSAGES["budget"].format(format_usd(limits.budget_nano_usd / NANO_USD_PER_USD))
    message += f" It refills at the start of the next {limits.period} (UTC)." if limits.period != "total" else ""
    retry_after = budget_period_end(limits.period, limits.period_start) - time.time()
    error_type = QuotaExhausted if retry_after > MAX_BUDGET_RETRY_AFTER_SECONDS else LimitReached
    return error_type(message, retry_after=retry_after, header_lines=header_lines, limit="budget")


def check_output_bounded(routing_info: RoutingInfo) -> None:
    """Raise InvalidRequest if a request sets no bound on its output, so that no amount can be reserved."""
    if routing_info.unbounded_field:
        raise InvalidRequest(
            f"`{routing_info.unbounded_field}` below 0 requests an unlimited response. "
            "A key with a token limit or a budget cannot use it. Omit the field, or set a number of tokens.",
            param=routing_info.unbounded_field,
        )


def check_fits_limits(
    limits: KeyLimits, routing_info: RoutingInfo, prompt_tokens: int, tokens: int, cost_nano_usd: int
) -> None:
    """Raise InvalidRequest if a request exceeds a limit of the key even when nothing else uses it.

    `tokens` includes `prompt_tokens`, or is 0 without a limit of tokens.
    """
    can_shorten = routing_info.has_completion and not 0 < limits.tokens <= prompt_tokens
    param = routing_info.max_tokens_field if can_shorten else None
    advice = f"set a smaller {param}" if param is not None else "send less"
    if limits.tokens and tokens > limits.tokens:
        raise InvalidRequest(
            f"This request may use {_format_count(tokens, 'token')}, "
            f"more than the {_format_count(limits.tokens, 'token')} per minute of this key: {advice}.",
            param=param,
        )
    if limits.budget_nano_usd and cost_nano_usd > limits.budget_nano_usd:
        raise InvalidRequest(
            f"This request may cost ${cost_nano_usd / NANO_USD_PER_USD:.6f}, more than the whole budget of this key: "
            f"{advice}.",
            param=param,
        )
