"""`svc gateway --role`: a data gateway and an admin gateway share one database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway, run
from tests.fakes.provider import FakeProvider

DATA_ONLY = (
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/audio/voices"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/ephemeral_keys"),
)
ADMIN_ONLY = (
    ("GET", "/v1/usage"),
    ("GET", "/v1/requests"),
    ("GET", "/v1/overview"),
    ("GET", "/v1/events"),
    ("GET", "/v1/admin/keys"),
    ("GET", "/v1/admin/providers"),
    ("POST", "/v1/admin/keys"),
    ("GET", "/console/"),
    ("GET", "/console/session"),
)
SHARED = ("/health", "/v1/models", "/openapi.json", "/metrics")


def message_of(gateway: Gateway, method: str, path: str) -> str:
    got = gateway.request(method, path, {"model": GPT, "messages": HI} if method == "POST" else None)
    assert got.status == 404, (method, path, got.status, got.body)
    error: Mapping[str, str] = json.loads(got.body)["error"]
    return error["message"]


@pytest.mark.parametrize("workers", [1, 2])
def test_roles_data_and_admin_share_keys_and_usage(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], tmp_path: Path, workers: int
) -> None:
    env = {"SVC_DATABASE_URL": f"sqlite:///{tmp_path / 'shared.db'}"}
    data = start_gateway(config=f'[gateway]\nrole = "data"\nworkers = {workers}\n', env=env)
    admin = start_gateway(config=f'[gateway]\nrole = "admin"\nworkers = {workers}\n', env=env)
    done = run("keys", "create", "--json", "--name", "root", "--scope", "chat,admin", home=admin.home, env=env)
    assert done.returncode == 0, done.stderr
    root = json.loads(done.stdout)["key"]

    created = admin.request("POST", "/v1/admin/keys", {"name": "shop"}, key=root)
    assert created.status in (200, 201), created.body
    shop = json.loads(created.body)
    chat = data.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=shop["key"])
    assert chat.status == 200, chat.body

    def is_counted() -> bool:
        got = admin.request("GET", "/v1/admin/usage?by=key", key=root)
        return got.status == 200 and shop["id"].encode() in got.body

    until(is_counted, 20)


def test_roles_route_of_other_role_is_404_that_names_it(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider]
) -> None:
    data = start_gateway(config='[gateway]\nrole = "data"\n[console]\nenabled = true\n')
    admin = start_gateway(config='[gateway]\nrole = "admin"\n[console]\nenabled = true\n')
    for method, path in ADMIN_ONLY:
        assert "`--role admin`" in message_of(data, method, path), path
    for method, path in DATA_ONLY:
        assert "`--role data`" in message_of(admin, method, path), path
    for gateway in (data, admin):
        assert [gateway.request("GET", path).status for path in SHARED] == [200] * len(SHARED)
        unknown = message_of(gateway, "GET", "/v1/unknown")
        assert "role" not in unknown
        assert gateway.request("GET", "/v1/usage", key="wrong").status == 401
        assert gateway.request("POST", "/v1/chat/completions", {}, key="wrong").status == 401
    assert "gateway  http" in data.log
    assert "console  http" not in data.log
    assert "admin    http" in admin.log
    assert admin.request("GET", "/console/").status in (200, 307)


def test_roles_error_for_anthropic_client_has_its_format(start_gateway: StartGateway) -> None:
    admin = start_gateway(config='[gateway]\nrole = "admin"\n')
    got = admin.message()
    assert got.status == 404
    assert json.loads(got.body)["type"] == "error"
    assert json.loads(got.body)["error"]["type"] == "not_found_error"


def test_roles_admin_gateway_rejects_speech_websocket(start_gateway: StartGateway) -> None:
    admin = start_gateway(config='[gateway]\nrole = "admin"\n')
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    got = admin.request(
        "GET", "/v1/audio/transcriptions/stream", headers={**headers, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    )
    assert got.status == 404, got.body
    assert b"--role data" in got.body


def test_roles_unknown_role_is_usage_error(tmp_path: Path) -> None:
    done = run("gateway", "--role", "both", home=tmp_path)
    assert done.returncode == 2
    assert "data" in done.stderr
    assert "admin" in done.stderr
    (tmp_path / "svc.toml").write_text('[gateway]\nrole = "both"\n')
    done = run("gateway", home=tmp_path)
    assert done.returncode == 2
    assert "role" in done.stderr
