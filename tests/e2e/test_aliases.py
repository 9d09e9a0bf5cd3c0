"""`[[aliases]]`: a model under another name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway, run
from tests.e2e.test_reload import reload, write
from tests.fakes.provider import FakeProvider

SONNET, HAIKU = "claude-sonnet-4-5", "claude-3-haiku-20240307"
ALIASES = f"""
[[aliases]]
name = "{SONNET}"
model = "{GPT}"

[[aliases]]
name = "agent"
model = "{CLAUDE}"

[[aliases]]
name = "{HAIKU}"
model = "{GPT}"
"""


@pytest.fixture
def aliased(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config=ALIASES)


def listed(gateway: Gateway, key: str) -> dict[str, str]:
    got = gateway.request("GET", "/v1/models", key=key)
    return {model["id"]: model["owned_by"] for model in got.json["data"]}


def test_alias_is_served_by_its_model_and_recorded_with_it(
    aliased: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    cases: list[tuple[Any, FakeProvider, str]] = [
        (aliased.message(SONNET), provider_a, GPT),
        (aliased.chat(SONNET), provider_a, GPT),
        (aliased.message("agent"), provider_b, CLAUDE),
        (aliased.message(HAIKU), provider_a, GPT),
    ]
    for got, provider, model in cases:
        assert got.status == 200
        assert provider.requests.pop(0).json["model"] == model
        entry = entry_of(aliased, got.headers["x-request-id"])
        assert (entry["model"], entry["model_asked"] != model) == (model, True)
        assert entry["cost_usd"] > 0
    assert listed(aliased, aliased.key).items() >= {SONNET: "openai", "agent": "anthropic", HAIKU: "openai"}.items()
    got = aliased.request("GET", f"/v1/models/{SONNET}")
    assert (got.json["id"], got.json["owned_by"]) == (SONNET, "openai")


def test_alias_changes_only_the_model_name_of_the_body(aliased: Gateway, provider_b: FakeProvider) -> None:
    body = b'{"model" : "agent", "max_tokens":5,  "messages":[{"role":"user","content":"\\u00fc"}]}'
    assert aliased.request("POST", "/v1/messages", body).status == 200
    assert provider_b.wait().body == body.replace(b'"agent"', json.dumps(CLAUDE).encode())


def test_alias_key_restricted_to_alias_or_model_may_use_alias(aliased: Gateway) -> None:
    by_alias = create(aliased, "--name", "a", "--models", SONNET)["key"]
    by_model = create(aliased, "--name", "b", "--models", GPT)["key"]
    assert list(listed(aliased, by_alias)) == [SONNET]
    assert sorted(listed(aliased, by_model)) == sorted([GPT, SONNET, HAIKU])

    def status(key: str, model: str) -> int:
        body = {"model": model, "max_tokens": 5, "messages": HI}
        return aliased.request("POST", "/v1/messages", body, key=key).status

    assert [status(by_alias, name) for name in (SONNET, GPT, "agent")] == [200, 404, 404]
    assert [status(by_model, name) for name in (SONNET, GPT, "agent")] == [200, 200, 404]


def test_alias_reload_adds_and_removes_aliases(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="")
    assert gateway.message(SONNET).status == 404
    write(gateway, ALIASES)
    reload(gateway)
    assert gateway.message(SONNET).status == 200
    write(gateway, '[[aliases]]\nname = "x"\nmodel = "gpt-99"\n')
    reload(gateway, "was not reloaded")
    gateway.logged("given.toml, line 3: [[aliases]] names a model that no provider has: 'gpt-99'", timeout=20)
    assert gateway.message(SONNET).status == 200
    write(gateway, "")
    reload(gateway)
    assert gateway.message(SONNET).status == 404


def test_alias_of_provider_without_key_warns_at_start(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config=ALIASES, env={"PROVIDER_A_API_KEY": ""})
    gateway.logged(f"given.toml, line 3: the alias '{SONNET}' is not available", timeout=20)
    assert gateway.message("agent").status == 200
    got = gateway.message(SONNET)
    assert (got.status, got.json["error"]["type"]) == (404, "not_found_error")
    assert "PROVIDER_A_API_KEY" in got.json["error"]["message"]
    assert not {SONNET, HAIKU} & set(listed(gateway, gateway.key))


def test_alias_of_unknown_model_ends_the_start_with_its_line(tmp_path: Any) -> None:
    (tmp_path / "svc.toml").write_text('[[aliases]]\nname = "x"\n\nmodel = "gpt-99"\n')
    done = run("gateway", "--port", "0", home=tmp_path)
    assert done.returncode == 2
    assert "svc.toml, line 4: [[aliases]] names a model that no provider has: 'gpt-99'" in done.stderr
