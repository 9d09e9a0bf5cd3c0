from svc.gateway.healing.breaker import FIRST_REST, LONGEST_REST, NEEDED, PATIENCE, Breaker, worst


def broken(now: float = 100.0) -> Breaker:
    breaker = Breaker()
    for _ in range(NEEDED):
        breaker.failed(now, silent=True)
    assert breaker.state == "open"
    assert not breaker.soft
    return breaker


def test_it_needs_twenty_requests_in_its_window() -> None:
    breaker = Breaker()
    for at in range(NEEDED - 1):
        breaker.failed(100 + at / 10)
    assert breaker.state == "closed"
    breaker.failed(120.0)  # the others are too old by now
    assert breaker.state == "closed"


def test_half_of_them_failing_opens_it() -> None:
    breaker = Breaker()
    for _ in range(11):
        breaker.answered(100.0, 0.1, stream=False)
    for _ in range(10):
        breaker.failed(100.0)
    assert breaker.state == "closed"
    breaker.failed(100.0)
    assert breaker.state == "open"
    assert breaker.soft
    assert not breaker.slow
    assert not breaker.admits(100.1)


def test_streams_that_break_count_once() -> None:
    breaker = Breaker()
    for _ in range(NEEDED // 2):
        breaker.answered(100.0, 0.1, stream=True)
        breaker.failed(100.0, counted=True)
    assert breaker.state == "closed"
    for _ in range(NEEDED // 2):
        breaker.answered(100.0, 0.1, stream=True)
        breaker.failed(100.0, counted=True)
    assert breaker.state == "open"


def test_one_probe_at_a_time_and_an_answer_closes_it() -> None:
    breaker = broken()
    later = 100 + FIRST_REST
    assert [breaker.admits(later) for _ in range(3)] == [True, False, False]
    breaker.answered(later, 0.1, stream=True)
    assert breaker.state == "closed"
    assert breaker.admits(later)
    breaker.failed(later)
    assert breaker.state == "closed"


def test_a_failed_probe_makes_it_rest_twice_as_long() -> None:
    breaker = broken()
    now, rest = 100.0, FIRST_REST
    for _ in range(10):
        assert not breaker.admits(now + rest * 0.99)
        now += rest
        assert breaker.admits(now)
        breaker.failed(now)
        rest = min(LONGEST_REST, rest * 2)
    assert rest == LONGEST_REST


def test_a_probe_whose_client_left_says_nothing() -> None:
    breaker = broken()
    later = 100 + FIRST_REST
    assert breaker.admits(later)
    breaker.forgotten()
    assert breaker.state == "half-open"
    assert breaker.admits(later)
    assert not breaker.admits(later)
    assert breaker.admits(later + PATIENCE)


def test_slow_answers_open_it_too() -> None:
    breaker = Breaker(slow_after=0.5)
    for _ in range(NEEDED):
        breaker.answered(100.0, 0.6, stream=True)
    assert breaker.state == "open"
    assert breaker.slow
    assert breaker.admits(100 + FIRST_REST)
    breaker.answered(100 + FIRST_REST, 0.6, stream=True)
    assert breaker.state == "open"
    assert breaker.admits(100 + FIRST_REST * 3)
    breaker.answered(100 + FIRST_REST * 3, 0.1, stream=True)
    assert breaker.state == "closed"


def test_slow_is_what_is_slow_for_this_target() -> None:
    """A model that always thinks for 20 s is not out of order; one that took 0.3 s and takes 4 s is."""
    patient, quick = Breaker(), Breaker()
    for at in range(100):
        patient.answered(100 + at, 20.0, stream=True)
        quick.answered(100 + at, 0.3, stream=True)
    for _ in range(NEEDED * 2):
        patient.answered(201.0, 24.0, stream=True)
        quick.answered(201.0, 4.0, stream=True)
    assert (patient.state, quick.state) == ("closed", "open")


def test_long_whole_answers_do_not_make_streams_slow() -> None:
    breaker = Breaker()
    for _ in range(NEEDED * 2):
        breaker.answered(100.0, 0.3, stream=True)
        breaker.answered(100.0, 30.0, stream=False)
    assert breaker.state == "closed"


def test_being_outrun_says_something_only_of_who_was_silent_for_far_too_long() -> None:
    new, known = Breaker(), Breaker()
    known.answered(100.0, 0.3, stream=True)
    for _ in range(NEEDED * 2):
        new.outrun(100.0, 9.0, stream=True)
        known.outrun(100.0, 0.5, stream=True)
    assert (new.state, known.state) == ("closed", "closed")
    for _ in range(NEEDED):
        known.outrun(100.0, 0.7, stream=True)
    assert (known.state, known.slow) == ("open", True)


def test_a_probe_that_was_outrun_is_no_answer() -> None:
    breaker = broken()
    later = 100 + FIRST_REST
    assert breaker.admits(later)
    breaker.outrun(later, 0.2, stream=True)
    assert breaker.state == "half-open"
    assert breaker.admits(later)


def test_might_says_what_admits_would_and_changes_nothing() -> None:
    breaker = Breaker()
    assert breaker.might(100.0)
    breaker = broken()
    assert not breaker.might(100 + FIRST_REST - 0.01)
    assert breaker.might(100 + FIRST_REST)
    assert breaker.state == "open"
    assert breaker.admits(100 + FIRST_REST)
    assert not breaker.might(100 + FIRST_REST)
    assert breaker.might(100 + FIRST_REST + PATIENCE)


def test_usual_time_follows_the_answers_slowly() -> None:
    """A target that got slower over a hundred answers is judged by what is usual now: 4 s, not 1 s."""
    for seconds, state in ((15.0, "closed"), (25.0, "open")):
        breaker = Breaker()
        for step in range(100):
            breaker.answered(100.0 + step, 1.0, stream=True)
        for step in range(200):
            breaker.answered(200.0 + step, 4.0, stream=True)
        for _ in range(NEEDED):
            breaker.answered(420.0, seconds, stream=True)
        assert (breaker.state, breaker.slow) == (state, state == "open")


def test_follow_when_closed_opens_for_so_long() -> None:
    breaker = Breaker()
    assert breaker.follow(100.0, 3.0, slow=True, soft=True)
    assert (breaker.state, breaker.slow, breaker.soft) == ("open", True, True)
    assert not breaker.admits(102.9)
    assert not breaker.follow(102.9, 9.0, slow=False, soft=False)
    assert breaker.admits(103.0)
    assert not breaker.follow(103.0, 9.0, slow=False, soft=False)
    assert breaker.state == "half-open"


def test_follow_forgets_what_the_window_held() -> None:
    breaker = Breaker()
    for _ in range(NEEDED - 1):
        breaker.failed(100.0)
    breaker.follow(100.0, 1.0, slow=False, soft=False)
    assert breaker.admits(101.0)
    breaker.answered(101.0, 0.1, stream=True)
    breaker.failed(101.0)
    assert breaker.state == "closed"


def test_worst_state_of_several() -> None:
    assert worst(["closed", "open", "half-open"]) == "open"
    assert worst(["closed", "half-open"]) == "half-open"
    assert worst(["closed"]) == "closed"
    assert worst([]) == "closed"


def test_rest_is_what_the_breaker_stays_open_for() -> None:
    breaker = broken()
    assert breaker.rest == FIRST_REST
    assert breaker.admits(100 + FIRST_REST)
    breaker.failed(100 + FIRST_REST)
    assert breaker.rest == 2 * FIRST_REST
