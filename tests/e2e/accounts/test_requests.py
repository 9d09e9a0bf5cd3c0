"""The search for requests, and the request that one id names."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


def search(gateway: Gateway, query: str, key: str) -> dict[str, Any]:
    got = gateway.request("GET", f"/v1/requests{query}", key=key)
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json
    return found


def test_requests_page_by_page_and_each_key_its_own(gateway: Gateway) -> None:
    admin = Admin(gateway)
    made = create(gateway, "--name", "pages", "--tag", "team=pages")
    for _ in range(3):
        assert chat(gateway, made["key"]) == 200
    assert chat(gateway, made["key"], CLAUDE) == 200
    until(lambda: len(search(gateway, "", made["key"])["data"]) == 4, 20)
    first = search(gateway, "?limit=3", made["key"])
    second = search(gateway, f"?limit=3&cursor={first['next_cursor']}", made["key"])
    assert (len(first["data"]), len(second["data"]), second["next_cursor"]) == (3, 1, None)
    assert {row["key_id"] for row in first["data"]} == {made["id"]}
    assert search(gateway, f"?key={made['id']}&model={CLAUDE}", admin.key)["data"] == first["data"][:1]
    assert len(admin("GET", f"/v1/requests?tag=team:pages&status=ok&model={GPT}").json["data"]) == 3
    other = create(gateway, "--name", "other")
    assert search(gateway, f"?key={made['id']}", other["key"])["data"] == []


def test_request_by_its_id_or_the_clients(gateway: Gateway) -> None:
    admin, made = Admin(gateway), create(gateway, "--name", "one")
    body = {"model": GPT, "messages": HI}
    ids = {"x-request-id": f"mine-{time.time()}"}
    got = gateway.request("POST", "/v1/chat/completions", body, key=made["key"], headers=ids)
    id = got.headers["x-request-id"]
    until(lambda: gateway.request("GET", f"/v1/requests/{id}", key=made["key"]).status == 200, 20)
    entry = admin("GET", f"/v1/requests/{id}", at="/v1/requests/{id}").json
    assert entry["request_id"] == id
    assert entry["attempts_detail"][0]["outcome"] == "ok"
    assert "/ 1000000" in entry["cost_formula"]
    for name in (id, entry["client_request_id"]):
        assert [row["request_id"] for row in search(gateway, f"?request={name}", made["key"])["data"]] == [id]
    other = create(gateway, "--name", "other")
    assert gateway.request("GET", f"/v1/requests/{id}", key=other["key"]).status == 404
    assert search(gateway, f"?request={id}", other["key"])["data"] == []


def refused(gateway: Gateway, query: str, key: str) -> list[dict[str, Any]]:
    got = gateway.request("GET", f"/v1/requests/refused{query}", key=key)
    assert got.status == 200, got.body
    rows: list[dict[str, Any]] = got.json["data"]
    return rows


def test_refused_requests_say_which_limit_and_why(gateway: Gateway) -> None:
    admin, made = Admin(gateway), create(gateway, "--name", "tight", "--rpm", "1", "--models", GPT, "--tag", "team=red")
    assert [chat(gateway, made["key"]) for _ in range(2)] == [200, 429]
    broken = gateway.request("POST", "/v1/chat/completions", b"{", key=made["key"])
    assert gateway.request("GET", "/v1/admin/keys", key=made["key"]).status == 403
    rows = refused(gateway, "", made["key"])
    assert {(row["http_status"], row["code"]) for row in rows} >= {
        (429, "rate_limit_exceeded"),
        (403, "permission_denied"),
        (broken.status, broken.json["error"]["code"]),
    }
    assert {row["key_id"] for row in rows} == {made["id"]}
    assert [row["tags"] for row in rows] == [{"team": "red"}] * len(rows)
    assert refused(gateway, "?tag=team:red", made["key"]) == rows
    assert refused(gateway, "?tag=team:blue", made["key"]) == []
    (limited,) = refused(gateway, f"?reached=rpm&model={GPT}", made["key"])
    assert (limited["limit"], limited["model_asked"], limited["key_name"]) == ("rpm", GPT, "tight")
    assert "1 request per minute (rpm)" in limited["message"]
    one = admin("GET", f"/v1/requests/{limited['request_id']}", at="/v1/requests/{id}").json
    assert one == limited
    assert (limited["limit_state"]["size"], limited["limit_state"]["used"]) == (1, 1)
    assert limited["request_id"] not in [row["request_id"] for row in search(gateway, "", made["key"])["data"]]
    other = create(gateway, "--name", "other")
    assert refused(gateway, f"?key={made['id']}", other["key"]) == []
    assert gateway.request("GET", f"/v1/requests/{limited['request_id']}", key=other["key"]).status == 404


def test_refused_request_with_an_invalid_field_has_its_model(gateway: Gateway) -> None:
    made = create(gateway, "--name", "hot")
    body = {"model": GPT, "messages": HI, "temperature": 9}
    assert gateway.request("POST", "/v1/chat/completions", body, key=made["key"]).status == 400
    assert gateway.request("POST", "/v1/responses", b'{"model": 1}', key=made["key"]).status == 400
    assert [row["model_asked"] for row in refused(gateway, "", made["key"])] == [None, GPT]
    (row,) = refused(gateway, f"?model={GPT}", made["key"])
    explanation = gateway.request("GET", f"/v1/requests/{row['request_id']}/explanation", key=made["key"]).json
    assert explanation["guide"] == "reference/errors"


def test_refused_requests_without_a_key_are_for_the_admin(gateway: Gateway) -> None:
    admin, made = Admin(gateway), create(gateway, "--name", "ordinary")
    secret = "svc_sk_no-such-key"
    got = gateway.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=secret)
    assert got.status == 401
    id = got.headers["x-request-id"]
    listed = admin("GET", f"/v1/requests/refused?request={id}")
    assert [row["http_status"] for row in listed.json["data"]] == [401]
    assert secret.encode() not in listed.body
    assert refused(gateway, f"?request={id}", made["key"]) == []
    assert gateway.request("GET", "/v1/requests/refused?limit=x", key=made["key"]).json["error"]["param"] == "limit"


def test_refused_requests_of_other_workers_are_listed(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nworkers = 2\n")
    ids = set()
    for _ in range(12):
        got = gateway.request("POST", "/v1/chat/completions", {"model": "nope", "messages": HI})
        ids.add(got.headers["x-request-id"])
    until(lambda: {row["request_id"] for row in refused(gateway, "?code=model_not_found", gateway.key)} >= ids, 20)


def test_overview_of_the_admin_and_of_one_key(gateway: Gateway) -> None:
    admin, made = Admin(gateway), create(gateway, "--name", "seen")
    empty = gateway.request("GET", "/v1/overview", key=made["key"])
    admin.check("GET", "/v1/overview", empty)
    assert (empty.json["is_empty"], empty.json["latency_ms"]) == (True, {"p50": None, "p99": None})
    for _ in range(2):
        assert chat(gateway, made["key"]) == 200
    until(lambda: gateway.request("GET", "/v1/overview", key=made["key"]).json["totals"]["requests"] == 2, 20)
    own = gateway.request("GET", "/v1/overview", key=made["key"]).json
    entries = search(gateway, "", made["key"])["data"]
    assert own["totals"]["cost_usd"] == round(sum(row["cost_usd"] for row in entries), 9)
    assert own["latency_ms"]["p50"] == min(row["latency_ms"] for row in entries)
    assert own["ttfb_ms"]["p99"] == max(row["ttfb_ms"] for row in entries)
    assert sum(point["requests"] for point in own["per_minute"]) == 2
    assert (own["keys"], own["providers"], own["open_streams"], own["is_empty"]) == (None, None, None, False)
    assert own["degraded"] is None
    until(lambda: admin("GET", "/v1/overview").json["totals"]["requests"] >= 2, 20)
    all_keys = admin("GET", "/v1/overview").json
    assert all_keys["keys"] >= 2
    assert {row["name"]: row["has_key"] for row in all_keys["providers"]}["openai"]
    assert all_keys["degraded"] == []
    assert gateway.request("GET", "/v1/overview?by=key", key=made["key"]).json["error"]["param"] == "by"


def test_overview_is_shared_for_a_moment(gateway: Gateway) -> None:
    admin = Admin(gateway)

    def is_from_before() -> bool:
        began = time.time()
        return datetime.fromisoformat(admin("GET", "/v1/overview").json["until"]).timestamp() <= began

    until(is_from_before, 20)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=99999999999999999999-", "cursor"),
        ("status=fine", "status"),
        ("http_status=9", "http_status"),
        ("tag=team", "tag"),
        ("model=", "model"),
        ("since=soon", "since"),
        ("since=1h&until=2h", "until"),
        ("colour=red", "colour"),
        (f"request={'r' * 300}", "request"),
    ],
)
def test_requests_invalid_parameter_is_named(gateway: Gateway, query: str, param: str) -> None:
    got = gateway.request("GET", f"/v1/requests?{query}")
    assert (got.status, got.json["error"]["param"]) == (400, param)


def test_requests_of_ephemeral_key_are_forbidden(gateway: Gateway) -> None:
    made = gateway.request("POST", "/v1/ephemeral_keys", {}).json
    for path in ("/v1/requests", "/v1/requests/req_1", "/v1/usage/series", "/v1/requests/refused", "/v1/overview"):
        assert gateway.request("GET", path, key=made["key"]).status == 403
        assert gateway.request("GET", path, key=None).status == 401


def test_usage_series_equals_the_entries_as_json_and_csv(gateway: Gateway) -> None:
    admin, made = Admin(gateway), create(gateway, "--name", "=series", "--tag", "team=series")
    for _ in range(3):
        assert chat(gateway, made["key"]) == 200
    until(lambda: len(search(gateway, "", made["key"])["data"]) == 3, 20)
    entries = search(gateway, "", made["key"])["data"]
    for query in ("", "?interval=minute&since=5h", "?status=ok", "?interval=day"):
        own = gateway.request("GET", f"/v1/usage/series{query}", key=made["key"])
        admin.check("GET", "/v1/usage/series", own)
        assert (own.json["totals"]["requests"], own.json["totals"]["errors"]) == (3, 0)
        assert round(own.json["totals"]["cost_usd"], 9) == round(sum(row["cost_usd"] for row in entries), 9)
    assert admin("GET", "/v1/usage/series?by=tag:team&tag=team:series").json["groups"][0]["value"] == "series"
    text = gateway.request("GET", f"/v1/usage/series?by=key&format=csv&key={made['id']}", key=admin.key)
    assert text.headers["content-type"].startswith("text/csv")
    header, line, *_ = text.body.decode().split("\r\n")
    assert header.startswith("time,key,key_name,requests,errors")
    assert line.split(",")[1:4] == [made["id"], "'=series", "3"]
