"""The admin API: its behaviour, its conformance with `/openapi.json`, and the command that uses it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route, WebSocketRoute

from svc import settings, telemetry
from svc.app.services import gateway_services
from svc.gateway.endpoints import load_endpoints
from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway, run
from tests.fakes import openai_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer

ENDPOINTS = load_endpoints()
HOT = {(endpoint.path, "post") for endpoint in ENDPOINTS}


class Admin:
    """Sends requests as an administrator and validates every response against the OpenAPI document."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.key = create(gateway, "--name", "boss", "--scope", "admin")["key"]
        self.document = gateway.request("GET", "/openapi.json", key=None).json

    def __call__(self, method: str, path: str, body: Any = None, *, at: str | None = None) -> Got:
        """`at`: the path template in the document, if the path holds an id."""
        got = self.gateway.request(method, path, body, key=self.key)
        self.check(method, at or path.partition("?")[0], got)
        return got

    def check(self, method: str, path: str, got: Got) -> None:
        responses = self.document["paths"][path][method.lower()]["responses"]
        found = self.resolved(responses.get(str(got.status)) or responses["default"])
        media = found["content"][got.headers["content-type"].partition(";")[0]]
        schema = {**media["schema"], "components": self.document["components"]}
        Draft202012Validator(schema).validate(got.json)

    def resolved(self, node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            found = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


@pytest.fixture(scope="module")
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


def remote(gateway: Gateway, key: str, *arguments: str) -> Any:
    """Run the command against a remote gateway, with a state folder of its own."""
    home = gateway.home / "elsewhere"
    home.mkdir(exist_ok=True)
    return run(*arguments, "--gateway", gateway.url, home=home, env={"SVC_API_KEY": key})


def unspent(text: str) -> dict[str, Any]:
    """Return a key without `spent_usd` and `last_used`, which change meanwhile."""
    return {name: value for name, value in json.loads(text).items() if name not in ("spent_usd", "last_used")}


async def test_openapi_paths_match_application_routes(tmp_path: Path) -> None:
    from svc.gateway.endpoints.openapi import openapi_document

    described = json.loads(openapi_document())
    OpenAPIV31SpecValidator(described).validate()
    writer = telemetry.configure()
    found = settings.load({"SVC_HOME": str(tmp_path)}, overrides={"console": {"enabled": True}})
    pages = {"/console", "/console/{path}", "/console/login", "/favicon.ico"}
    async with gateway_services(found, writer) as (_, _, application):
        there = set(HOT)
        for route in application.routes:
            if isinstance(route, WebSocketRoute):
                assert route.path in (*described["paths"], "/{path:path}")
            elif isinstance(route, Route) and (route.path, "post") not in HOT:
                path = route.path.replace(":path", "")
                there |= {(path, method.lower()) for method in route.methods or () if method != "HEAD"}
    writer.close()
    refused = {("/v1/audio/transcriptions/stream", "post")}  # the error names the required upgrade
    assert {route for route in there - refused if route[0] not in pages} == {
        (path, method) for path, item in described["paths"].items() for method in item if method != "parameters"
    }


def test_admin_key_create_change_rotate_revoke_takes_effect(gateway: Gateway, admin: Admin) -> None:
    made = admin("POST", "/v1/admin/keys", {"name": "shop", "models": [GPT], "rpm": 100, "tags": {"team": "a"}})
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    key, id = made.json["key"], made.json["id"]
    assert chat(gateway, key) == 200
    one = admin("GET", f"/v1/admin/keys/{id}", at="/v1/admin/keys/{id}").json
    assert one == {name: value for name, value in made.json.items() if name != "key"}
    assert chat(gateway, key, CLAUDE) == 404
    changed = admin(
        "PATCH", f"/v1/admin/keys/{id}", {"models": None, "rpm": None, "name": "web"}, at="/v1/admin/keys/{id}"
    )
    assert (changed.json["name"], changed.json["rpm"], changed.json["tags"]) == ("web", None, {"team": "a"})
    until(lambda: chat(gateway, key, CLAUDE) == 200, 20)
    turned = admin("POST", f"/v1/admin/keys/{id}/rotate", {"grace": 60}, at="/v1/admin/keys/{id}/rotate").json
    assert turned["old_until"]
    assert (chat(gateway, turned["key"]), chat(gateway, key)) == (200, 200)
    again = admin("POST", f"/v1/admin/keys/{id}/rotate", {"grace": 0}, at="/v1/admin/keys/{id}/rotate").json
    until(lambda: (chat(gateway, turned["key"]), chat(gateway, again["key"])) == (401, 200), 20)
    revoked = admin("POST", f"/v1/admin/keys/{id}/revoke", at="/v1/admin/keys/{id}/revoke").json
    until(lambda: chat(gateway, again["key"]) == 401, 20)
    twice = admin("POST", f"/v1/admin/keys/{id}/revoke", at="/v1/admin/keys/{id}/revoke").json
    assert twice["revoked"] == revoked["revoked"]
    refused = admin("POST", f"/v1/admin/keys/{id}/rotate", at="/v1/admin/keys/{id}/rotate")
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert not [secret for secret in (key, turned["key"], again["key"]) if secret in gateway.log]


def test_admin_keys_pagination_returns_each_key_once(gateway: Gateway, admin: Admin) -> None:
    wanted = {create(gateway, "--name", f"page {number}")["id"] for number in range(3)}
    seen: list[str] = []
    after = ""
    while True:
        page = admin("GET", f"/v1/admin/keys?limit=2&after={after}").json
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        after = seen[-1]
    assert wanted <= set(seen)
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


def test_admin_keys_search_and_revoked_select_keys(admin: Admin) -> None:
    first, second = (
        admin("POST", "/v1/admin/keys", {"name": f"Needle {number}", "tags": {"team": "hay"}}).json["id"]
        for number in (1, 2)
    )
    admin("POST", f"/v1/admin/keys/{second}/revoke", at="/v1/admin/keys/{id}/revoke")

    def found(query: str) -> set[str]:
        return {key["id"] for key in admin("GET", f"/v1/admin/keys?{query}").json["data"]}

    assert found("search=nEEdle") == found("search=team%3Dhay") == {first, second}
    assert found(f"search={first}") == found("search=needle&revoked=false") == {first}
    assert found("search=needle&revoked=true") == {second}
    assert found("search=no-such-key") == set()
    assert {key["id"] for key in admin("GET", "/v1/admin/limits?search=needle").json["data"]} == {first, second}
    page = admin("GET", "/v1/admin/keys?search=needle&limit=1").json
    assert (len(page["data"]), page["has_more"]) == (1, True)
    got = admin("GET", "/v1/admin/keys?revoked=perhaps")
    assert (got.status, got.json["error"]["param"]) == (400, "revoked")


def test_admin_keys_list_those_of_the_environment_without_secrets(admin: Admin) -> None:
    got = admin("GET", "/v1/admin/keys?limit=1")
    (configured,) = got.json["configured"]
    assert configured["name"] == "SVC_API_KEYS #1"
    assert configured["id"].startswith("env-")
    assert configured["scopes"] == ["chat", "metrics", "registry:read", "speech"]
    assert KEY.encode() not in got.body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "\x1b[31m"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "a", "scopes": ["fly"]}, "scopes"),
        ({"name": "a", "scopes": []}, "scopes"),
        ({"name": "a", "rpm": 0}, "rpm"),
        ({"name": "a", "rpm": "10"}, "rpm"),
        ({"name": "a", "budget_usd": -1}, "budget_usd"),
        ({"name": "a", "budget_period": "day"}, "budget_period"),
        ({"name": "a", "budget_usd": 1, "budget_period": "year"}, "budget_period"),
        ({"name": "a", "expires": "2020-01-01T00:00:00Z"}, "expires"),
        ({"name": "a", "expires": "soon"}, "expires"),
        ({"name": "a", "tags": {"x" * 65: "y"}}, "tags"),
        ({"name": "a", "digest": "00"}, "digest"),
    ],
)
def test_admin_create_key_invalid_field_returns_400_with_param(admin: Admin, body: Any, param: str | None) -> None:
    got = admin("POST", "/v1/admin/keys", body)
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "invalid_request", param)


def test_admin_without_admin_scope_returns_401_or_403(gateway: Gateway, admin: Admin) -> None:
    for path in ("keys", "keys/x", "usage", "limits", "providers"):
        assert gateway.request("GET", f"/v1/admin/{path}", key=None).status == 401
        assert gateway.request("GET", f"/v1/admin/{path}").code == "permission_denied"
    assert gateway.request("POST", "/v1/admin/keys", {"name": "mine", "scopes": ["admin"]}).status == 403
    at = "/v1/admin/keys/{id}"
    for method, path, body in (("GET", at, None), ("PATCH", at, {}), ("POST", f"{at}/revoke", None)):
        got = admin(method, path.replace("{id}", "key_nothing"), body, at=path)
        assert (got.status, got.code) == (404, "not_found")
    assert gateway.request("DELETE", "/v1/admin/keys", key=admin.key).status == 405
    assert gateway.request("GET", "/v1/admin/nothing", key=admin.key).status == 404
    assert gateway.request("HEAD", "/v1/admin/keys", key=admin.key).status == 200


def test_admin_usage_filters_by_key_and_time_range(gateway: Gateway, admin: Admin) -> None:
    made = create(gateway, "--name", "spender", "--tag", "team=x")
    got = gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=made["key"])
    until(lambda: admin("GET", f"/v1/admin/usage?key={made['id']}").json["data"] != [], 20)
    rows = admin("GET", f"/v1/admin/usage?key={made['id']}").json["data"]
    assert [row["request_id"] for row in rows] == [got.headers["x-request-id"]]
    sums = admin("GET", "/v1/admin/usage?by=tag:team&since=1h").json["data"]
    assert [row["requests"] for row in sums if row["tag:team"] == "x"] == [1]
    for span, count in (("since=1h", 1), ("until=1h", 0), (f"until={rows[0]['time']}", 0), ("since=2h&until=0s", 1)):
        assert len(admin("GET", f"/v1/admin/usage?key={made['id']}&{span}").json["data"]) == count
        by = admin("GET", f"/v1/admin/usage?by=key&key={made['id']}&{span}").json["data"]
        assert sum(row["requests"] for row in by) == count
    assert len(admin("GET", "/v1/admin/usage?by=key&limit=1").json["data"]) == 1
    (one,) = admin("GET", f"/v1/admin/usage?request={rows[0]['request_id']}").json["data"]
    assert one.pop("cost_formula") == "(11 x 0.15 + 7 x 0.6) / 1000000"
    assert [term["name"] for term in one.pop("cost_terms")] == ["input tokens", "output tokens"]
    assert one == rows[0]
    assert admin("GET", "/v1/admin/usage?request=req_0").json["data"] == []
    for wrong in ("by=colour", "since=yesterday", "until=x", "limit=0", "sinse=1h", "request=", "request=r&by=key"):
        assert admin("GET", f"/v1/admin/usage?{wrong}").json["error"]["param"] == wrong.partition("=")[0]
    own = gateway.request("GET", "/v1/usage?key=key_other", key=made["key"]).json["data"]
    assert [row["key_id"] for row in own] == [made["id"]]  # a key sees only its own entries, whatever the query


def test_openapi_public_responses_match_schema(gateway: Gateway, admin: Admin) -> None:
    for path in ("/health", "/health?verbose=1", "/openapi.json", "/v1/models", "/v1/usage", "/v1/usage?by=day"):
        admin.check("GET", path.partition("?")[0], gateway.request("GET", path))
    admin.check("GET", "/v1/models/{id}", gateway.request("GET", f"/v1/models/{GPT}"))
    admin.check("GET", "/v1/models/{id}", gateway.request("GET", "/v1/models/nope"))
    admin.check("POST", "/v1/chat/completions", gateway.chat())
    admin.check("POST", "/v1/chat/completions", gateway.chat("nope"))
    admin.check("POST", "/v1/messages", gateway.message())
    admin.check("POST", "/v1/messages", gateway.message("nope"))


def test_admin_providers_failing_model_shows_open_breaker(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    vendor = (
        f'[[providers]]\nname = "vendor"\nbase_url = "{provider_a.address}/v1"\nmodels = [{{ id = "v" }}]\n'
        'accounts = [{ api_key_env = "PROVIDER_A_API_KEY" }, { api_key_env = "PROVIDER_C_API_KEY" }]\n'
    )
    config = "[routing]\nretries = 0\n[gateway]\nworkers = 2\n[limits]\nrpm = 500\n"
    started = start_gateway(config=config + vendor)
    admin = Admin(started)
    before = {row["name"]: row for row in admin("GET", "/v1/admin/providers").json["data"]}
    assert sorted(before) == ["anthropic", "groq", "openai", "vendor"]
    assert (before["vendor"]["accounts"], before["openai"]["accounts"]) == (2, 1)
    assert {model["breaker"] for model in before["openai"]["models"]} == {"closed"}
    assert before["openai"]["models"][0]["input_price"] > 0
    assert not [fake for fake in (provider_a.key,) if fake in json.dumps(before)]
    provider_a.always_plays(answer(500, openai_wire.error("down")))
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: started.chat(), range(80)))
    for _ in range(2):
        rows = {row["name"]: row for row in admin("GET", "/v1/admin/providers").json["data"]}
        states = {model["id"]: model["breaker"] for model in rows["openai"]["models"]}
        if states[GPT] == "open":
            break
        time.sleep(1.2)  # the other worker's counters are at most one second old
    assert {name for name, state in states.items() if state != "closed"} == {GPT}
    assert {"gpt-4o", "gpt-4-turbo"} < set(states)
    limits = admin("GET", "/v1/admin/limits").json
    assert limits["defaults"] == {"rpm": 500, "tpm": None}
    assert set(limits["reached"]) == {"rpm", "tpm", "concurrency", "budget", "queue", "upstream"}


def test_admin_limits_show_current_usage_of_keys(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[gateway]\nworkers = 2\n")
    admin = Admin(started)
    limits = ("--rpm", "9", "--tpm", "90000", "--concurrency", "3", "--budget-usd", "1", "--budget-period", "day")
    made = create(started, "--name", "busy", *limits)
    assert [chat(started, made["key"]) for _ in range(3)] == [200] * 3
    use = admin("GET", f"/v1/admin/limits?key={made['id']}").json["data"]
    assert len(use) == 1
    wanted = {"requests": 3, "rpm": 9, "tpm": 90000, "running": 0, "concurrency": 3, "budget_usd": 1, "revoked": False}
    assert {name: use[0][name] for name in wanted} == wanted
    assert 0 < use[0]["tokens"] < 300
    assert 0 < use[0]["spent_usd"] < 0.01
    assert use[0]["reserved_usd"] == 0
    page = admin("GET", "/v1/admin/limits?limit=1").json
    assert (len(page["data"]), page["has_more"]) == (1, True)
    assert admin("GET", "/v1/admin/limits?key=nothing", at="/v1/admin/limits").status == 404
    assert admin("GET", "/v1/admin/limits?limit=0").status == 400

    def as_itself(path: str, method: str = "GET") -> Got:
        return started.request(method, path, {} if method == "PATCH" else None, key=made["key"])

    own = as_itself(f"/v1/admin/limits?key={made['id']}").json
    assert (own["reached"], own["data"][0]["requests"]) == ({}, 3)
    assert as_itself(f"/v1/admin/keys/{made['id']}").json["budget_usd"] == 1
    for path in ("/v1/admin/limits", "/v1/admin/limits?key=other", "/v1/admin/keys", "/v1/admin/keys/other"):
        assert as_itself(path).status == 403
    assert as_itself(f"/v1/admin/keys/{made['id']}", "PATCH").status == 403
    shown = remote(started, admin.key, "keys", "limits")
    assert "3 of 9" in shown.stdout
    assert len(shown.stdout.splitlines()) == 3
    assert json.loads(remote(started, admin.key, "keys", "limits", made["id"], "--json").stdout)[0]["requests"] == 3
    near = run("keys", "limits", home=started.home)
    assert (near.returncode, "--gateway" in near.stderr) == (2, True)


def test_command_remote_gateway_matches_local_command(gateway: Gateway, admin: Admin) -> None:
    made = json.loads(remote(gateway, admin.key, "keys", "create", "--name", "far", "--rpm", "9", "--json").stdout)
    here = json.loads(run("keys", "show", made["id"], "--json", home=gateway.home).stdout)
    assert {**here, "key": made["key"]} == made
    assert chat(gateway, made["key"]) == 200
    far = remote(gateway, admin.key, "keys", "change", made["id"], "--rpm", "none", "--tpm", "7", "--json")
    assert unspent(far.stdout) == unspent(json.dumps({**here, "rpm": None, "tpm": 7}))
    near = run("keys", "change", made["id"], "--tpm", "none", "--tag", "a=b", "--json", home=gateway.home)
    assert unspent(near.stdout) == unspent(json.dumps({**here, "rpm": None, "tags": {"a": "b"}}))
    lists = [
        json.loads(done.stdout)
        for done in (remote(gateway, admin.key, "keys", "ls", "--json"), run("keys", "ls", "--json", home=gateway.home))
    ]
    assert [row["id"] for row in lists[0]] == [row["id"] for row in lists[1]]
    options = ("usage", "--by", "model", "--since", "1h", "--json")
    sums = json.loads(remote(gateway, admin.key, *options).stdout)
    assert {row["model"] for row in sums} == {
        row["model"] for row in json.loads(run(*options, home=gateway.home).stdout)
    }
    turned = remote(gateway, admin.key, "keys", "rotate", made["id"], "--grace", "0")
    until(lambda: chat(gateway, made["key"]) == 401, 20)
    assert chat(gateway, turned.stdout.split("\n")[1]) == 200
    assert "is revoked" in remote(gateway, admin.key, "keys", "revoke", made["id"]).stdout


@pytest.mark.parametrize(
    ("key", "arguments", "status", "says"),
    [
        ("", ("keys", "ls"), 2, "SVC_API_KEY"),
        ("svc_sk_wrong", ("keys", "ls"), 1, "not valid"),
        ("test-client-key-1", ("usage",), 1, "admin"),
        (None, ("keys", "show", "key_nothing"), 1, "key_nothing"),
        (None, ("keys", "show", "../../models"), 1, "no path"),
        (None, ("keys", "create", "--name", "a", "--rpm", "0"), 2, "rpm"),
        (None, ("keys", "create", "--name", "a", "--expires", "2020-01-01"), 2, "past"),
        (None, ("usage", "--by", "colour"), 2, "by must be key"),
    ],
)
def test_command_remote_gateway_error_prints_one_line(
    gateway: Gateway, admin: Admin, key: str | None, arguments: tuple[str, ...], status: int, says: str
) -> None:
    done = remote(gateway, admin.key if key is None else key, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_command_unreachable_gateway_prints_one_line(gateway: Gateway, tmp_path: Path) -> None:
    for url, status in (("http://127.0.0.1:9", 1), ("ftp://x", 2), ("", 2)):
        done = run("keys", "ls", "--gateway", url, home=tmp_path, env={"SVC_API_KEY": "k"})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)


def test_usage_database_unavailable_returns_503_without_path(start_gateway: StartGateway, tmp_path: Path) -> None:
    started = start_gateway(env={"SVC_DATABASE_URL": f"sqlite:///{tmp_path}"})  # a folder is no database
    got = started.request("GET", "/v1/usage")
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "internal_error", "1")
    assert str(tmp_path) not in got.body.decode()
