from svc.gateway.healing.pace import SECONDS, Pace


def test_a_window_below_the_floor_is_too_slow() -> None:
    pace = Pace(10)
    assert not pace.too_slow(100.0, 0, paused=False)
    assert not pace.too_slow(100 + SECONDS - 0.1, 1, paused=False)
    assert pace.too_slow(100 + SECONDS, 49, paused=False)


def test_each_window_is_judged_alone() -> None:
    pace = Pace(10)
    assert not pace.too_slow(100.0, 0, paused=False)
    assert not pace.too_slow(100 + SECONDS, 500, paused=False)
    assert pace.too_slow(100 + 2 * SECONDS, 510, paused=False)


def test_a_client_that_does_not_read_is_not_the_providers_fault() -> None:
    pace = Pace(10)
    for second in range(20):
        assert not pace.too_slow(100.0 + second, 0, paused=True)
    assert not pace.too_slow(121.0, 5, paused=False)
