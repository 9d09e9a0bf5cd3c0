"""Which backend a request goes to next, from what is known of all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import pytest

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest, ProviderFailed, RateLimited
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.circuit_breaker import MIN_OPEN_SECONDS, MIN_WINDOW_REQUESTS
from svc.gateway.routing.failures import AttemptFailure, RetryDecision, connection_failure, timeout_failure
from svc.gateway.routing.load_balancer import MAX_COOLDOWN_SECONDS, BackendHealth, LoadBalancer
from svc.gateway.routing.providers import build_providers
from svc.gateway.routing.retry_budget import MIN_RETRIES_PER_WINDOW
from svc.settings import AccountSettings, ModelSettings, ProviderSettings, RoutingSettings, Settings

RAW = RequestBody(b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
LONG = RequestBody(b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 4000 + b'"}]}')
NOW = 100.0


def chain_of(*names: str, window: int = 128_000, accounts: int = 0) -> list[Backend]:
    """One backend for each provider name, all of the model `m`."""
    more = tuple(AccountSettings(base_url=f"http://127.0.0.1:{port}/v1") for port in range(2, accounts + 1))
    models = (ModelSettings(id="m", context_window=window, max_output_tokens=100),)
    entries = tuple(
        ProviderSettings(name=name, base_url="http://127.0.0.1:1/v1", models=models, accounts=more) for name in names
    )
    providers = {provider.name: provider for provider in build_providers(Settings(providers=entries))}
    return [build_backends(providers[name])[0] for name in names]


HEAD = RoutingInfo(model="m", max_tokens=10)


def next_of(steering: LoadBalancer, chain: Sequence[Backend], start: int = 0, *, now: float = NOW) -> int:
    return steering.select_next(chain, start, RAW, HEAD, now)


def open_breaker(steering: LoadBalancer, backend: Backend, *, soft: bool = False, now: float = NOW) -> None:
    for number in range(MIN_WINDOW_REQUESTS):
        answered = soft and number % 2
        steering.record_failure(
            backend, timeout_failure("to answer") if answered else connection_failure("refused", connected=False), now
        )
        if soft:
            steering.record_success(backend, 0.1, now, stream=False)
    assert steering.health_of(backend).breaker.state == "open"


def test_next_all_well_returns_the_first_from_start() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    assert next_of(steering, chain) == 0
    assert next_of(steering, chain, 1) == 1
    assert next_of(steering, chain, 2) == -1


def test_next_open_breaker_is_passed_over_until_its_rest_ends() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    open_breaker(steering, chain[0])
    assert next_of(steering, chain) == 1
    assert next_of(steering, chain, now=NOW + MIN_OPEN_SECONDS * 0.99) == 1
    assert next_of(steering, chain, now=NOW + MIN_OPEN_SECONDS) == 0
    assert next_of(steering, chain, now=NOW + MIN_OPEN_SECONDS) == 1  # one probe at a time


def test_next_backend_at_rest_is_passed_over_until_then() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    steering.record_failure(chain[0], AttemptFailure(RateLimited("later"), RetryDecision.NEXT_BACKEND, 30.0), NOW)
    assert next_of(steering, chain, now=NOW + 29.9) == 1
    assert next_of(steering, chain, now=NOW + 30.0) == 0


def test_failed_rate_limit_rests_only_after_a_long_retry_after() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b", "c")
    steering.record_failure(chain[0], AttemptFailure(RateLimited("soon"), RetryDecision.SAME_BACKEND, 2.0), NOW)
    steering.record_failure(chain[1], AttemptFailure(RateLimited("unsaid"), RetryDecision.SAME_BACKEND, None), NOW)
    steering.record_failure(
        chain[2], AttemptFailure(RateLimited("tomorrow"), RetryDecision.NEXT_BACKEND, 86_400.0), NOW
    )
    assert [steering.health_of(backend).cooldown_until for backend in chain] == [0.0, 0.0, NOW + MAX_COOLDOWN_SECONDS]


def test_failed_rate_limit_or_client_error_never_opens_the_breaker() -> None:
    steering, (a, b) = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        steering.record_failure(a, AttemptFailure(RateLimited("later"), RetryDecision.SAME_BACKEND, 1.0), NOW)
        steering.record_failure(b, AttemptFailure(InvalidRequest("no"), RetryDecision.GIVE_UP), NOW)
    assert steering.breaker_states() == {"a/m": "closed", "b/m": "closed"}


def test_failed_client_error_of_a_probe_lets_the_next_probe_through() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a")
    open_breaker(steering, chain[0])
    later = NOW + MIN_OPEN_SECONDS
    for failure in (
        AttemptFailure(InvalidRequest("no"), RetryDecision.GIVE_UP),
        AttemptFailure(RateLimited("later"), RetryDecision.SAME_BACKEND, 1.0),
    ):
        assert next_of(steering, chain, now=later) == 0
        assert next_of(steering, chain, now=later) == -1
        steering.record_failure(chain[0], failure, later)
    assert next_of(steering, chain, now=later) == 0
    steering.record_abandoned(chain[0])
    assert next_of(steering, chain, now=later) == 0


def test_next_prompt_too_long_for_a_window_goes_to_a_larger_one() -> None:
    small, large = chain_of("a", window=1000)[0], chain_of("b")[0]
    steering = LoadBalancer(RoutingSettings())
    assert steering.select_next([small, large], 0, LONG, HEAD, NOW) == 1
    assert steering.select_next([small], 0, LONG, HEAD, NOW) == -1
    assert steering.select_next([small, large], 0, RAW, HEAD, NOW) == 0


def test_first_nothing_fits_tries_the_first_that_is_not_dead() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b", window=1000)
    assert steering.select_first(chain, LONG, HEAD, NOW) == 0
    open_breaker(steering, chain[0])
    assert steering.select_first(chain, LONG, HEAD, NOW) == 1


def test_first_open_but_soft_is_tried_and_dead_is_refused() -> None:
    steering, (a, b) = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    open_breaker(steering, a)
    open_breaker(steering, b, soft=True)
    assert steering.health_of(b).breaker.has_responses
    assert steering.select_first([a, b], RAW, HEAD, NOW) == 1
    with pytest.raises(ProviderFailed, match="out of order"):
        steering.select_first([a], RAW, HEAD, NOW)


def test_first_well_backend_is_returned_without_raising() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    open_breaker(steering, chain[0])
    assert steering.select_first(chain, RAW, HEAD, NOW) == 1


def test_next_backend_with_accounts_needs_one_that_is_well() -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a", accounts=3)
    assert len(backend.account_backends) == 3
    for account in backend.account_backends[:2]:
        open_breaker(steering, account)
    assert next_of(steering, [backend]) == 0
    assert {steering.select_account(backend, (), NOW).account_number for _ in range(20)} == {3}
    assert steering.has_other_account(backend, backend.account_backends[:2], NOW)
    assert not steering.has_other_account(backend, backend.account_backends[2:], NOW)
    open_breaker(steering, backend.account_backends[2])
    assert next_of(steering, [backend]) == -1
    with pytest.raises(ProviderFailed):
        steering.select_first([backend], RAW, HEAD, NOW)


def test_another_account_at_rest_is_none() -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a", accounts=2)
    steering.record_failure(
        backend.account_backends[1], AttemptFailure(RateLimited("later"), RetryDecision.NEXT_BACKEND, 30.0), NOW
    )
    assert not steering.has_other_account(backend, backend.account_backends[:1], NOW + 1)
    assert steering.has_other_account(backend, backend.account_backends[:1], NOW + 30)


def test_may_retry_is_bounded_by_the_providers_budget() -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings(retry_share=0.2)), chain_of("a")
    assert [steering.acquire_retry(backend, NOW) for _ in range(MIN_RETRIES_PER_WINDOW + 1)] == [
        True
    ] * MIN_RETRIES_PER_WINDOW + [False]
    for _ in range(100):
        steering.record_request(backend, NOW)
    assert [steering.acquire_retry(backend, NOW) for _ in range(11)] == [True] * 10 + [False]  # 20 of 100 in all


def test_may_retry_probe_is_not_repeated() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a")
    open_breaker(steering, chain[0])
    assert next_of(steering, chain, now=NOW + MIN_OPEN_SECONDS) == 0
    assert not steering.acquire_retry(chain[0], NOW + MIN_OPEN_SECONDS)


def test_budget_is_shared_by_the_models_of_a_provider_only() -> None:
    steering, (a, b) = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    assert steering.health_of(a).retry_budget is not steering.health_of(b).retry_budget
    assert steering.health_of(chain_of("a")[0]).retry_budget is steering.health_of(a).retry_budget


def test_of_a_backend_that_was_replaced_keeps_its_health() -> None:
    steering, before, after = LoadBalancer(RoutingSettings()), chain_of("a")[0], chain_of("a")[0]
    assert steering.health_of(after) is steering.health_of(before)
    assert steering.health_of(before).name == "a/m"
    account = chain_of("a", accounts=2)[0].account_backends[1]
    assert steering.health_of(account).name == "a/m#2"
    assert steering.health_of(account) is not steering.health_of(before)


def test_changed_breaker_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a")
    told: list[tuple[str, str]] = []
    steering.on_breaker_change = lambda health: told.append((health.name, health.breaker.state))
    with caplog.at_level(logging.WARNING, "svc.gateway"):
        open_breaker(steering, backend)
        assert next_of(steering, [backend], now=NOW + MIN_OPEN_SECONDS) == 0
        steering.record_success(backend, 0.1, NOW + MIN_OPEN_SECONDS, stream=True)
    assert told == [("a/m", "open"), ("a/m", "closed")]
    assert [record.getMessage() for record in caplog.records] == [
        "breaker of a/m: closed -> open",
        "breaker of a/m: half-open -> closed",
    ]


def test_outrun_by_another_backend_opens_the_breaker_of_a_slow_one() -> None:
    steering, (slow, usual) = LoadBalancer(RoutingSettings(slow_after=0.5)), chain_of("a", "b")
    told: list[str] = []
    steering.on_breaker_change = lambda health: told.append(health.name)
    for _ in range(MIN_WINDOW_REQUESTS):
        steering.record_hedge_loss(slow, 0.6, NOW, stream=True)
        steering.record_hedge_loss(usual, 0.4, NOW, stream=True)
    assert steering.breaker_states() == {"a/m": "open", "b/m": "closed"}
    assert told == ["a/m"]


def test_embedded_model_tells_no_other_process() -> None:
    steering, (local,) = LoadBalancer(RoutingSettings()), chain_of("local")
    told: list[BackendHealth] = []
    steering.on_breaker_change = told.append
    open_breaker(steering, local)
    assert not told
    assert steering.health_of(local).is_embedded


def test_follow_opens_a_closed_breaker_for_the_rest_that_was_told() -> None:
    steering, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    assert next_of(steering, chain) == 0
    steering.open_from_peer("a/m", NOW, 5.0, is_slow=True, has_responses=True)
    breaker = steering.health_of(chain[0]).breaker
    assert (breaker.state, breaker.opened_for_slowness, breaker.has_responses) == ("open", True, True)
    assert next_of(steering, chain, now=NOW + 4.9) == 1
    steering.open_from_peer("a/m", NOW + 4.9, 50.0, is_slow=False, has_responses=False)  # is open already
    assert next_of(steering, chain, now=NOW + 5.0) == 0
    steering.open_from_peer("nobody/knows", NOW, 5.0, is_slow=False, has_responses=False)


def test_follow_embedded_model_is_another_one_elsewhere() -> None:
    steering, (local,) = LoadBalancer(RoutingSettings()), chain_of("local")
    assert steering.health_of(local).breaker.state == "closed"
    steering.open_from_peer("local/m", NOW, 5.0, is_slow=False, has_responses=False)
    assert steering.health_of(local).breaker.state == "closed"


def test_breaker_switched_off_never_opens() -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings(breaker=False, slow_after=0.1)), chain_of("a")
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        steering.record_failure(backend, connection_failure("refused", connected=False), NOW)
        steering.record_success(backend, 9.0, NOW, stream=True)
        steering.record_hedge_loss(backend, 9.0, NOW, stream=True)
    steering.open_from_peer("a/m", NOW, 5.0, is_slow=False, has_responses=False)
    assert steering.breaker_states() == {"a/m": "closed"}


def test_failed_broken_stream_counts_the_request_once() -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a")
    for _ in range(MIN_WINDOW_REQUESTS - 1):
        steering.record_success(backend, 0.1, NOW, stream=True)
        steering.record_failure(backend, connection_failure("cut", connected=True), NOW, already_counted=True)
    assert steering.breaker_states() == {"a/m": "closed"}
    steering.record_success(backend, 0.1, NOW, stream=True)
    steering.record_failure(backend, connection_failure("cut", connected=True), NOW, already_counted=True)
    assert steering.breaker_states() == {"a/m": "open"}


def test_settings_slow_after_reaches_the_breaker_of_other_providers_only() -> None:
    steering = LoadBalancer(msgspec.structs.replace(RoutingSettings(), slow_after=0.5))
    a, local = chain_of("a", "local")
    for _ in range(MIN_WINDOW_REQUESTS):
        steering.record_success(a, 0.6, NOW, stream=True)
        steering.record_success(local, 0.6, NOW, stream=True)
    assert steering.breaker_states() == {"a/m": "open", "local/m": "closed"}


def test_account_at_half_open_is_probed_once_at_a_time() -> None:
    steering, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a", accounts=2)
    for account in backend.account_backends:
        open_breaker(steering, account)
    later = NOW + MIN_OPEN_SECONDS
    probed = {steering.select_account(backend, (), later).account_number for _ in range(2)}
    assert probed == {1, 2}
    assert next_of(steering, [backend], now=later) == -1
