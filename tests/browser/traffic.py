"""Real requests through the gateway, for the pages that show the ledger."""

from __future__ import annotations

from typing import Any

from tests.browser.console import Console, wait_until
from tests.e2e.harness import HI
from tests.fakes import openai_wire, script
from tests.fakes.provider import FakeProvider

MODEL, OTHER_MODEL = "gpt-4o-mini", "gpt-4o"
HOSTILE = "<img src=x onerror=document.title='hacked'>"
CONFIG = f'[routing]\nretries = 0\n[routing.fallbacks]\n"{OTHER_MODEL}" = ["{MODEL}"]\n'
"""Requests for OTHER_MODEL fall back to MODEL, those for MODEL are not repeated."""
PROVIDER_ERROR = script.answer(500, openai_wire.error("The fake fails.", "server_error"))


class Traffic:
    """Sends requests, and knows their ids."""

    def __init__(self, console: Console, provider: FakeProvider) -> None:
        self._console = console
        self._provider = provider

    def create_key(self, name: str, **fields: Any) -> dict[str, Any]:
        """Create a key with the admin API."""
        body = {"name": name, "scopes": ["chat"], **fields}
        got = self._console.gateway.request("POST", "/v1/admin/keys", body, key=self._console.admin_key)
        assert got.status == 201, got.body
        created: dict[str, Any] = got.json
        return created

    def send(self, key: str, model: str = MODEL, **fields: Any) -> str:
        """Send one request, and return its id."""
        body = {"model": model, "messages": HI, **fields}
        got = self._console.gateway.request("POST", "/v1/chat/completions", body, key=key)
        return str(got.headers["x-request-id"])

    def send_failing(self, key: str) -> str:
        """Send a request that the provider answers with an error."""
        self._provider.plays(PROVIDER_ERROR)
        return self.send(key)

    def send_with_fallback(self, key: str) -> str:
        """Send a request whose first attempt fails, and whose second one succeeds with another model."""
        self._provider.plays(PROVIDER_ERROR)
        return self.send(key, OTHER_MODEL)

    def send_interrupted(self, key: str) -> str:
        """Send a request for a stream that ends too early."""
        self._provider.plays(script.sse(openai_wire.stream()[:3], every=0.02, end=script.fin()))
        return self.send(key, stream=True)

    def wait_for(self, *ids: str) -> None:
        """Wait until the ledger has the entries of these requests."""
        wait_until(lambda: all(self.entry(id) for id in ids))

    def entry(self, id: str) -> dict[str, Any] | None:
        """Return the entry of a request, or None."""
        found = self.get(f"/v1/usage?request={id}")["data"]
        return found[0] if found else None

    def get(self, path: str, key: str = "") -> dict[str, Any]:
        """Send a GET request with the admin key or another one."""
        got = self._console.gateway.request("GET", path, key=key or self._console.admin_key)
        assert got.status == 200, got.body
        found: dict[str, Any] = got.json
        return found
