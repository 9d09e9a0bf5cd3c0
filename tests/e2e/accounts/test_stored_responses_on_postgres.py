"""Two nodes on one PostgreSQL server: a conversation that begins on one continues on the other."""

from __future__ import annotations

from typing import Any

from tests.e2e.accounts.test_postgres import server
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import LLAMA
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer

__all__ = ["server"]


def test_stored_response_continues_on_another_node(
    start_gateway: StartGateway, server: Any, provider_c: FakeProvider
) -> None:
    nodes = [
        start_gateway(config="[responses]\nstore = true\n", env={"SVC_DATABASE_URL": server.get_uri()})
        for _ in range(2)
    ]
    previous: dict[str, Any] = {}
    for turn in range(6):
        provider_c.plays(answer(200, openai_wire.chat(f"answer {turn}")))
        body = {"model": LLAMA, "input": f"turn {turn}", **previous}
        got = nodes[turn % 2].request("POST", "/v1/responses", body)
        assert got.status == 200, got.body
        previous = {"previous_response_id": got.json["id"]}
        assert nodes[1 - turn % 2].request("GET", f"/v1/responses/{got.json['id']}").json == got.json
    sent = [message["content"] for message in provider_c.wait(6).json["messages"]]
    assert sent == [text for turn in range(5) for text in (f"turn {turn}", f"answer {turn}")] + ["turn 5"]
