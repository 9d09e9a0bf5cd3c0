"""The buckets of OpenTelemetry's conventions, which are computed and not searched."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from svc.gateway.observability.operations import duration_bucket, token_bucket
from svc.gateway.observability.series import OPERATION_BUCKETS_SECONDS, TOKEN_BUCKETS


def test_buckets_are_those_of_the_conventions() -> None:
    assert OPERATION_BUCKETS_SECONDS[:3] == (0.01, 0.02, 0.04)
    assert OPERATION_BUCKETS_SECONDS[-2:] == (40.96, 81.92)
    assert TOKEN_BUCKETS[:3] == (1, 4, 16)
    assert TOKEN_BUCKETS[-2:] == (16777216, 67108864)


@pytest.mark.parametrize("bound", OPERATION_BUCKETS_SECONDS)
def test_duration_bucket_near_each_bound_is_the_first_that_holds_the_value(bound: float) -> None:
    for seconds in (bound * 0.999, bound * 1.001, 0.0, 1e9):
        assert duration_bucket(seconds) == bisect_left(OPERATION_BUCKETS_SECONDS, seconds)


@pytest.mark.parametrize("bound", TOKEN_BUCKETS)
def test_token_bucket_at_each_bound_is_the_first_that_holds_the_value(bound: int) -> None:
    for tokens in (bound - 1, bound, bound + 1, 0, 10**12):
        assert token_bucket(tokens) == bisect_left(TOKEN_BUCKETS, tokens)
