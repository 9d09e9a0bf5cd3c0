"""Which backend a request goes to next, from what is known of all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import pytest

from svc.dialects.base import Head
from svc.errors import InvalidRequest, ProviderFailed, RateLimited
from svc.gateway.failures import Failure, Then, late, lost
from svc.gateway.healing.breaker import FIRST_REST, NEEDED
from svc.gateway.healing.budget import ALWAYS
from svc.gateway.healing.steering import LONGEST_REST, Health, Steering
from svc.gateway.offers import Offer, offers_of
from svc.gateway.providers import providers_of
from svc.settings import AccountSettings, ModelSettings, ProviderSettings, RoutingSettings, Settings

RAW = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
LONG = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 4000 + b'"}]}'
NOW = 100.0


def chain_of(*names: str, window: int = 128_000, accounts: int = 0) -> list[Offer]:
    """One backend for each provider name, all of the model `m`."""
    more = tuple(AccountSettings(base_url=f"http://127.0.0.1:{port}/v1") for port in range(2, accounts + 1))
    models = (ModelSettings(id="m", context_window=window, max_output_tokens=100),)
    entries = tuple(
        ProviderSettings(name=name, base_url="http://127.0.0.1:1/v1", models=models, accounts=more) for name in names
    )
    providers = {provider.name: provider for provider in providers_of(Settings(providers=entries))}
    return [offers_of(providers[name])[0] for name in names]


def head(raw: bytes = RAW) -> Head:
    return Head("m", stream=False, include_usage=False, max_tokens=10, outline=raw)


def next_of(steering: Steering, chain: Sequence[Offer], start: int = 0, *, now: float = NOW) -> int:
    return steering.next(chain, start, RAW, head(), now)


def open_breaker(steering: Steering, backend: Offer, *, soft: bool = False, now: float = NOW) -> None:
    for number in range(NEEDED):
        answered = soft and number % 2
        steering.failed(backend, late("to answer") if answered else lost("refused", made=False), now)
        if soft:
            steering.answered(backend, 0.1, now, stream=False)
    assert steering.of(backend).breaker.state == "open"


def test_next_all_well_returns_the_first_from_start() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b")
    assert next_of(steering, chain) == 0
    assert next_of(steering, chain, 1) == 1
    assert next_of(steering, chain, 2) == -1


def test_next_open_breaker_is_passed_over_until_its_rest_ends() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b")
    open_breaker(steering, chain[0])
    assert next_of(steering, chain) == 1
    assert next_of(steering, chain, now=NOW + FIRST_REST * 0.99) == 1
    assert next_of(steering, chain, now=NOW + FIRST_REST) == 0
    assert next_of(steering, chain, now=NOW + FIRST_REST) == 1  # one probe at a time


def test_next_backend_at_rest_is_passed_over_until_then() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b")
    steering.failed(chain[0], Failure(RateLimited("later"), Then.NEXT, 30.0), NOW)
    assert next_of(steering, chain, now=NOW + 29.9) == 1
    assert next_of(steering, chain, now=NOW + 30.0) == 0


def test_failed_rate_limit_rests_only_after_a_long_retry_after() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b", "c")
    steering.failed(chain[0], Failure(RateLimited("soon"), Then.AGAIN, 2.0), NOW)
    steering.failed(chain[1], Failure(RateLimited("unsaid"), Then.AGAIN, None), NOW)
    steering.failed(chain[2], Failure(RateLimited("tomorrow"), Then.NEXT, 86_400.0), NOW)
    assert [steering.of(backend).rest_until for backend in chain] == [0.0, 0.0, NOW + LONGEST_REST]


def test_failed_rate_limit_or_client_error_never_opens_the_breaker() -> None:
    steering, (a, b) = Steering(RoutingSettings()), chain_of("a", "b")
    for _ in range(NEEDED * 2):
        steering.failed(a, Failure(RateLimited("later"), Then.AGAIN, 1.0), NOW)
        steering.failed(b, Failure(InvalidRequest("no"), Then.NOWHERE), NOW)
    assert steering.states() == {"a/m": "closed", "b/m": "closed"}


def test_failed_client_error_of_a_probe_lets_the_next_probe_through() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a")
    open_breaker(steering, chain[0])
    later = NOW + FIRST_REST
    for failure in (Failure(InvalidRequest("no"), Then.NOWHERE), Failure(RateLimited("later"), Then.AGAIN, 1.0)):
        assert next_of(steering, chain, now=later) == 0
        assert next_of(steering, chain, now=later) == -1
        steering.failed(chain[0], failure, later)
    assert next_of(steering, chain, now=later) == 0
    steering.forgotten(chain[0])
    assert next_of(steering, chain, now=later) == 0


def test_next_prompt_too_long_for_a_window_goes_to_a_larger_one() -> None:
    small, large = chain_of("a", window=1000)[0], chain_of("b")[0]
    steering = Steering(RoutingSettings())
    assert steering.next([small, large], 0, LONG, head(LONG), NOW) == 1
    assert steering.next([small], 0, LONG, head(LONG), NOW) == -1
    assert steering.next([small, large], 0, RAW, head(), NOW) == 0


def test_first_nothing_fits_tries_the_first_that_is_not_dead() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b", window=1000)
    assert steering.first(chain, LONG, head(LONG), NOW) == 0
    open_breaker(steering, chain[0])
    assert steering.first(chain, LONG, head(LONG), NOW) == 1


def test_first_open_but_soft_is_tried_and_dead_is_refused() -> None:
    steering, (a, b) = Steering(RoutingSettings()), chain_of("a", "b")
    open_breaker(steering, a)
    open_breaker(steering, b, soft=True)
    assert steering.of(b).breaker.soft
    assert steering.first([a, b], RAW, head(), NOW) == 1
    with pytest.raises(ProviderFailed, match="out of order"):
        steering.first([a], RAW, head(), NOW)


def test_first_well_backend_is_returned_without_raising() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b")
    open_breaker(steering, chain[0])
    assert steering.first(chain, RAW, head(), NOW) == 1


def test_next_backend_with_accounts_needs_one_that_is_well() -> None:
    steering, (backend,) = Steering(RoutingSettings()), chain_of("a", accounts=3)
    assert len(backend.accounts) == 3
    for account in backend.accounts[:2]:
        open_breaker(steering, account)
    assert next_of(steering, [backend]) == 0
    assert {steering.account(backend, (), NOW).account for _ in range(20)} == {3}
    assert steering.another(backend, backend.accounts[:2], NOW)
    assert not steering.another(backend, backend.accounts[2:], NOW)
    open_breaker(steering, backend.accounts[2])
    assert next_of(steering, [backend]) == -1
    with pytest.raises(ProviderFailed):
        steering.first([backend], RAW, head(), NOW)


def test_another_account_at_rest_is_none() -> None:
    steering, (backend,) = Steering(RoutingSettings()), chain_of("a", accounts=2)
    steering.failed(backend.accounts[1], Failure(RateLimited("later"), Then.NEXT, 30.0), NOW)
    assert not steering.another(backend, backend.accounts[:1], NOW + 1)
    assert steering.another(backend, backend.accounts[:1], NOW + 30)


def test_may_retry_is_bounded_by_the_providers_budget() -> None:
    steering, (backend,) = Steering(RoutingSettings(retry_share=0.2)), chain_of("a")
    assert [steering.may_retry(backend, NOW) for _ in range(ALWAYS + 1)] == [True] * ALWAYS + [False]
    for _ in range(100):
        steering.asked(backend, NOW)
    assert [steering.may_retry(backend, NOW) for _ in range(11)] == [True] * 10 + [False]  # 20 of 100 in all


def test_may_retry_probe_is_not_repeated() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a")
    open_breaker(steering, chain[0])
    assert next_of(steering, chain, now=NOW + FIRST_REST) == 0
    assert not steering.may_retry(chain[0], NOW + FIRST_REST)


def test_budget_is_shared_by_the_models_of_a_provider_only() -> None:
    steering, (a, b) = Steering(RoutingSettings()), chain_of("a", "b")
    assert steering.of(a).budget is not steering.of(b).budget
    assert steering.of(chain_of("a")[0]).budget is steering.of(a).budget


def test_of_a_backend_that_was_replaced_keeps_its_health() -> None:
    steering, before, after = Steering(RoutingSettings()), chain_of("a")[0], chain_of("a")[0]
    assert steering.of(after) is steering.of(before)
    assert steering.of(before).name == "a/m"
    account = chain_of("a", accounts=2)[0].accounts[1]
    assert steering.of(account).name == "a/m#2"
    assert steering.of(account) is not steering.of(before)


def test_changed_breaker_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    steering, (backend,) = Steering(RoutingSettings()), chain_of("a")
    told: list[tuple[str, str]] = []
    steering.tell = lambda health: told.append((health.name, health.breaker.state))
    with caplog.at_level(logging.WARNING, "svc.gateway"):
        open_breaker(steering, backend)
        assert next_of(steering, [backend], now=NOW + FIRST_REST) == 0
        steering.answered(backend, 0.1, NOW + FIRST_REST, stream=True)
    assert told == [("a/m", "open"), ("a/m", "closed")]
    assert [record.getMessage() for record in caplog.records] == [
        "breaker of a/m: closed -> open",
        "breaker of a/m: half-open -> closed",
    ]


def test_outrun_by_another_backend_opens_the_breaker_of_a_slow_one() -> None:
    steering, (slow, usual) = Steering(RoutingSettings(slow_after=0.5)), chain_of("a", "b")
    told: list[str] = []
    steering.tell = lambda health: told.append(health.name)
    for _ in range(NEEDED):
        steering.outrun(slow, 0.6, NOW, stream=True)
        steering.outrun(usual, 0.4, NOW, stream=True)
    assert steering.states() == {"a/m": "open", "b/m": "closed"}
    assert told == ["a/m"]


def test_embedded_model_tells_no_other_process() -> None:
    steering, (local,) = Steering(RoutingSettings()), chain_of("local")
    told: list[Health] = []
    steering.tell = told.append
    open_breaker(steering, local)
    assert not told
    assert steering.of(local).embedded


def test_follow_opens_a_closed_breaker_for_the_rest_that_was_told() -> None:
    steering, chain = Steering(RoutingSettings()), chain_of("a", "b")
    assert next_of(steering, chain) == 0
    steering.follow("a/m", NOW, 5.0, slow=True, soft=True)
    breaker = steering.of(chain[0]).breaker
    assert (breaker.state, breaker.slow, breaker.soft) == ("open", True, True)
    assert next_of(steering, chain, now=NOW + 4.9) == 1
    steering.follow("a/m", NOW + 4.9, 50.0, slow=False, soft=False)  # is open already
    assert next_of(steering, chain, now=NOW + 5.0) == 0
    steering.follow("nobody/knows", NOW, 5.0, slow=False, soft=False)


def test_follow_embedded_model_is_another_one_elsewhere() -> None:
    steering, (local,) = Steering(RoutingSettings()), chain_of("local")
    assert steering.of(local).breaker.state == "closed"
    steering.follow("local/m", NOW, 5.0, slow=False, soft=False)
    assert steering.of(local).breaker.state == "closed"


def test_breaker_switched_off_never_opens() -> None:
    steering, (backend,) = Steering(RoutingSettings(breaker=False, slow_after=0.1)), chain_of("a")
    for _ in range(NEEDED * 2):
        steering.failed(backend, lost("refused", made=False), NOW)
        steering.answered(backend, 9.0, NOW, stream=True)
        steering.outrun(backend, 9.0, NOW, stream=True)
    steering.follow("a/m", NOW, 5.0, slow=False, soft=False)
    assert steering.states() == {"a/m": "closed"}


def test_failed_broken_stream_counts_the_request_once() -> None:
    steering, (backend,) = Steering(RoutingSettings()), chain_of("a")
    for _ in range(NEEDED - 1):
        steering.answered(backend, 0.1, NOW, stream=True)
        steering.failed(backend, lost("cut", made=True), NOW, counted=True)
    assert steering.states() == {"a/m": "closed"}
    steering.answered(backend, 0.1, NOW, stream=True)
    steering.failed(backend, lost("cut", made=True), NOW, counted=True)
    assert steering.states() == {"a/m": "open"}


def test_settings_slow_after_reaches_the_breaker_of_other_providers_only() -> None:
    steering = Steering(msgspec.structs.replace(RoutingSettings(), slow_after=0.5))
    a, local = chain_of("a", "local")
    for _ in range(NEEDED):
        steering.answered(a, 0.6, NOW, stream=True)
        steering.answered(local, 0.6, NOW, stream=True)
    assert steering.states() == {"a/m": "open", "local/m": "closed"}


def test_account_at_half_open_is_probed_once_at_a_time() -> None:
    steering, (backend,) = Steering(RoutingSettings()), chain_of("a", accounts=2)
    for account in backend.accounts:
        open_breaker(steering, account)
    later = NOW + FIRST_REST
    probed = {steering.account(backend, (), later).account for _ in range(2)}
    assert probed == {1, 2}
    assert next_of(steering, [backend], now=later) == -1
