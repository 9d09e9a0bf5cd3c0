from svc.gateway.routing.min_pace import PACE_WINDOW_SECONDS, PaceMonitor


def test_pace_monitor_window_below_minimum_is_too_slow() -> None:
    pace = PaceMonitor(10)
    assert not pace.is_too_slow(100.0, 0, paused=False)
    assert not pace.is_too_slow(100 + PACE_WINDOW_SECONDS - 0.1, 1, paused=False)
    assert pace.is_too_slow(100 + PACE_WINDOW_SECONDS, 49, paused=False)


def test_pace_monitor_each_window_is_independent() -> None:
    pace = PaceMonitor(10)
    assert not pace.is_too_slow(100.0, 0, paused=False)
    assert not pace.is_too_slow(100 + PACE_WINDOW_SECONDS, 500, paused=False)
    assert pace.is_too_slow(100 + 2 * PACE_WINDOW_SECONDS, 510, paused=False)


def test_pace_monitor_paused_client_is_not_counted() -> None:
    pace = PaceMonitor(10)
    for second in range(20):
        assert not pace.is_too_slow(100.0 + second, 0, paused=True)
    assert not pace.is_too_slow(121.0, 5, paused=False)
