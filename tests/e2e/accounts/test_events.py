"""Live events: requests as they end, and the use of the current hour."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import chat, create
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway, run

WAIT_SECONDS = 15.0


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    return shared_gateway


class Events:
    """The events of one listener."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self, wanted: str) -> dict[str, Any]:
        """Return the data of the next event of this name."""
        name = ""
        deadline = time.monotonic() + WAIT_SECONDS
        for line in self._lines:
            assert time.monotonic() < deadline, f"no event {wanted}"
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and name == wanted:
                data: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return data
        raise AssertionError(f"the stream ended without {wanted}")


@contextlib.contextmanager
def listen(gateway: Gateway, key: str) -> Iterator[Events]:
    headers = {"authorization": f"Bearer {key}"}
    with httpx2.stream("GET", f"{gateway.url}/v1/events", headers=headers, timeout=WAIT_SECONDS) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response.iter_lines())


def test_events_show_requests_of_the_own_key_or_all(gateway: Gateway) -> None:
    admin, one, other = Admin(gateway), create(gateway, "--name", "one"), create(gateway, "--name", "other")
    with listen(gateway, admin.key) as everything, listen(gateway, one["key"]) as own:
        own.next("stats")
        everything.next("stats")
        assert chat(gateway, other["key"]) == 200
        assert chat(gateway, one["key"]) == 200
        seen = {everything.next("request")["key_id"] for _ in range(2)}
        assert seen == {one["id"], other["id"]}
        assert own.next("request")["key_id"] == one["id"]
        stats = own.next("stats")
        assert (stats["open_requests"], stats["dropped"]) == (None, 0)
        assert stats["requests"] in (0, 1)  # 0 if a new hour has begun
        assert everything.next("stats")["open_requests"] == 0


def test_events_end_when_the_key_is_revoked(gateway: Gateway) -> None:
    made = create(gateway, "--name", "short")
    with listen(gateway, made["key"]) as events:
        events.next("stats")
        assert run("keys", "revoke", made["id"], home=gateway.home).returncode == 0
        assert events.next("closed") == {"reason": "key_revoked"}


@pytest.mark.slow
def test_events_end_on_shutdown_and_listeners_are_limited(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    admin = Admin(gateway)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen(gateway, gateway.key)) for _ in range(16)]
        got = gateway.request("GET", "/v1/events")
        assert (got.status, got.json["error"]["code"]) == (429, "rate_limit_exceeded")
        listeners += [stack.enter_context(listen(gateway, admin.key)) for _ in range(48)]
        got = gateway.request("GET", "/v1/events", key=admin.key)
        assert (got.status, got.json["error"]["code"]) == (429, "rate_limit_exceeded")
        listeners[0].next("stats")
        assert gateway.stop() == 0
        assert listeners[0].next("closed") == {"reason": "shutdown"}


def test_events_head_is_rejected(gateway: Gateway) -> None:
    assert gateway.request("HEAD", "/v1/events").status == 405


def test_events_invalid_parameter_is_named(gateway: Gateway) -> None:
    got = gateway.request("GET", "/v1/events?since=1h")
    assert (got.status, got.json["error"]["param"]) == (400, "since")
