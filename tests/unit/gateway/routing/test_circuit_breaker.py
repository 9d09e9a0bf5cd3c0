from svc.gateway.routing.circuit_breaker import (
    BREAKER_PROBE_TIMEOUT_SECONDS,
    MAX_OPEN_SECONDS,
    MIN_OPEN_SECONDS,
    MIN_WINDOW_REQUESTS,
    BackendCircuitBreaker,
    worst_state,
)


def open_breaker(now: float = 100.0) -> BackendCircuitBreaker:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS):
        breaker.record_failure(now, is_outage=True)
    assert breaker.state == "open"
    assert not breaker.has_responses
    return breaker


def test_breaker_below_minimum_requests_stays_closed() -> None:
    breaker = BackendCircuitBreaker()
    for at in range(MIN_WINDOW_REQUESTS - 1):
        breaker.record_failure(100 + at / 10)
    assert breaker.state == "closed"
    breaker.record_failure(120.0)  # the others have left the window
    assert breaker.state == "closed"


def test_breaker_half_of_requests_failing_opens() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(11):
        breaker.record_success(100.0, 0.1, stream=False)
    for _ in range(10):
        breaker.record_failure(100.0)
    assert breaker.state == "closed"
    breaker.record_failure(100.0)
    assert breaker.state == "open"
    assert breaker.has_responses
    assert not breaker.opened_for_slowness
    assert not breaker.acquire_request(100.1)


def test_breaker_broken_stream_is_counted_once() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS // 2):
        breaker.record_success(100.0, 0.1, stream=True)
        breaker.record_failure(100.0, already_counted=True)
    assert breaker.state == "closed"
    for _ in range(MIN_WINDOW_REQUESTS // 2):
        breaker.record_success(100.0, 0.1, stream=True)
        breaker.record_failure(100.0, already_counted=True)
    assert breaker.state == "open"


def test_breaker_half_open_allows_one_probe_and_success_closes() -> None:
    breaker = open_breaker()
    later = 100 + MIN_OPEN_SECONDS
    assert [breaker.acquire_request(later) for _ in range(3)] == [True, False, False]
    breaker.record_success(later, 0.1, stream=True)
    assert breaker.state == "closed"
    assert breaker.acquire_request(later)
    breaker.record_failure(later)
    assert breaker.state == "closed"


def test_breaker_failed_probe_doubles_open_time() -> None:
    breaker = open_breaker()
    now, open_time = 100.0, MIN_OPEN_SECONDS
    for _ in range(10):
        assert not breaker.acquire_request(now + open_time * 0.99)
        now += open_time
        assert breaker.acquire_request(now)
        breaker.record_failure(now)
        open_time = min(MAX_OPEN_SECONDS, open_time * 2)
    assert open_time == MAX_OPEN_SECONDS


def test_breaker_abandoned_probe_stays_half_open() -> None:
    breaker = open_breaker()
    later = 100 + MIN_OPEN_SECONDS
    assert breaker.acquire_request(later)
    breaker.record_abandoned()
    assert breaker.state == "half-open"
    assert breaker.acquire_request(later)
    assert not breaker.acquire_request(later)
    assert breaker.acquire_request(later + BREAKER_PROBE_TIMEOUT_SECONDS)


def test_breaker_slow_responses_open() -> None:
    breaker = BackendCircuitBreaker(slow_after=0.5)
    for _ in range(MIN_WINDOW_REQUESTS):
        breaker.record_success(100.0, 0.6, stream=True)
    assert breaker.state == "open"
    assert breaker.opened_for_slowness
    assert breaker.acquire_request(100 + MIN_OPEN_SECONDS)
    breaker.record_success(100 + MIN_OPEN_SECONDS, 0.6, stream=True)
    assert breaker.state == "open"
    assert breaker.acquire_request(100 + MIN_OPEN_SECONDS * 3)
    breaker.record_success(100 + MIN_OPEN_SECONDS * 3, 0.1, stream=True)
    assert breaker.state == "closed"


def test_breaker_slowness_is_relative_to_usual_latency() -> None:
    """A constant 20 s to the first byte is not slow. A change from 0.3 s to 4 s is."""
    always_slow, usually_fast = BackendCircuitBreaker(), BackendCircuitBreaker()
    for at in range(100):
        always_slow.record_success(100 + at, 20.0, stream=True)
        usually_fast.record_success(100 + at, 0.3, stream=True)
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        always_slow.record_success(201.0, 24.0, stream=True)
        usually_fast.record_success(201.0, 4.0, stream=True)
    assert (always_slow.state, usually_fast.state) == ("closed", "open")


def test_breaker_long_unstreamed_responses_do_not_count_as_slow_streams() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        breaker.record_success(100.0, 0.3, stream=True)
        breaker.record_success(100.0, 30.0, stream=False)
    assert breaker.state == "closed"


def test_breaker_hedge_loss_counts_only_when_far_slower_than_usual() -> None:
    new, known = BackendCircuitBreaker(), BackendCircuitBreaker()
    known.record_success(100.0, 0.3, stream=True)
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        new.record_hedge_loss(100.0, 9.0, stream=True)
        known.record_hedge_loss(100.0, 0.5, stream=True)
    assert (new.state, known.state) == ("closed", "closed")
    for _ in range(MIN_WINDOW_REQUESTS):
        known.record_hedge_loss(100.0, 0.7, stream=True)
    assert (known.state, known.opened_for_slowness) == ("open", True)


def test_breaker_probe_with_hedge_loss_stays_half_open() -> None:
    breaker = open_breaker()
    later = 100 + MIN_OPEN_SECONDS
    assert breaker.acquire_request(later)
    breaker.record_hedge_loss(later, 0.2, stream=True)
    assert breaker.state == "half-open"
    assert breaker.acquire_request(later)


def test_breaker_may_serve_predicts_acquire_request_without_state_change() -> None:
    breaker = BackendCircuitBreaker()
    assert breaker.may_serve(100.0)
    breaker = open_breaker()
    assert not breaker.may_serve(100 + MIN_OPEN_SECONDS - 0.01)
    assert breaker.may_serve(100 + MIN_OPEN_SECONDS)
    assert breaker.state == "open"
    assert breaker.acquire_request(100 + MIN_OPEN_SECONDS)
    assert not breaker.may_serve(100 + MIN_OPEN_SECONDS)
    assert breaker.may_serve(100 + MIN_OPEN_SECONDS + BREAKER_PROBE_TIMEOUT_SECONDS)


def test_breaker_usual_latency_adapts_slowly() -> None:
    """After 200 responses of 4 s, the usual latency is 4 s instead of the earlier 1 s."""
    for seconds, state in ((15.0, "closed"), (25.0, "open")):
        breaker = BackendCircuitBreaker()
        for step in range(100):
            breaker.record_success(100.0 + step, 1.0, stream=True)
        for step in range(200):
            breaker.record_success(200.0 + step, 4.0, stream=True)
        for _ in range(MIN_WINDOW_REQUESTS):
            breaker.record_success(420.0, seconds, stream=True)
        assert (breaker.state, breaker.opened_for_slowness) == (state, state == "open")


def test_breaker_open_from_peer_when_closed_opens_for_given_time() -> None:
    breaker = BackendCircuitBreaker()
    assert breaker.open_from_peer(100.0, 3.0, is_slow=True, has_responses=True)
    assert (breaker.state, breaker.opened_for_slowness, breaker.has_responses) == ("open", True, True)
    assert not breaker.acquire_request(102.9)
    assert not breaker.open_from_peer(102.9, 9.0, is_slow=False, has_responses=False)
    assert breaker.acquire_request(103.0)
    assert not breaker.open_from_peer(103.0, 9.0, is_slow=False, has_responses=False)
    assert breaker.state == "half-open"


def test_breaker_open_from_peer_clears_window() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS - 1):
        breaker.record_failure(100.0)
    breaker.open_from_peer(100.0, 1.0, is_slow=False, has_responses=False)
    assert breaker.acquire_request(101.0)
    breaker.record_success(101.0, 0.1, stream=True)
    breaker.record_failure(101.0)
    assert breaker.state == "closed"


def test_worst_state_of_several_returns_most_severe() -> None:
    assert worst_state(["closed", "open", "half-open"]) == "open"
    assert worst_state(["closed", "half-open"]) == "half-open"
    assert worst_state(["closed"]) == "closed"
    assert worst_state([]) == "closed"


def test_breaker_open_seconds_is_current_open_time() -> None:
    breaker = open_breaker()
    assert breaker.open_seconds == MIN_OPEN_SECONDS
    assert breaker.acquire_request(100 + MIN_OPEN_SECONDS)
    breaker.record_failure(100 + MIN_OPEN_SECONDS)
    assert breaker.open_seconds == 2 * MIN_OPEN_SECONDS
