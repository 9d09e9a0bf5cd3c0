"""The state of providers, and the test of one, by an administrator."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import create
from tests.e2e.conftest import serve
from tests.e2e.harness import CLAUDE, GPT, Gateway, provider_environment
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, stall

TEST = "/v1/admin/providers/{name}/test"
CONFIG = """
[[providers]]
name = "nokey"
base_url = "https://user:secret@api.example.com/v1"
api_key_env = "NOKEY_API_KEY"
models = [{ id = "nokey-model" }]
[[providers]]
name = "voices"
base_url = "http://127.0.0.1:9/v1"
models = [{ id = "voice", kind = "speech" }]
[limits]
rpm = 0
""".replace("user:secret@", "")


@pytest.fixture(scope="module")
def gateway(all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    yield from serve(all_fakes, tmp_path_factory.mktemp("providers"), CONFIG)


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


def states(admin: Admin) -> dict[str, Any]:
    return {row["name"]: row for row in admin("GET", "/v1/admin/providers").json["data"]}


def model_state(admin: Admin, provider: str, model: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in states(admin)[provider]["models"] if each["id"] == model)
    return found


def run_test(admin: Admin, name: str, **fields: Any) -> Any:
    return admin("POST", f"/v1/admin/providers/{name}/test", fields, at=TEST)


def test_provider_without_key_names_the_variable(admin: Admin) -> None:
    nokey = states(admin)["nokey"]
    assert (nokey["configured"], nokey["missing_variables"]) == (False, ["NOKEY_API_KEY"])
    assert [each["id"] for each in nokey["models"]] == ["nokey-model"]
    assert states(admin)["openai"]["configured"] is True
    refused = run_test(admin, "nokey")
    assert refused.code == "invalid_request"
    assert "NOKEY_API_KEY" in refused.json["error"]["message"]


def test_providers_recent_attempts_and_last_error(gateway: Gateway, admin: Admin, provider_a: FakeProvider) -> None:
    assert gateway.chat().status == 200
    provider_a.plays(answer(400, {"error": {"message": "no"}}))
    assert gateway.chat().status == 400
    found = model_state(admin, "openai", GPT)
    recent = found["recent"]
    assert (recent["attempts"], recent["errors"], recent["error_rate"]) == (2, 0, 0.0)
    assert recent["latency_p50_ms"] > 0
    assert found["last_error"]["code"] == "invalid_request"
    assert states(admin)["openai"]["last_error"] == found["last_error"]
    assert states(admin)["anthropic"]["recent"]["attempts"] == 0
    provider_a.plays(answer(404, {"error": {"message": "no such model"}}))
    assert gateway.chat().status >= 400
    recent = model_state(admin, "openai", GPT)["recent"]
    assert (recent["attempts"], recent["errors"]) == (3, 1)


@pytest.mark.parametrize(("name", "model"), [("openai", GPT), ("anthropic", CLAUDE)])
def test_test_sends_one_token_and_is_billed(
    gateway: Gateway, admin: Admin, all_fakes: Mapping[str, FakeProvider], name: str, model: str
) -> None:
    result = run_test(admin, name, model=model).json
    assert (result["ok"], result["code"], result["http_status"], result["model"]) == (True, None, 200, model)
    assert result["latency_ms"] > 0
    sent = all_fakes["A" if name == "openai" else "B"].wait().json
    assert sent.get("max_completion_tokens", sent.get("max_tokens")) == 1
    path = f"/v1/admin/usage?request={result['request_id']}"
    deadline = time.monotonic() + 5
    while not (rows := admin("GET", path, at="/v1/admin/usage").json["data"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (rows[0]["cost_usd"], rows[0]["prompt_tokens"]) == (result["cost_usd"], result["prompt_tokens"])
    assert rows[0]["endpoint"] == TEST


def test_test_without_a_model_takes_the_first(admin: Admin) -> None:
    assert run_test(admin, "openai").json["ok"] is True


def test_test_failure_is_a_result_without_the_key(admin: Admin, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(401, {"error": {"message": f"Incorrect API key provided: {provider_a.key}"}}))
    result = run_test(admin, "openai")
    assert (result.status, result.json["ok"], result.json["http_status"]) == (200, False, 401)
    assert result.json["code"] == "provider_error"
    assert provider_a.key not in result.body.decode()


@pytest.mark.parametrize(
    ("name", "fields", "status", "code"),
    [
        ("nobody", {}, 404, "not_found"),
        ("openai", {"model": "other"}, 400, "invalid_request"),
        ("openai", {"model": 7}, 400, "invalid_request"),
        ("openai", {"account": 2}, 400, "invalid_request"),
        ("openai", {"url": "http://10.0.0.1"}, 400, "invalid_request"),
        ("voices", {}, 400, "invalid_request"),
        ("<img onerror=alert(1)>", {}, 404, "not_found"),
    ],
)
def test_test_invalid_request_is_rejected(
    admin: Admin, name: str, fields: dict[str, Any], status: int, code: str
) -> None:
    refused = admin.gateway.request(
        "POST", f"/v1/admin/providers/{name.replace(' ', '%20')}/test", fields, key=admin.key
    )
    assert (refused.status, refused.code) == (status, code)


def test_providers_need_admin(gateway: Gateway) -> None:
    key = create(gateway, "--name", "chatter", "--scope", "chat")["key"]
    assert gateway.request("GET", "/v1/admin/providers", key=key).status == 403
    assert gateway.request("POST", "/v1/admin/providers/openai/test", {}, key=key).status == 403
    assert gateway.request("POST", "/v1/admin/providers/openai/test", {}, key=None).status == 401


def test_test_of_silent_provider_times_out_and_tests_are_limited(
    all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory, provider_a: FakeProvider
) -> None:
    config = "[gateway]\nfirst_byte_timeout = 0.5\n"
    one = Gateway(
        tmp_path_factory.mktemp("silent"), env=provider_environment(all_fakes), config=config, is_forked=True
    ).start()
    try:
        admin = Admin(one)
        provider_a.plays(stall())
        result = run_test(admin, "openai").json
        assert (result["ok"], result["code"], result["http_status"]) == (False, "provider_error", None)
        for _ in range(9):
            assert run_test(admin, "openai").json["ok"] is True
        limited = run_test(admin, "openai")
        assert (limited.status, limited.code) == (429, "rate_limit_exceeded")
    finally:
        one.stop()
