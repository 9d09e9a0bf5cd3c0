"""Ephemeral keys as the server of an application, its users and a second node see them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.e2e.accounts.test_keys import chat, create, until
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway, run
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider

PATH = "/v1/ephemeral_keys"


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

    until(is_found, 5)
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
    assert f"ephemeral_id        {made['id']}" in shown
    assert made["key"] not in gateway.log
    assert made["key"].partition(".")[2] not in gateway.log
