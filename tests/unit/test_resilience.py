from email.utils import formatdate
from time import time

import pytest

from svc.resilience import Backoff, CircuitBreaker, parse_retry_after


def test_backoff_exponential_doubles_up_to_maximum() -> None:
    backoff = Backoff(0.5, 8.0)
    assert [backoff.exponential(attempt) for attempt in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert backoff.exponential(5000) == 8.0


def test_backoff_decorrelated_grows_within_bounds() -> None:
    backoff, waits = Backoff(0.1, 2.0), [0.0]
    for _ in range(200):
        waits.append(backoff.decorrelated(waits[-1]))
    assert 0.1 <= min(waits[1:]) < 0.3
    assert 1.0 < max(waits) <= 2.0


def test_backoff_decorrelated_first_delays_are_short_and_differ() -> None:
    waits = [Backoff(0.1, 2.0).decorrelated(0.0) for _ in range(100)]
    assert len({round(wait, 3) for wait in waits}) > 20
    assert max(waits) <= 0.3


def test_circuit_breaker_open_blocks_then_admits_one_probe_at_a_time() -> None:
    breaker = CircuitBreaker(Backoff(2.0, 60.0), probe_timeout_seconds=30.0)
    assert (breaker.acquire_request(0.0), breaker.may_serve(0.0), breaker.seconds_until_allowed(0.0)) == (
        True,
        True,
        0.0,
    )
    breaker.open(100.0)
    assert (breaker.acquire_request(101.5), breaker.may_serve(101.5), breaker.seconds_until_allowed(101.5)) == (
        False,
        False,
        0.5,
    )
    assert breaker.may_serve(102.0)
    assert breaker.state == "open"  # reading the state changes nothing
    assert [breaker.acquire_request(102.0) for _ in range(2)] == [True, False]
    assert (breaker.state, breaker.may_serve(131.0), breaker.seconds_until_allowed(131.0)) == ("half-open", False, 1.0)
    assert breaker.acquire_request(132.0)  # the first probe has timed out
    breaker.record_abandoned()
    assert breaker.acquire_request(132.0)
    breaker.close()
    assert breaker.acquire_request(132.0)


def test_circuit_breaker_failed_probes_double_open_time_until_closed() -> None:
    breaker = CircuitBreaker(Backoff(2.0, 5.0), probe_timeout_seconds=30.0)
    seconds = []
    for _ in range(4):
        breaker.open(0.0)
        seconds.append(breaker.open_seconds)
    breaker.close()
    breaker.open(0.0)
    assert [*seconds, breaker.open_seconds] == [2.0, 4.0, 5.0, 5.0, 2.0]


def test_circuit_breaker_open_until_blocks_until_that_time() -> None:
    breaker = CircuitBreaker(Backoff(2.0, 60.0), probe_timeout_seconds=30.0)
    breaker.open_until(7.0)
    assert (breaker.acquire_request(6.9), breaker.acquire_request(7.0)) == (False, True)


@pytest.mark.parametrize(
    ("milliseconds", "value", "seconds"),
    [
        (None, None, None),
        ("", "", None),
        (None, "3", 3.0),
        (None, "0", 0.0),
        ("1500", "9", 1.5),
        ("soon", "9", 9.0),
        (None, "soon", None),
        (None, "\xff", None),
        (None, "-5", None),
        (None, "nan", None),
        (None, "9" * 400, 86400.0),
        ("inf", None, 86400.0),
        ("nan", None, None),
        ("-1", None, None),
        (None, "Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (None, "Thursday, 01-Jan-70 00:00:00 GMT", 0.0),
        (None, "Thu Jan  1 00:00:00 1970", 0.0),
        (None, "Thu, 01 Jan 99999 00:00:00 GMT", None),
    ],
)
def test_parse_retry_after_header_values_give_seconds(
    milliseconds: str | None, value: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(milliseconds, value) == seconds


def test_parse_retry_after_date_gives_seconds_from_now() -> None:
    seconds = parse_retry_after(None, formatdate(time() + 60, usegmt=True))
    assert seconds is not None
    assert 55 < seconds <= 61
