"""Access log: each line names the client's address and the API key. The ledger does not record the address."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from websockets.sync.client import connect

from svc.gateway.observability.access_log import encode_client_field
from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_metrics import UPGRADE
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.fakes.http_client import request_bytes

STREAM = "/v1/audio/transcriptions/stream"
FORWARDED = {"x-forwarded-for": "203.0.113.9", "forwarded": "for=203.0.113.9"}


def line_of(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Wait for the access log's line of a request and return it."""
    (line,) = [line for line in gateway.logged(f'"{request_id}"').splitlines() if f'"{request_id}"' in line]
    found: dict[str, Any] = json.loads(line)
    return found


def test_access_log_chat_names_client_address_beside_ledger_fields(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    chat = {"model": GPT, "messages": HI}
    with gateway.raw(source="127.0.0.2") as raw:
        for body, headers in ((chat, None), (chat, FORWARDED), (chat | {"stream": True}, None), ({}, None)):
            got = raw.request("POST", "/v1/chat/completions", body, key=KEY, headers=headers)
            assert line_of(gateway, got.headers["x-request-id"])["client"] == "127.0.0.2"
    got = gateway.chat()  # over the provider's open connection
    line = line_of(gateway, got.headers["x-request-id"])
    assert line.pop("client") == "127.0.0.1"
    assert line.pop("attempts_detail") is None  # for one successful attempt, the other fields suffice
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert [attempt["outcome"] for attempt in entry.pop("attempts_detail")] == ["ok"]
    assert line == entry


def test_access_log_other_requests_name_client_address(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    requests = [
        request_bytes("GET", "/v1/models", key=KEY, headers=FORWARDED),
        request_bytes("GET", "/nothing", key=None),
        request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key="wrong"),
        request_bytes("GET", STREAM, headers=UPGRADE),
        request_bytes("GET", STREAM, key=KEY, headers=UPGRADE | {"sec-websocket-version": "12"}),
        b"GET / HTTP/9.9\r\n\r\n",
    ]
    for request in requests:
        with gateway.raw(source="127.0.0.2") as raw:
            raw.send(request)
            assert line_of(gateway, raw.read().headers["x-request-id"])["client"] == "127.0.0.2", request


def test_access_log_rejected_chat_names_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nmax_body = 0.001\n")
    chat = {"model": GPT, "messages": HI}
    for options, statuses in (
        (("--rpm", "1"), (200, 429)),
        (("--models", "nothing-else"), (404,)),
        (("--scope", "speech"), (403, 403)),
        (("--tpm", "10"), (400,)),
        (("--budget-usd", "0.0000001"), (400,)),
    ):
        key = create(gateway, "--name", " ".join(options), *options)
        for status in statuses:
            got = gateway.request("POST", "/v1/chat/completions", chat, key=key["key"])
            line = line_of(gateway, got.headers["x-request-id"])
            assert (got.status, line["key_id"], line["key_name"]) == (status, key["id"], key["name"])
    chunked = {"transfer-encoding": "chunked", "content-length": ""}
    for body, headers, secret, status, name in (
        (chat, {"content-type": "multipart/form-data"}, KEY, 400, "SVC_API_KEYS #1"),
        (b"800\r\n" + b" " * 0x800, chunked, KEY, 413, "SVC_API_KEYS #1"),
        (chat, None, "svc_sk_unknown", 401, None),
    ):
        got = gateway.request("POST", "/v1/chat/completions", body, key=secret, headers=headers)
        assert (got.status, line_of(gateway, got.headers["x-request-id"])["key_name"]) == (status, name)


UPLOAD = "/v1/audio/transcriptions"
TOO_LONG = b" " * 0x800
UNSUPPORTED_FORMATS = ({"content-type": "multipart/form-data"}, {"content-encoding": "gzip"})


def test_access_log_body_too_large_names_known_key(start_gateway: StartGateway) -> None:
    """Only a cached key is named: a request rejected for its length causes no database lookup."""
    gateway = start_gateway(config="[gateway]\nmax_body = 0.001\n")
    issued = create(gateway, "--name", "shop")

    def logged_keys(secret: str | None) -> set[tuple[str | None, str | None]]:
        found = set()
        for path in ("/v1/chat/completions", "/v1/messages", UPLOAD):
            got = gateway.request("POST", path, TOO_LONG, key=secret)
            line = line_of(gateway, got.headers["x-request-id"])
            assert (got.status, line["http_status"]) == (413, 413)
            found.add((line["key_id"], line["key_name"]))
        return found

    for secret in (None, "wrong", f"{issued['key']}x"):
        assert logged_keys(secret) == {(None, None)}
    assert gateway.request("GET", "/v1/models", key=issued["key"]).status == 200  # the key is cached from here on
    assert logged_keys(issued["key"]) == {(issued["id"], "shop")}
    ((key_id, name),) = logged_keys(KEY)
    assert (key_id or "").startswith("env-")
    assert name == "SVC_API_KEYS #1"


def test_access_log_body_timeout_names_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nbody_timeout = 0.3\n")
    for path in ("/v1/chat/completions", UPLOAD):
        with gateway.raw() as raw:
            raw.send(request_bytes("POST", path, b"{}", key=KEY)[:-1])
            got = raw.read()
        assert (got.status, line_of(gateway, got.headers["x-request-id"])["key_name"]) == (408, "SVC_API_KEYS #1")


def test_access_log_unsupported_body_format_names_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    chat = {"model": GPT, "messages": HI}
    for form in UNSUPPORTED_FORMATS:
        key = create(gateway, "--name", str(form))
        for _ in range(2):
            got = gateway.request("POST", "/v1/chat/completions", chat, key=key["key"], headers=form)
            line = line_of(gateway, got.headers["x-request-id"])
            assert (got.status, line["key_id"], line["key_name"]) == (400, key["id"], key["name"])
        for _ in range(2):  # authentication comes first
            got = gateway.request("POST", "/v1/chat/completions", chat, key=f"{key['key']}x", headers=form)
            assert (got.status, line_of(gateway, got.headers["x-request-id"])["key_id"]) == (401, None)


def test_access_log_control_characters_are_escaped(start_gateway: StartGateway) -> None:
    """Line separators, bidirectional overrides, and C0 and C1 control characters."""
    strange = "a\u2028\u202eb\u2066\u200f\x7f\x9b31m\u0085"
    gateway = start_gateway()
    model, path = gateway.chat(model=strange), f"/v1/{strange}"
    assert line_of(gateway, model.headers["x-request-id"])["model_asked"] == strange
    cold = gateway.request("GET", quote(path))
    assert line_of(gateway, cold.headers["x-request-id"])["endpoint"] == path
    assert all(line.isprintable() for line in gateway.log.split("\n"))


def test_access_log_websocket_names_client_address(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    headers = {"authorization": f"Bearer {KEY}", **FORWARDED}
    url = gateway.url.replace("http", "ws") + STREAM
    with connect(url, additional_headers=headers, source_address=("127.0.0.2", 0)) as socket:
        assert socket.response is not None
        request_id = socket.response.headers["x-request-id"]
        socket.send(json.dumps({"type": "close"}))
        assert json.loads(socket.recv(10))["type"] == "closed"
    assert line_of(gateway, request_id)["client"] == "127.0.0.2"


def test_access_log_ipv4_mapped_address_is_written_as_ipv4() -> None:
    assert encode_client_field("::ffff:192.0.2.1") == encode_client_field("192.0.2.1") == b',"client":"192.0.2.1"}\n'
    assert encode_client_field("2001:db8::1") == b',"client":"2001:db8::1"}\n'
    assert encode_client_field(None) == encode_client_field("") == b',"client":null}\n'
