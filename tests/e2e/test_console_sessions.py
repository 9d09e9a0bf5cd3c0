"""Sessions of the console over HTTP: cookie, CSRF token, scopes, limits of login attempts, WebSockets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.browser.console import Console
from tests.e2e.harness import GPT, HI, run
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider

UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol": "svc.v1",
}


@pytest.fixture
def console(tmp_path: Path, provider_a: FakeProvider) -> Iterator[Console]:
    with Console(tmp_path, provider_a, '[gateway]\ntrusted_proxies = ["127.0.0.0/8"]\n') as console:
        yield console


class Session:
    """A client with the cookie of a session."""

    def __init__(self, console: Console, key: str) -> None:
        self._gateway = console.gateway
        got = self._gateway.request("POST", "/console/session", {"key": key}, key=None)
        assert got.status == 200, got.body
        self.info: dict[str, Any] = json.loads(got.body)
        self.set_cookie = got.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]

    def request(
        self, method: str, path: str, body: Any = None, *, csrf: bool = True, headers: Mapping[str, str] | None = None
    ) -> Got:
        token = {"x-csrf-token": self.info["csrf_token"]} if csrf else {}
        return self._gateway.request(
            method, path, body, key=None, headers={"cookie": self.cookie, **token, **(headers or {})}
        )


def test_login_returns_the_session_and_a_cookie_that_is_not_secure_over_http(console: Console) -> None:
    session = Session(console, console.admin_key)
    assert session.info["key_name"] == "admin"
    assert {"HttpOnly", "SameSite=strict"} <= set(session.set_cookie.split("; "))
    assert "Secure" not in session.set_cookie
    assert json.loads(session.request("GET", "/console/session").body) == session.info


def test_login_behind_a_tls_proxy_sets_a_secure_cookie(console: Console) -> None:
    headers = {"x-forwarded-proto": "https"}
    got = console.gateway.request("POST", "/console/session", {"key": console.admin_key}, key=None, headers=headers)
    assert "Secure" in got.headers["set-cookie"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"key": "svc_sk_wrong"}, 401),
        ({"key": ""}, 401),
        ({"key": "x" * 600}, 401),
        ({"key": 5}, 400),
        ({}, 400),
        ({"key": "a", "more": 1}, 400),
        (b"\xff\xfe", 400),
        (b"x" * 9000, 413),
    ],
)
def test_login_with_bad_input_sets_no_cookie(console: Console, body: Any, status: int) -> None:
    got = console.gateway.request("POST", "/console/session", body, key=None)
    assert got.status == status, got.body
    assert "set-cookie" not in got.headers


def test_login_by_a_form_of_another_page_is_rejected(console: Console) -> None:
    form = ('{"key":"=","key":"' + console.user_key + '"}').encode()
    for headers, status in (
        ({"content-type": "text/plain"}, 400),
        ({"content-type": "application/json", "origin": "http://evil.example"}, 403),
        ({"content-type": "application/json", "origin": "null"}, 403),
    ):
        got = console.gateway.request("POST", "/console/session", form, key=None, headers=headers)
        assert got.status == status, got.body
        assert "set-cookie" not in got.headers


def test_rotation_ends_sessions_even_while_the_old_secret_is_valid(console: Console) -> None:
    created = console.create_key("rotated", "--scope", "admin")
    session = Session(console, created["key"])
    path = f"/v1/admin/keys/{created['id']}/rotate"
    assert console.gateway.request("POST", path, {"grace": 3600}, key=console.admin_key).status == 200
    deadline = time.monotonic() + 3
    while session.request("GET", "/v1/admin/keys").status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert console.gateway.request("GET", "/v1/admin/keys", key=created["key"]).status == 200


def test_change_without_csrf_token_is_rejected_on_all_kinds_of_routes(console: Console) -> None:
    session = Session(console, console.admin_key)
    chat = {"model": GPT, "messages": HI}
    for path, body in (("/v1/admin/keys", {"name": "x"}), ("/v1/chat/completions", chat)):
        for headers in ({}, {"x-csrf-token": "wrong"}, {"x-csrf-token": "é"}):
            assert session.request("POST", path, body, csrf=False, headers=headers).status == 403
        assert session.request("POST", path, body).status in (200, 201)
    assert session.request("DELETE", "/console/session", csrf=False).status == 403


def test_session_acts_as_its_key(console: Console) -> None:
    session = Session(console, console.user_key)
    assert session.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}).status == 200
    assert session.request("GET", "/v1/admin/keys").status == 403
    assert session.request("GET", "/v1/models").status == 200
    made = session.request("POST", "/v1/ephemeral_keys", {})
    assert made.status == 200, made.body
    token = json.loads(made.body)["key"]
    assert console.gateway.request("GET", "/v1/models", key=token).status == 200
    assert console.gateway.request("POST", "/console/session", {"key": token}, key=None).status == 401


def test_session_of_a_configured_key_works_after_a_restart(console: Console) -> None:
    session = Session(console, console.gateway.key)
    console.gateway.stop()
    console.gateway.start()
    assert session.request("GET", "/console/session").status == 200
    assert session.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}).status == 200


@pytest.mark.parametrize("position", [10, 30, -40, -1])
def test_changed_cookie_is_rejected(console: Console, position: int) -> None:
    session = Session(console, console.admin_key)
    characters = list(session.cookie)
    characters[position] = "A" if characters[position] != "A" else "B"
    session.cookie = "".join(characters)
    assert session.request("GET", "/v1/admin/keys").status == 401
    assert session.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}).status in (401, 403)


def test_eleventh_login_attempt_of_an_address_is_429_and_proxies_tell_addresses_apart(console: Console) -> None:
    def attempt(address: str) -> Got:
        return console.gateway.request(
            "POST", "/console/session", {"key": console.admin_key}, key=None, headers={"x-forwarded-for": address}
        )

    assert [attempt("192.0.2.1").status for _ in range(11)] == [200] * 10 + [429]
    assert attempt("192.0.2.2").status == 200
    assert attempt("192.0.2.9, 192.0.2.1").status == 429


def test_workers_share_the_limit_of_login_attempts(tmp_path: Path, provider_a: FakeProvider) -> None:
    with Console(tmp_path, provider_a, "[gateway]\nworkers = 2\n") as console:
        body = {"key": "svc_sk_wrong"}
        statuses = [console.gateway.request("POST", "/console/session", body, key=None).status for _ in range(24)]
    assert statuses == [401] * 10 + [429] * 14


def test_websocket_of_another_origin_is_rejected(console: Console) -> None:
    session = Session(console, console.user_key)
    host = "127.0.0.1"  # what the client sends as Host
    path = "/v1/audio/transcriptions/stream"
    for origin in ("http://127.0.0.1:1", "null", f"http://{host}.example"):
        got = session.request("GET", path, csrf=False, headers={**UPGRADE, "origin": origin})
        assert got.status == 403, (origin, got.body)
    with console.gateway.raw() as raw:
        headers = {**UPGRADE, "origin": f"http://{host}", "cookie": session.cookie}
        raw.send(request_bytes("GET", path, headers=headers))
        assert raw.socket.recv(12) == b"HTTP/1.1 101"


def test_console_is_off_without_its_setting(gateway: Any) -> None:
    assert gateway.request("GET", "/console/overview", key=None).status == 404
    assert gateway.request("POST", "/console/session", {"key": "x"}, key=None).status == 404


def test_start_prints_the_address_of_the_console(console: Console) -> None:
    assert f"console  {console.gateway.url}/console/" in console.gateway.logged("console  ")


def test_invalid_trusted_proxy_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text('[console]\nenabled = true\n[gateway]\ntrusted_proxies = ["proxy.example"]\n')
    result = run("gateway", "--port", "0", home=tmp_path)
    assert result.returncode == 2
    assert "trusted_proxies" in result.stderr
    assert "proxy.example" in result.stderr


def test_files_have_a_strict_policy_and_etags(console: Console, console_files: None) -> None:
    got = console.gateway.request("GET", "/console/overview", key=None)
    assert got.status == 200
    policy = got.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    script = re.search(r'src="(/console/assets/[^"]+)"', got.body.decode())
    assert script is not None
    asset = console.gateway.request("GET", script[1], key=None, headers={"accept-encoding": "gzip"})
    assert asset.headers["content-encoding"] == "gzip"
    assert "immutable" in asset.headers["cache-control"]
    again = console.gateway.request("GET", script[1], key=None, headers={"if-none-match": asset.headers["etag"]})
    assert again.status == 304
    for path in ("/console/nothing.js", "/console/..%2f__init__.py", "/console/.source-hash"):
        assert console.gateway.request("GET", path, key=None).status == 404
