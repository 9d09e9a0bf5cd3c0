"""How a limit is said to a client: what is left of it, that it is reached, that no waiting would help. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final

from svc.dialects.base import Head
from svc.errors import InvalidRequest, RateLimited
from svc.stores.base import period_end
from svc.stores.counting import Denied, Limits

NANO: Final = 1e9
"""Nano-USD in a USD."""
MAX_RETRY: Final = 120.0
"""Seconds; a client is not told to come back after a longer wait."""
_DURATIONS: Final = tuple(f"{n / 10:.1f}s" if n < 600 else f"1m{(n - 600) / 10:.1f}s" for n in range(611))
"""Each tenth of a second of a window as clients are told it: made once, since each request needs two."""
WORDS: Final = {
    "rpm": "The rate limit of this API key is reached: {} requests per minute (rpm).",
    "tpm": "The rate limit of this API key is reached: {} tokens per minute (tpm).",
    "concurrency": "The limit of this API key is reached: {} concurrent requests (concurrency).",
    "budget": "The budget of this API key, ${:g}, is spent or has too little left for this request (budget). "
    "A smaller max_tokens may fit.",
}
RESERVED: Final = "Too much of the budget of this API key, ${:g}, is reserved by running requests (budget)."


class LimitReached(RateLimited):
    """A limit of ours, with what is left of it in the headers. Unlike an upstream's, trying again helps."""

    def __init__(self, message: str, *, retry_after: float, lines: str, limit: str) -> None:
        super().__init__(message, retry_after=retry_after, limit=limit)
        self._lines = lines

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, **self._left()}

    def _left(self) -> dict[str, str]:
        """The headers that say what is left of the limits."""
        pairs = [line.partition(": ")[::2] for line in self._lines.split("\r\n") if line]
        return dict(pairs)


class QuotaExhausted(LimitReached):
    """A budget that does not refill soon: no retry helps, and the headers tell clients so.

    OpenAI's error type for it is `insufficient_quota`; its SDK, like others, obeys `x-should-retry`.
    """

    type = "insufficient_quota"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"x-should-retry": "false", **self._left()}


def shown(limits: Limits, requests: int, tokens: int, requests_reset: float, tokens_reset: float) -> str:
    """The headers that say what is left, and how long until all of it is there again."""
    lines = ""
    most: int = limits.requests
    if most:
        lines = (
            f"x-ratelimit-limit-requests: {most}\r\nx-ratelimit-remaining-requests: {requests}\r\n"
            f"x-ratelimit-reset-requests: {_duration(requests_reset)}\r\n"
        )
    most = limits.tokens
    if most:
        lines += (
            f"x-ratelimit-limit-tokens: {most}\r\nx-ratelimit-remaining-tokens: {tokens}\r\n"
            f"x-ratelimit-reset-tokens: {_duration(tokens_reset)}\r\n"
        )
    return lines


def _duration(seconds: float) -> str:
    """`1m0.3s`, `45.1s`, `0.0s`; a window is 61 seconds."""
    return _DURATIONS[max(0, min(int(seconds * 10 + 0.5), len(_DURATIONS) - 1))]


def refusal(limits: Limits, denied: Denied) -> LimitReached:
    """The error for a limit that is reached."""
    lines = shown(limits, denied.requests_left, denied.tokens_left, denied.requests_reset, denied.tokens_reset)
    if denied.limit == "budget":
        return _budget_refusal(limits, denied, lines)
    limit = {"rpm": limits.requests, "tpm": limits.tokens, "concurrency": limits.concurrency}[denied.limit]
    message = WORDS[denied.limit].format(limit)
    return LimitReached(message, retry_after=denied.retry_after, lines=lines, limit=denied.limit)


def _budget_refusal(limits: Limits, denied: Denied, lines: str) -> LimitReached:
    if denied.retry_after < math.inf:
        message = RESERVED.format(limits.budget / NANO)
        return LimitReached(message, retry_after=denied.retry_after, lines=lines, limit="budget")
    message = WORDS["budget"].format(limits.budget / NANO)
    message += f" It refills with the next {limits.period} (UTC)." if limits.period != "total" else ""
    wait = period_end(limits.period, limits.start) - time.time()
    kind = QuotaExhausted if wait > MAX_RETRY else LimitReached
    return kind(message, retry_after=wait, lines=lines, limit="budget")


def check_end(head: Head) -> None:
    """Raises InvalidRequest for a request whose answer has no end, so that nothing can be reserved for it."""
    if head.endless:
        raise InvalidRequest(
            f"`{head.endless}` below 0 asks for an answer without an end. A key with a limit of tokens or a budget "
            "cannot have one. Leave the field out, or set a number of tokens.",
            param=head.endless,
        )


def check_alone(limits: Limits, tokens: int, nanos: int) -> None:
    """Raises InvalidRequest for a request that no waiting would let through."""
    if limits.tokens and tokens > limits.tokens:
        raise InvalidRequest(
            f"This request may take {tokens} tokens, more than the {limits.tokens} a minute of this key: "
            "ask for a smaller max_tokens.",
            param="max_tokens",
        )
    if limits.budget and nanos > limits.budget:
        raise InvalidRequest(
            f"This request may cost ${nanos / NANO:.6f}, more than the whole budget of this key: "
            "ask for a smaller max_tokens.",
            param="max_tokens",
        )
