from svc.gateway.routing.circuit_breaker import (
    BREAKER_PROBE_TIMEOUT_SECONDS,
    MAX_OPEN_SECONDS,
    MIN_OPEN_SECONDS,
    MIN_WINDOW_REQUESTS,
    BackendCircuitBreaker,
    worst_state,
)


def broken(now: float = 100.0) -> BackendCircuitBreaker:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS):
        breaker.record_failure(now, no_response=True)
    assert breaker.state == "open"
    assert not breaker.has_responses
    return breaker


def test_it_needs_twenty_requests_in_its_window() -> None:
    breaker = BackendCircuitBreaker()
    for at in range(MIN_WINDOW_REQUESTS - 1):
        breaker.record_failure(100 + at / 10)
    assert breaker.state == "closed"
    breaker.record_failure(120.0)  # the others are too old by now
    assert breaker.state == "closed"


def test_half_of_them_failing_opens_it() -> None:
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
    assert not breaker.allow_request(100.1)


def test_streams_that_break_count_once() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS // 2):
        breaker.record_success(100.0, 0.1, stream=True)
        breaker.record_failure(100.0, already_counted=True)
    assert breaker.state == "closed"
    for _ in range(MIN_WINDOW_REQUESTS // 2):
        breaker.record_success(100.0, 0.1, stream=True)
        breaker.record_failure(100.0, already_counted=True)
    assert breaker.state == "open"


def test_one_probe_at_a_time_and_an_answer_closes_it() -> None:
    breaker = broken()
    later = 100 + MIN_OPEN_SECONDS
    assert [breaker.allow_request(later) for _ in range(3)] == [True, False, False]
    breaker.record_success(later, 0.1, stream=True)
    assert breaker.state == "closed"
    assert breaker.allow_request(later)
    breaker.record_failure(later)
    assert breaker.state == "closed"


def test_a_failed_probe_makes_it_rest_twice_as_long() -> None:
    breaker = broken()
    now, rest = 100.0, MIN_OPEN_SECONDS
    for _ in range(10):
        assert not breaker.allow_request(now + rest * 0.99)
        now += rest
        assert breaker.allow_request(now)
        breaker.record_failure(now)
        rest = min(MAX_OPEN_SECONDS, rest * 2)
    assert rest == MAX_OPEN_SECONDS


def test_a_probe_whose_client_left_says_nothing() -> None:
    breaker = broken()
    later = 100 + MIN_OPEN_SECONDS
    assert breaker.allow_request(later)
    breaker.record_abandoned()
    assert breaker.state == "half-open"
    assert breaker.allow_request(later)
    assert not breaker.allow_request(later)
    assert breaker.allow_request(later + BREAKER_PROBE_TIMEOUT_SECONDS)


def test_slow_answers_open_it_too() -> None:
    breaker = BackendCircuitBreaker(slow_after=0.5)
    for _ in range(MIN_WINDOW_REQUESTS):
        breaker.record_success(100.0, 0.6, stream=True)
    assert breaker.state == "open"
    assert breaker.opened_for_slowness
    assert breaker.allow_request(100 + MIN_OPEN_SECONDS)
    breaker.record_success(100 + MIN_OPEN_SECONDS, 0.6, stream=True)
    assert breaker.state == "open"
    assert breaker.allow_request(100 + MIN_OPEN_SECONDS * 3)
    breaker.record_success(100 + MIN_OPEN_SECONDS * 3, 0.1, stream=True)
    assert breaker.state == "closed"


def test_slow_is_what_is_slow_for_this_target() -> None:
    """A model that always thinks for 20 s is not out of order; one that took 0.3 s and takes 4 s is."""
    patient, quick = BackendCircuitBreaker(), BackendCircuitBreaker()
    for at in range(100):
        patient.record_success(100 + at, 20.0, stream=True)
        quick.record_success(100 + at, 0.3, stream=True)
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        patient.record_success(201.0, 24.0, stream=True)
        quick.record_success(201.0, 4.0, stream=True)
    assert (patient.state, quick.state) == ("closed", "open")


def test_long_whole_answers_do_not_make_streams_slow() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        breaker.record_success(100.0, 0.3, stream=True)
        breaker.record_success(100.0, 30.0, stream=False)
    assert breaker.state == "closed"


def test_being_outrun_says_something_only_of_who_was_silent_for_far_too_long() -> None:
    new, known = BackendCircuitBreaker(), BackendCircuitBreaker()
    known.record_success(100.0, 0.3, stream=True)
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        new.record_hedge_loss(100.0, 9.0, stream=True)
        known.record_hedge_loss(100.0, 0.5, stream=True)
    assert (new.state, known.state) == ("closed", "closed")
    for _ in range(MIN_WINDOW_REQUESTS):
        known.record_hedge_loss(100.0, 0.7, stream=True)
    assert (known.state, known.opened_for_slowness) == ("open", True)


def test_a_probe_that_was_outrun_is_no_answer() -> None:
    breaker = broken()
    later = 100 + MIN_OPEN_SECONDS
    assert breaker.allow_request(later)
    breaker.record_hedge_loss(later, 0.2, stream=True)
    assert breaker.state == "half-open"
    assert breaker.allow_request(later)


def test_might_says_what_admits_would_and_changes_nothing() -> None:
    breaker = BackendCircuitBreaker()
    assert breaker.may_serve(100.0)
    breaker = broken()
    assert not breaker.may_serve(100 + MIN_OPEN_SECONDS - 0.01)
    assert breaker.may_serve(100 + MIN_OPEN_SECONDS)
    assert breaker.state == "open"
    assert breaker.allow_request(100 + MIN_OPEN_SECONDS)
    assert not breaker.may_serve(100 + MIN_OPEN_SECONDS)
    assert breaker.may_serve(100 + MIN_OPEN_SECONDS + BREAKER_PROBE_TIMEOUT_SECONDS)


def test_usual_time_follows_the_answers_slowly() -> None:
    """A target that got slower over a hundred answers is judged by what is usual now: 4 s, not 1 s."""
    for seconds, state in ((15.0, "closed"), (25.0, "open")):
        breaker = BackendCircuitBreaker()
        for step in range(100):
            breaker.record_success(100.0 + step, 1.0, stream=True)
        for step in range(200):
            breaker.record_success(200.0 + step, 4.0, stream=True)
        for _ in range(MIN_WINDOW_REQUESTS):
            breaker.record_success(420.0, seconds, stream=True)
        assert (breaker.state, breaker.opened_for_slowness) == (state, state == "open")


def test_follow_when_closed_opens_for_so_long() -> None:
    breaker = BackendCircuitBreaker()
    assert breaker.open_from_peer(100.0, 3.0, is_slow=True, has_responses=True)
    assert (breaker.state, breaker.opened_for_slowness, breaker.has_responses) == ("open", True, True)
    assert not breaker.allow_request(102.9)
    assert not breaker.open_from_peer(102.9, 9.0, is_slow=False, has_responses=False)
    assert breaker.allow_request(103.0)
    assert not breaker.open_from_peer(103.0, 9.0, is_slow=False, has_responses=False)
    assert breaker.state == "half-open"


def test_follow_forgets_what_the_window_held() -> None:
    breaker = BackendCircuitBreaker()
    for _ in range(MIN_WINDOW_REQUESTS - 1):
        breaker.record_failure(100.0)
    breaker.open_from_peer(100.0, 1.0, is_slow=False, has_responses=False)
    assert breaker.allow_request(101.0)
    breaker.record_success(101.0, 0.1, stream=True)
    breaker.record_failure(101.0)
    assert breaker.state == "closed"


def test_worst_state_of_several() -> None:
    assert worst_state(["closed", "open", "half-open"]) == "open"
    assert worst_state(["closed", "half-open"]) == "half-open"
    assert worst_state(["closed"]) == "closed"
    assert worst_state([]) == "closed"


def test_rest_is_what_the_breaker_stays_open_for() -> None:
    breaker = broken()
    assert breaker.open_seconds == MIN_OPEN_SECONDS
    assert breaker.allow_request(100 + MIN_OPEN_SECONDS)
    breaker.record_failure(100 + MIN_OPEN_SECONDS)
    assert breaker.open_seconds == 2 * MIN_OPEN_SECONDS
