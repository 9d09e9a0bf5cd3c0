"""How a limit is said to a client: what is left of it, that it is reached, that no waiting would help. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from svc.errors import InvalidRequest, RateLimited
from svc.stores.counting import Denied, Limits
from svc.wire.key import Key

NANO: Final = 1e9
"""Nano-USD in a USD."""
MAX_RETRY: Final = 120.0
_DURATIONS: Final = tuple(f"{n / 10:.1f}s" if n < 600 else f"1m{(n - 600) / 10:.1f}s" for n in range(611))
"""Each tenth of a second of a window as clients are told it: made once, since each request needs two."""
WORDS: Final = {
    "requests": "The limit of {} requests a minute is reached.",
    "tokens": "The limit of {} tokens a minute is reached.",
    "concurrency": "The limit of {} requests at the same time is reached.",
    "budget": "The budget of ${:g} is spent.",
}


class LimitReached(RateLimited):
    """A limit of ours, with what is left of it in the headers. Unlike an upstream's, trying again helps."""

    def __init__(self, message: str, *, retry_after: float, lines: str, limit: str) -> None:
        super().__init__(message, retry_after=min(MAX_RETRY, retry_after))
        self.limit = limit
        self._lines = lines

    @property
    def headers(self) -> Mapping[str, str]:
        pairs = [line.partition(": ")[::2] for line in self._lines.split("\r\n") if line]
        return {**super().headers, **dict(pairs)}


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


def refusal(key: Key, limits: Limits, denied: Denied) -> LimitReached:
    limit = {
        "requests": limits.requests,
        "tokens": limits.tokens,
        "concurrency": limits.concurrency,
        "budget": key.budget_usd,
    }[denied.limit]
    message = WORDS[denied.limit].format(limit)
    if denied.limit == "budget" and limits.period != "total":
        message += f" It begins anew with the next {limits.period} (UTC)."
    lines = shown(limits, denied.requests_left, denied.tokens_left, denied.requests_reset, denied.tokens_reset)
    return LimitReached(message, retry_after=denied.retry_after, lines=lines, limit=denied.limit)


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
