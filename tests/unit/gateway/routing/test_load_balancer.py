"""Backend selection by the load balancer, from the health of all backends."""

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
from svc.gateway.routing.failures import (
    AttemptFailure,
    RetryDecision,
    connection_failure,
    no_socket_failure,
    timeout_failure,
)
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


INFO = RoutingInfo(model="m", max_tokens=10)


def next_of(balancer: LoadBalancer, chain: Sequence[Backend], start: int = 0, *, now: float = NOW) -> int:
    return balancer.select_next(chain, start, RAW, INFO, now)


def open_breaker(balancer: LoadBalancer, backend: Backend, *, responsive: bool = False, now: float = NOW) -> None:
    for number in range(MIN_WINDOW_REQUESTS):
        timed_out = responsive and number % 2
        balancer.record_failure(
            backend, timeout_failure("to answer") if timed_out else connection_failure("refused", connected=False), now
        )
        if responsive:
            balancer.record_success(backend, 0.1, now, stream=False)
    assert balancer.health_of(backend).breaker.state == "open"


def test_select_next_all_healthy_returns_first_from_start() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    assert next_of(balancer, chain) == 0
    assert next_of(balancer, chain, 1) == 1
    assert next_of(balancer, chain, 2) == -1


def test_select_next_open_breaker_is_skipped_until_open_time_ends() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    open_breaker(balancer, chain[0])
    assert next_of(balancer, chain) == 1
    assert next_of(balancer, chain, now=NOW + MIN_OPEN_SECONDS * 0.99) == 1
    assert next_of(balancer, chain, now=NOW + MIN_OPEN_SECONDS) == 0
    assert next_of(balancer, chain, now=NOW + MIN_OPEN_SECONDS) == 1  # one probe at a time


def test_select_next_backend_in_cooldown_is_skipped_until_it_ends() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    balancer.record_failure(chain[0], AttemptFailure(RateLimited("later"), RetryDecision.NEXT_BACKEND, 30.0), NOW)
    assert next_of(balancer, chain, now=NOW + 29.9) == 1
    assert next_of(balancer, chain, now=NOW + 30.0) == 0


def test_record_failure_rate_limit_cooldown_needs_long_retry_after() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b", "c")
    balancer.record_failure(chain[0], AttemptFailure(RateLimited("soon"), RetryDecision.SAME_BACKEND, 2.0), NOW)
    balancer.record_failure(chain[1], AttemptFailure(RateLimited("no header"), RetryDecision.SAME_BACKEND, None), NOW)
    balancer.record_failure(
        chain[2], AttemptFailure(RateLimited("tomorrow"), RetryDecision.NEXT_BACKEND, 86_400.0), NOW
    )
    assert [balancer.health_of(backend).cooldown_until for backend in chain] == [0.0, 0.0, NOW + MAX_COOLDOWN_SECONDS]


def test_record_failure_rate_limit_client_error_or_missing_descriptor_never_opens_breaker() -> None:
    balancer, (a, b) = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        balancer.record_failure(a, AttemptFailure(RateLimited("later"), RetryDecision.SAME_BACKEND, 1.0), NOW)
        balancer.record_failure(b, AttemptFailure(InvalidRequest("no"), RetryDecision.GIVE_UP), NOW)
        balancer.record_failure(b, no_socket_failure("Too many open files"), NOW)
    assert balancer.breaker_states() == {"a/m": "closed", "b/m": "closed"}


def test_record_failure_client_error_of_probe_allows_next_probe() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a")
    open_breaker(balancer, chain[0])
    later = NOW + MIN_OPEN_SECONDS
    for failure in (
        AttemptFailure(InvalidRequest("no"), RetryDecision.GIVE_UP),
        AttemptFailure(RateLimited("later"), RetryDecision.SAME_BACKEND, 1.0),
    ):
        assert next_of(balancer, chain, now=later) == 0
        assert next_of(balancer, chain, now=later) == -1
        balancer.record_failure(chain[0], failure, later)
    assert next_of(balancer, chain, now=later) == 0
    balancer.record_abandoned(chain[0])
    assert next_of(balancer, chain, now=later) == 0


def test_select_next_prompt_above_context_window_selects_larger_model() -> None:
    small, large = chain_of("a", window=1000)[0], chain_of("b")[0]
    balancer = LoadBalancer(RoutingSettings())
    assert balancer.select_next([small, large], 0, LONG, INFO, NOW) == 1
    assert balancer.select_next([small], 0, LONG, INFO, NOW) == -1
    assert balancer.select_next([small, large], 0, RAW, INFO, NOW) == 0


def test_select_first_no_context_window_fits_selects_first_available() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b", window=1000)
    assert balancer.select_first(chain, LONG, INFO, NOW) == 0
    open_breaker(balancer, chain[0])
    assert balancer.select_first(chain, LONG, INFO, NOW) == 1


def test_select_first_open_breaker_with_responses_is_tried_without_raises() -> None:
    balancer, (a, b) = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    open_breaker(balancer, a)
    open_breaker(balancer, b, responsive=True)
    assert balancer.health_of(b).breaker.has_responses
    assert balancer.select_first([a, b], RAW, INFO, NOW) == 1
    with pytest.raises(ProviderFailed, match="circuit breaker is open"):
        balancer.select_first([a], RAW, INFO, NOW)


def test_select_first_healthy_backend_is_selected() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    open_breaker(balancer, chain[0])
    assert balancer.select_first(chain, RAW, INFO, NOW) == 1


def test_select_next_backend_with_accounts_needs_one_healthy_account() -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a", accounts=3)
    assert len(backend.account_backends) == 3
    for account in backend.account_backends[:2]:
        open_breaker(balancer, account)
    assert next_of(balancer, [backend]) == 0
    assert {balancer.select_account(backend, (), NOW).account_number for _ in range(20)} == {3}
    assert balancer.has_other_account(backend, backend.account_backends[:2], NOW)
    assert not balancer.has_other_account(backend, backend.account_backends[2:], NOW)
    open_breaker(balancer, backend.account_backends[2])
    assert next_of(balancer, [backend]) == -1
    with pytest.raises(ProviderFailed):
        balancer.select_first([backend], RAW, INFO, NOW)


def test_has_other_account_in_cooldown_is_false() -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a", accounts=2)
    balancer.record_failure(
        backend.account_backends[1], AttemptFailure(RateLimited("later"), RetryDecision.NEXT_BACKEND, 30.0), NOW
    )
    assert not balancer.has_other_account(backend, backend.account_backends[:1], NOW + 1)
    assert balancer.has_other_account(backend, backend.account_backends[:1], NOW + 30)


def test_acquire_retry_is_bounded_by_provider_retry_budget() -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings(retry_share=0.2)), chain_of("a")
    assert [balancer.acquire_retry(backend, NOW) for _ in range(MIN_RETRIES_PER_WINDOW + 1)] == [
        True
    ] * MIN_RETRIES_PER_WINDOW + [False]
    for _ in range(100):
        balancer.record_request(backend, NOW)
    assert [balancer.acquire_retry(backend, NOW) for _ in range(11)] == [True] * 10 + [False]  # 20 of 100 in all


def test_acquire_retry_probe_is_not_retried() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a")
    open_breaker(balancer, chain[0])
    assert next_of(balancer, chain, now=NOW + MIN_OPEN_SECONDS) == 0
    assert not balancer.acquire_retry(chain[0], NOW + MIN_OPEN_SECONDS)


def test_retry_budget_is_shared_only_within_a_provider() -> None:
    balancer, (a, b) = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    assert balancer.health_of(a).retry_budget is not balancer.health_of(b).retry_budget
    assert balancer.health_of(chain_of("a")[0]).retry_budget is balancer.health_of(a).retry_budget


def test_health_of_replaced_backend_is_kept() -> None:
    balancer, before, after = LoadBalancer(RoutingSettings()), chain_of("a")[0], chain_of("a")[0]
    assert balancer.health_of(after) is balancer.health_of(before)
    assert balancer.health_of(before).name == "a/m"
    account = chain_of("a", accounts=2)[0].account_backends[1]
    assert balancer.health_of(account).name == "a/m#2"
    assert balancer.health_of(account) is not balancer.health_of(before)


def test_breaker_change_calls_callback_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a")
    changes: list[tuple[str, str]] = []
    balancer.on_breaker_change = lambda health: changes.append((health.name, health.breaker.state))
    with caplog.at_level(logging.WARNING, "svc.gateway"):
        open_breaker(balancer, backend)
        assert next_of(balancer, [backend], now=NOW + MIN_OPEN_SECONDS) == 0
        balancer.record_success(backend, 0.1, NOW + MIN_OPEN_SECONDS, stream=True)
    assert changes == [("a/m", "open"), ("a/m", "closed")]
    assert [record.getMessage() for record in caplog.records] == [
        "breaker of a/m: closed -> open",
        "breaker of a/m: half-open -> closed",
    ]


def test_record_hedge_loss_slow_backend_opens_its_breaker() -> None:
    balancer, (slow, normal) = LoadBalancer(RoutingSettings(slow_after=0.5)), chain_of("a", "b")
    changes: list[str] = []
    balancer.on_breaker_change = lambda health: changes.append(health.name)
    for _ in range(MIN_WINDOW_REQUESTS):
        balancer.record_hedge_loss(slow, 0.6, NOW, stream=True)
        balancer.record_hedge_loss(normal, 0.4, NOW, stream=True)
    assert balancer.breaker_states() == {"a/m": "open", "b/m": "closed"}
    assert changes == ["a/m"]


def test_breaker_change_of_embedded_model_is_not_published() -> None:
    balancer, (local,) = LoadBalancer(RoutingSettings()), chain_of("local")
    changes: list[BackendHealth] = []
    balancer.on_breaker_change = changes.append
    open_breaker(balancer, local)
    assert not changes
    assert balancer.health_of(local).is_embedded


def test_open_from_peer_closed_breaker_opens_for_given_time() -> None:
    balancer, chain = LoadBalancer(RoutingSettings()), chain_of("a", "b")
    assert next_of(balancer, chain) == 0
    balancer.open_from_peer("a/m", NOW, 5.0, is_slow=True, has_responses=True)
    breaker = balancer.health_of(chain[0]).breaker
    assert (breaker.state, breaker.opened_for_slowness, breaker.has_responses) == ("open", True, True)
    assert next_of(balancer, chain, now=NOW + 4.9) == 1
    balancer.open_from_peer("a/m", NOW + 4.9, 50.0, is_slow=False, has_responses=False)  # already open
    assert next_of(balancer, chain, now=NOW + 5.0) == 0
    balancer.open_from_peer("nobody/knows", NOW, 5.0, is_slow=False, has_responses=False)


def test_open_from_peer_embedded_model_is_ignored() -> None:
    balancer, (local,) = LoadBalancer(RoutingSettings()), chain_of("local")
    assert balancer.health_of(local).breaker.state == "closed"
    balancer.open_from_peer("local/m", NOW, 5.0, is_slow=False, has_responses=False)
    assert balancer.health_of(local).breaker.state == "closed"


def test_breaker_disabled_never_opens() -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings(breaker=False, slow_after=0.1)), chain_of("a")
    for _ in range(MIN_WINDOW_REQUESTS * 2):
        balancer.record_failure(backend, connection_failure("refused", connected=False), NOW)
        balancer.record_success(backend, 9.0, NOW, stream=True)
        balancer.record_hedge_loss(backend, 9.0, NOW, stream=True)
    balancer.open_from_peer("a/m", NOW, 5.0, is_slow=False, has_responses=False)
    assert balancer.breaker_states() == {"a/m": "closed"}


def test_record_failure_broken_stream_counts_request_once() -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a")
    for _ in range(MIN_WINDOW_REQUESTS - 1):
        balancer.record_success(backend, 0.1, NOW, stream=True)
        balancer.record_failure(backend, connection_failure("cut", connected=True), NOW, already_counted=True)
    assert balancer.breaker_states() == {"a/m": "closed"}
    balancer.record_success(backend, 0.1, NOW, stream=True)
    balancer.record_failure(backend, connection_failure("cut", connected=True), NOW, already_counted=True)
    assert balancer.breaker_states() == {"a/m": "open"}


def test_slow_after_setting_does_not_apply_to_embedded_model() -> None:
    balancer = LoadBalancer(msgspec.structs.replace(RoutingSettings(), slow_after=0.5))
    a, local = chain_of("a", "local")
    for _ in range(MIN_WINDOW_REQUESTS):
        balancer.record_success(a, 0.6, NOW, stream=True)
        balancer.record_success(local, 0.6, NOW, stream=True)
    assert balancer.breaker_states() == {"a/m": "open", "local/m": "closed"}


def test_select_account_half_open_allows_one_probe_each() -> None:
    balancer, (backend,) = LoadBalancer(RoutingSettings()), chain_of("a", accounts=2)
    for account in backend.account_backends:
        open_breaker(balancer, account)
    later = NOW + MIN_OPEN_SECONDS
    probed = {balancer.select_account(backend, (), later).account_number for _ in range(2)}
    assert probed == {1, 2}
    assert next_of(balancer, [backend], now=later) == -1
