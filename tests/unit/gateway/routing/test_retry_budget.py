from svc.gateway.routing.retry_budget import MIN_RETRIES_PER_WINDOW, RetryBudget
from svc.gateway.routing.sliding_window import SlidingWindow


def test_retry_budget_without_traffic_allows_ten_retries_in_ten_seconds() -> None:
    budget = RetryBudget(0.2)
    assert [budget.acquire_retry(100.0) for _ in range(MIN_RETRIES_PER_WINDOW + 5)] == [
        True
    ] * MIN_RETRIES_PER_WINDOW + [False] * 5
    assert not budget.acquire_retry(108.9)
    assert budget.acquire_retry(111.1)


def test_retry_budget_with_traffic_allows_its_share() -> None:
    budget = RetryBudget(0.2)
    for at in range(1000):
        budget.record_request(100 + at / 200)
    assert sum(budget.acquire_retry(105.0) for _ in range(1000)) == 200


def test_retry_budget_traffic_outside_window_is_not_counted() -> None:
    budget = RetryBudget(0.2)
    for _ in range(1000):
        budget.record_request(100.0)
    assert sum(budget.acquire_retry(120.0) for _ in range(1000)) == MIN_RETRIES_PER_WINDOW


def test_sliding_window_after_any_gap_drops_expired_counts() -> None:
    for gap in (0.3, 1.0, 4.0, 9.0, 10.0, 100.0):
        window = SlidingWindow(10.0, 1)
        window.add(50.0, 0)
        window.add(50.0 + gap, 0)
        assert window.sums(50.0 + gap) == [2 if gap < 10 else 1]
        assert window.sums(61.0 + gap) == [0]
