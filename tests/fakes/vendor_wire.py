"""A vendor with an OpenAI-compatible API whose oddities a test plays. It checks path and key, and records the rest."""

from __future__ import annotations

from tests.fakes import openai_wire
from tests.fakes.openai_wire import error
from tests.fakes.provider import Recorded
from tests.fakes.script import Script, answer, sse


class VendorWire:
    """A provider with the address `path`, whose key is in `key_header`. An empty `key_header` means no key."""

    def __init__(self, path: str, *, key_header: str = "authorization") -> None:
        self.path = path
        self.key_header = key_header

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        known_names = {"authorization", "api-key", self.key_header}
        sent = {name: seen.headers[name] for name in known_names if name in seen.headers}
        value = f"Bearer {key}" if self.key_header == "authorization" else key
        if sent != ({self.key_header: value} if self.key_header else {}):
            return f"wrong key headers: {sorted(sent)}", answer(401, error("wrong key"))
        if seen.method == "POST" and seen.path != self.path:
            return f"no such address: {seen.path}", answer(404, error("no such address"))
        return None

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET":
            return answer(200, {"object": "list", "data": []})
        if seen.json.get("stream"):
            return sse(openai_wire.stream(usage=bool(seen.json.get("stream_options"))))
        return answer(200, openai_wire.chat())
