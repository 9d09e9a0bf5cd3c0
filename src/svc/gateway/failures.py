"""What a failed attempt means: the error that a client sees, and where else the request may go. Pure functions."""

from __future__ import annotations

import enum
import math
import random
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Final

import msgspec

from svc.dialects.base import Dialect
from svc.dialects.failures import credentials_refused
from svc.errors import InvalidRequest, ModelNotFound, ProviderFailed, RateLimited, SvcError

WAITABLE: Final = 2.0
"""Seconds; a provider that says `retry-after` a longer time is not waited for."""
LONGEST: Final = 86400.0
BACKOFF_BASE: Final = 0.1
BACKOFF_CAP: Final = 2.0


_KIND: Final = r"(image|audio|video|file)"
_NO_INPUT: Final = re.compile(
    rf"{_KIND} input is not supported|no endpoints found that support {_KIND} input"
    rf"|(?:does|do) not support {_KIND}s?\b|unsupported content part type: \W*{_KIND}"
    rf"|missing data required for {_KIND} input",
    re.IGNORECASE,
)


class Then(enum.Enum):
    """Where a request may go after a failure."""

    AGAIN = "the same target, then the next"
    NEXT = "the next target"
    NOWHERE = "nowhere: it would fail everywhere"


class Failure(msgspec.Struct, frozen=True):
    """How an attempt failed; `retry_after` in seconds, as the provider said it."""

    error: SvcError
    then: Then
    retry_after: float | None = None
    silent: bool = False
    """There was no answer at all, or only that the provider is out of order."""


def judge(status: int, headers: Mapping[bytes, bytes], message: str | None) -> Failure:
    """The failure that an upstream's status means. `message` is the upstream's own."""
    if (kind := _refused_input(status, message)) is not None:
        return Failure(InvalidRequest(f"This model takes no {kind} input.", param="messages"), Then.NOWHERE)
    if status in (400, 413, 422):
        return Failure(InvalidRequest(message or "The provider refused the request as malformed."), Then.NOWHERE)
    if status == 404:
        return Failure(ModelNotFound(message or "The provider does not know the model.", param="model"), Then.NOWHERE)
    if status == 429:
        return _limited(retry_after(headers))
    if status in (401, 403):
        return Failure(credentials_refused(), Then.NEXT)
    if status == 408 or status >= 500:
        words = "is overloaded" if status in (503, 529) else f"failed with status {status}"
        return Failure(ProviderFailed(f"The provider {words}."), Then.AGAIN, retry_after(headers), True)
    if 400 <= status < 500:
        return Failure(ProviderFailed(f"The provider refused the request with status {status}."), Then.NOWHERE)
    return Failure(ProviderFailed(f"The provider answered with the unexpected status {status}."), Then.NEXT)


def judge_answer(
    upstream: Dialect, client: Dialect, status: int, headers: Mapping[bytes, bytes], raw: bytes
) -> Failure:
    """As `judge`, for a whole error answer; a client of the upstream's dialect gets the upstream's own error."""
    message = upstream.read_error(raw)
    failure = judge(status, headers, message)
    if upstream is client:
        failure.error.upstream = upstream.relayed_error(status, headers, raw)
        if failure.error.upstream is not None and message:
            failure.error.message = message
    return failure


def _refused_input(status: int, message: str | None) -> str | None:
    """The kind of input that a model does not take, if the upstream says so with an unspecific status.

    llama.cpp answers 500 ("image input is not supported"), OpenRouter 404 ("No endpoints found that support image
    input"). The request would fail each time, so no other try is made.
    """
    if not message or (status < 500 and status != 404):
        return None
    found = _NO_INPUT.search(message)
    return found.group(found.lastindex or 0).lower() if found is not None else None


def lost(reason: str, *, made: bool) -> Failure:
    """No connection, or one that was `made` and broke, or brought what is not HTTP. `reason` is for the log."""
    words = "The provider gave no whole answer." if made else "The provider could not be reached."
    return Failure(ProviderFailed(words, reason=reason), Then.AGAIN, silent=True)


def late(what: str, reason: str = "") -> Failure:
    """A time-out: tried elsewhere, never twice at the same place."""
    return Failure(ProviderFailed(f"The provider took too long {what}.", reason=reason), Then.NEXT, silent=True)


def not_understood(error: SvcError) -> Failure:
    """An answer that cannot be used: it is paid for, so it is not asked for again at the same place.

    Where the provider itself said that it failed, that is as good as a status 5xx.
    """
    error.bare()
    if isinstance(error, InvalidRequest):
        return Failure(error, Then.NOWHERE)
    if isinstance(error, RateLimited):
        return _limited(None)
    told = isinstance(error, ProviderFailed) and error.told
    return Failure(error, Then.AGAIN if told else Then.NEXT)


def _limited(after: float | None) -> Failure:
    wait = 1.0 if after is None else after
    then = Then.AGAIN if wait <= WAITABLE else Then.NEXT
    error = RateLimited("The provider's rate limit is reached (upstream).", retry_after=wait, limit="upstream")
    return Failure(error, then, after)


def retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Seconds, LONGEST at most, from `retry-after-ms` or `retry-after` (a number or a date); None if not usable."""
    try:
        seconds = _seconds(headers)
    except (ValueError, OverflowError, TypeError):
        return None
    return None if seconds is None or math.isnan(seconds) else min(max(0.0, seconds), LONGEST)


def _seconds(headers: Mapping[bytes, bytes]) -> float | None:
    if milliseconds := headers.get(b"retry-after-ms"):
        return float(milliseconds) / 1000
    value = headers.get(b"retry-after", b"").decode("ascii")
    if not value:
        return None
    if value.replace(".", "", 1).isdigit():
        return float(value)
    return parsedate_to_datetime(value).timestamp() - time()


def backoff(previous: float) -> float:
    """Decorrelated jitter: seconds to wait, given the wait before (0 at first)."""
    return min(BACKOFF_CAP, random.uniform(BACKOFF_BASE, 3 * (previous or BACKOFF_BASE)))  # noqa: S311
