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


def offer(**environ: str) -> Backend:
    (provider,) = build_providers(Settings(providers=(ENTRY,), environ=environ))
    (found,) = build_backends(provider)
    return found


def test_each_account_has_its_key_and_address() -> None:
    accounts = offer(KEY_1="one", KEY_2="two").account_backends
    assert [(one.provider.key, one.origin.port, one.provider.weight, one.account_number) for one in accounts] == [
        ("one", 1, 1, 1),
        ("two", 1, 3, 2),
        ("one", 2, 1, 3),
    ]


def test_an_account_without_its_key_is_left_out() -> None:
    assert [one.provider.key for one in offer(KEY_1="one").account_backends] == ["one", "one"]
    assert build_providers(Settings(providers=(ENTRY,), environ={})) == []
    assert offer(KEY_2="two").provider.key == "two"
    assert offer(KEY_2="two").account_backends == ()


def test_an_entry_without_a_key_is_no_account_where_one_is_needed() -> None:
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


def test_requests_are_spread_by_weight_and_by_what_is_left() -> None:
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
def test_what_is_left(headers: dict[bytes, bytes], share: float | None) -> None:
    assert remaining_share(headers) == share


def test_used_up_accounts_get_little_until_it_is_old() -> None:
    steering, target = LoadBalancer(RoutingSettings()), offer(KEY_1="one", KEY_2="two")
    gone = {b"x-ratelimit-limit-requests": b"100", b"x-ratelimit-remaining-requests": b"0"}
    for account in target.account_backends[:2]:
        steering.record_rate_limits(account, gone, 100.0)
    now = Counter(steering.select_account(target, (), 101.0).account_number for _ in range(1000))
    later = Counter(steering.select_account(target, (), 200.0).account_number for _ in range(1000))
    assert now[3] > 900
    assert later[2] > 500


def test_a_used_account_is_not_taken_again_while_there_is_another() -> None:
    steering, target = LoadBalancer(RoutingSettings()), offer(KEY_1="one", KEY_2="two")
    used = list(target.account_backends[:2])
    assert {steering.select_account(target, used, 100.0).account_number for _ in range(50)} == {3}
