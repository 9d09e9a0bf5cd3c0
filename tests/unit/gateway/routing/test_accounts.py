from collections import Counter

import msgspec
import pytest

from svc.gateway.routing.accounts import choose_account, remaining_share
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.providers import build_providers
from svc.settings import AccountSettings, ModelSettings, ProviderSettings, RoutingSettings, Settings

ENTRY = ProviderSettings(
    name="vendor",
    base_url="http://127.0.0.1:1/v1",
    api_key_env="KEY_1",
    models=(ModelSettings(id="m"),),
    accounts=(AccountSettings(api_key_env="KEY_2", weight=3), AccountSettings(base_url="http://127.0.0.1:2/v1")),
)


def backend_with_keys(**environ: str) -> Backend:
    (provider,) = build_providers(Settings(providers=(ENTRY,), environ=environ))
    (found,) = build_backends(provider)
    return found


def test_accounts_each_has_own_key_and_address() -> None:
    accounts = backend_with_keys(KEY_1="one", KEY_2="two").account_backends
    assert [(one.provider.key, one.origin.port, one.provider.weight, one.account_number) for one in accounts] == [
        ("one", 1, 1, 1),
        ("two", 1, 3, 2),
        ("one", 2, 1, 3),
    ]


def test_accounts_without_api_key_are_omitted() -> None:
    assert [one.provider.key for one in backend_with_keys(KEY_1="one").account_backends] == ["one", "one"]
    assert build_providers(Settings(providers=(ENTRY,), environ={})) == []
    assert backend_with_keys(KEY_2="two").provider.key == "two"
    assert backend_with_keys(KEY_2="two").account_backends == ()


def test_accounts_provider_without_key_is_omitted_where_key_is_required() -> None:
    with_keys = ProviderSettings(
        name="vendor",
        base_url="http://127.0.0.1:1/v1",
        models=(ModelSettings(id="m"),),
        accounts=(AccountSettings(api_key_env="KEY_1"), AccountSettings(api_key_env="KEY_2")),
    )
    (provider,) = build_providers(Settings(providers=(with_keys,), environ={"KEY_1": "one", "KEY_2": "two"}))
    assert [one.key for one in provider.accounts] == ["one", "two"]
    elsewhere = (AccountSettings(api_key_env="KEY_1", base_url="http://127.0.0.1:2/v1"),)
    mixed = msgspec.structs.replace(with_keys, accounts=elsewhere)
    (provider,) = build_providers(Settings(providers=(mixed,), environ={"KEY_1": "one"}))
    assert [one.key for one in provider.accounts] == ["", "one"]
    assert b"authorization" not in build_backends(provider)[0].account_backends[0].request_head[1]


def test_choose_account_follows_weight_and_remaining_share() -> None:
    counted = Counter(choose_account([1, 3], [1.0, 1.0]) for _ in range(4000))
    assert 2700 < counted[1] < 3300
    counted = Counter(choose_account([1, 1], [1.0, 0.0]) for _ in range(4000))
    assert counted[1] < 120


@pytest.mark.parametrize(
    ("headers", "share"),
    [
        ({}, None),
        ({b"x-ratelimit-limit-requests": b"100", b"x-ratelimit-remaining-requests": b"40"}, 0.4),
        (
            {
                b"x-ratelimit-limit-requests": b"100",
                b"x-ratelimit-remaining-requests": b"40",
                b"x-ratelimit-limit-tokens": b"1000",
                b"x-ratelimit-remaining-tokens": b"10",
            },
            0.01,
        ),
        ({b"x-ratelimit-remaining-requests": b"40"}, None),
        ({b"x-ratelimit-limit-requests": b"40"}, None),
        ({b"anthropic-ratelimit-requests-limit": b"10", b"anthropic-ratelimit-requests-remaining": b"5"}, 0.5),
        ({b"x-ratelimit-limit-requests": b"0", b"x-ratelimit-remaining-requests": b"0"}, None),
        ({b"x-ratelimit-limit-requests": b"many", b"x-ratelimit-remaining-requests": b"-3"}, None),
        ({b"x-ratelimit-limit-requests": b"1", b"x-ratelimit-remaining-requests": b"9" * 400}, None),
        ({b"x-ratelimit-limit-requests": b"9" * 5000, b"x-ratelimit-remaining-requests": b"1"}, None),
    ],
)
def test_remaining_share_is_read_from_rate_limit_headers(headers: dict[bytes, bytes], share: float | None) -> None:
    assert remaining_share(headers) == share


def test_select_account_exhausted_accounts_get_little_until_limits_expire() -> None:
    balancer, backend = LoadBalancer(RoutingSettings()), backend_with_keys(KEY_1="one", KEY_2="two")
    exhausted = {b"x-ratelimit-limit-requests": b"100", b"x-ratelimit-remaining-requests": b"0"}
    for account in backend.account_backends[:2]:
        balancer.record_rate_limits(account, exhausted, 100.0)
    now = Counter(balancer.select_account(backend, (), 101.0).account_number for _ in range(1000))
    later = Counter(balancer.select_account(backend, (), 200.0).account_number for _ in range(1000))
    assert now[3] > 900
    assert later[2] > 500


def test_select_account_tried_account_is_not_selected_again() -> None:
    balancer, backend = LoadBalancer(RoutingSettings()), backend_with_keys(KEY_1="one", KEY_2="two")
    used = list(backend.account_backends[:2])
    assert {balancer.select_account(backend, used, 100.0).account_number for _ in range(50)} == {3}
