"""The errors that clients get when a limit is reached."""

from __future__ import annotations

import math
import time

import pytest

from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.gateway.limits.limit_errors import LimitReached, build_limit_error, check_fits_limits
from svc.stores.budget_period import budget_period_end, budget_period_start
from svc.stores.counters.base import LimitExceeded
from svc.stores.counters.key_limits import KeyLimits

DAY = 86_400.0


def spent(period: str, start: float, *, wait: float = math.inf) -> LimitReached:
    limits = KeyLimits(key_id="k", budget_nano_usd=10**9, period=period, period_start=int(start))
    return build_limit_error(limits, LimitExceeded("budget", wait, 0, 0))


def test_limit_error_total_budget_spent_has_should_retry_false() -> None:
    error = spent("total", 0)
    assert error.type == "insufficient_quota"
    assert error.code == "rate_limit_exceeded"
    assert error.headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(("left", "type_"), [(60.0, "rate_limit_error"), (600.0, "insufficient_quota")])
def test_limit_error_day_budget_type_depends_on_time_left(left: float, type_: str) -> None:
    error = spent("day", time.time() - DAY + left)
    assert error.type == type_
    assert ("retry-after" in error.headers) == (type_ == "rate_limit_error")


def test_limit_error_day_budget_retry_after_is_time_to_next_day() -> None:
    assert 55 <= int(spent("day", time.time() - DAY + 60).headers["retry-after"]) <= 60


def test_limit_error_budget_reserved_by_requests_has_retry_after() -> None:
    error = spent("total", 0, wait=1.0)
    assert error.type == "rate_limit_error"
    assert error.headers == {"retry-after": "1"}
    assert "(budget)" in error.message


@pytest.mark.parametrize("limit", ["rpm", "tpm", "concurrency", "budget"])
def test_limit_error_message_names_the_limit(limit: str) -> None:
    limits = KeyLimits(key_id="k", requests=1, tokens=2, concurrency=3, budget_nano_usd=4)
    error = build_limit_error(limits, LimitExceeded(limit, 1.0, 0, 0))
    assert f"({limit})" in error.message
    assert error.limit == limit


def test_budget_period_end_each_period_is_correct() -> None:
    december = budget_period_start("month", 1_766_000_000)
    assert budget_period_end("day", 86_400) == 2 * DAY
    assert budget_period_end("month", december) == december + 31 * DAY
    assert budget_period_end("total", 0) == math.inf


@pytest.mark.parametrize(
    ("prompt_tokens", "advice", "param"),
    [(1999, "set a smaller max_tokens", "max_tokens"), (2000, "send less", None), (90_000, "send less", None)],
)
def test_request_above_the_token_limit_is_told_what_can_be_smaller(
    prompt_tokens: int, advice: str, param: str | None
) -> None:
    limits = KeyLimits(key_id="k", tokens=2000)
    with pytest.raises(InvalidRequest, match=f"per minute of this key: {advice}") as caught:
        check_fits_limits(limits, RoutingInfo(model="m"), prompt_tokens, prompt_tokens + 16, 0)
    assert caught.value.param == param
