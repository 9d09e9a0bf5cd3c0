"""`[responses] store`: conversations that continue by id, and the routes of stored responses."""

from __future__ import annotations

import sqlite3
from typing import Any

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, LLAMA, Gateway
from tests.e2e.test_responses import EVERY, TOOLS, TRANSLATED, events_of, scripted
from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, sse

STORE = "[responses]\nstore = true\n"
TWO_KEYS = {"SVC_API_KEYS": "test-client-key-1,test-client-key-2"}


@pytest.fixture
def storing(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config=STORE, env=TWO_KEYS)


def create(gateway: Gateway, model: str = LLAMA, **fields: Any) -> Any:
    got = gateway.request("POST", "/v1/responses", {"model": model, "input": "Hi", **fields})
    assert got.status == 200, got.body
    return got.json


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("letter", "model"), TRANSLATED)
def test_stored_response_conversation_continues_by_id(
    storing: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool
) -> None:
    fakes[letter].plays(scripted(letter, "eins", stream=stream), scripted(letter, "zwei"))
    client = storing.openai()
    if stream:
        with client.responses.stream(model=model, input="first", instructions="Be brief.") as opened:
            first = opened.get_final_response()
    else:
        first = client.responses.create(model=model, input="first", instructions="Be brief.")
    assert first.model_dump()["store"] is True
    second = client.responses.create(model=model, input="second", previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("zwei", first.id)
    sent = fakes[letter].wait(2).json
    turns = [(message["role"], message["content"]) for message in sent["messages"]]
    assert turns == [("user", "first"), ("assistant", "eins"), ("user", "second")]
    assert "system" not in sent


def test_stored_response_is_read_listed_and_deleted(storing: Gateway, provider_c: FakeProvider) -> None:
    client = storing.openai()
    made = client.responses.create(
        model=LLAMA, input=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    )
    assert client.responses.retrieve(made.id).output_text == made.output_text
    items = client.responses.input_items.list(made.id, order="asc").data
    assert [item.content[0].text for item in items] == ["one", "two"]
    page = storing.request("GET", f"/v1/responses/{made.id}/input_items?limit=1").json
    assert (page["has_more"], page["data"][0]["content"][0]["text"]) == (True, "two")
    rest = storing.request("GET", f"/v1/responses/{made.id}/input_items?after={page['last_id']}").json
    assert (rest["has_more"], rest["data"][0]["content"][0]["text"]) == (False, "one")
    client.responses.delete(made.id)
    for method in ("GET", "DELETE"):
        assert storing.request(method, f"/v1/responses/{made.id}").status == 404
    again = storing.request("POST", "/v1/responses", {"model": LLAMA, "input": "x", "previous_response_id": made.id})
    assert (again.status, again.json["error"]["code"], again.json["error"]["param"]) == (
        404,
        "not_found",
        "previous_response_id",
    )


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")]
)
def test_stored_response_items_with_bad_query_return_400(
    storing: Gateway, provider_c: FakeProvider, query: str, param: str
) -> None:
    got = storing.request("GET", f"/v1/responses/{create(storing)['id']}/input_items?{query}")
    assert (got.status, got.json["error"]["param"]) == (400, param)


def test_stored_response_of_another_key_is_not_found(storing: Gateway, provider_c: FakeProvider) -> None:
    made = create(storing)
    other = "test-client-key-2"
    assert storing.request("GET", f"/v1/responses/{made['id']}", key=other).status == 404
    assert storing.request("DELETE", f"/v1/responses/{made['id']}", key=other).status == 404
    body = {"model": LLAMA, "input": "x", "previous_response_id": made["id"]}
    assert storing.request("POST", "/v1/responses", body, key=other).status == 404
    assert storing.request("GET", f"/v1/responses/{made['id']}").status == 200
    assert storing.request("GET", f"/v1/responses/{made['id']}", key=None).status == 401


@pytest.mark.parametrize("store", [True, False])
def test_stored_response_cancel_says_that_only_background_responses_can_be(
    start_gateway: StartGateway, provider_c: FakeProvider, store: bool
) -> None:
    gateway = start_gateway(config=STORE if store else "", env=TWO_KEYS)
    made = create(gateway)
    path = f"/v1/responses/{made['id']}/cancel"
    with pytest.raises(openai.BadRequestError if store else openai.NotFoundError) as caught:
        gateway.openai().responses.cancel(made["id"])
    assert ("background" in caught.value.message) == store
    assert ("store = true" in caught.value.message) == (not store)
    for key, status in (("test-client-key-2", 404), (None, 401)):
        got = gateway.request("POST", path, {}, key=key)
        assert (got.status, set(got.json)) == (status, {"error"}), got.body
    assert gateway.request("POST", "/v1/responses/resp_unknown/cancel", {}).json["error"]["code"] == "not_found"


def test_responses_compact_returns_404_that_says_why(storing: Gateway) -> None:
    got = storing.request("POST", "/v1/responses/compact", {"model": LLAMA, "input": "Hi"})
    assert (got.status, got.json["error"]["code"]) == (404, "not_found")
    assert "does not compact" in got.json["error"]["message"]
    assert storing.request("POST", "/v1/responses/compact", {}, key=None).status == 401


def test_stored_response_expires(storing: Gateway, provider_c: FakeProvider) -> None:
    first = create(storing)
    second = create(storing, previous_response_id=first["id"])
    with sqlite3.connect(storing.home / "svc" / "svc.db") as database:
        assert database.execute("UPDATE responses SET expires_at = 1 WHERE id = ?", (first["id"],)).rowcount == 1
    assert storing.request("GET", f"/v1/responses/{first['id']}").status == 404
    assert storing.request("GET", f"/v1/responses/{second['id']}").status == 200
    body = {"model": LLAMA, "input": "x", "previous_response_id": second["id"]}
    assert storing.request("POST", "/v1/responses", body).status == 404


def test_stored_response_store_false_is_not_kept(storing: Gateway, provider_c: FakeProvider) -> None:
    made = create(storing, store=False)
    assert made["store"] is False
    assert storing.request("GET", f"/v1/responses/{made['id']}").status == 404


def test_stored_response_chain_of_50_turns_over_restart(storing: Gateway, provider_c: FakeProvider) -> None:
    previous: dict[str, Any] = {}
    for turn in range(50):
        provider_c.plays(answer(200, openai_wire.chat(f"answer {turn}")))
        previous = {"previous_response_id": create(storing, input=f"turn {turn}", **previous)["id"]}
        if turn == 25:
            storing.stop()
            storing.start()
    sent = provider_c.wait(50).json["messages"]
    expected = [text for turn in range(49) for text in (f"turn {turn}", f"answer {turn}")]
    assert [message["content"] for message in sent] == [*expected, "turn 49"]


def test_stored_response_survives_kill(storing: Gateway, provider_c: FakeProvider) -> None:
    made = create(storing)
    storing.process.kill()
    storing.process.wait(5)
    storing.start()
    assert storing.request("GET", f"/v1/responses/{made['id']}").json["id"] == made["id"]


def test_stored_response_broken_stream_is_stored_as_failed(storing: Gateway, fakes: dict[str, FakeProvider]) -> None:
    fakes["A"].plays(sse(responses_wire.stream("eins zwei")[:5], end=fin()))
    fakes["C"].plays(sse(openai_wire.stream("eins zwei")[:2], end=fin()))
    for model in (GPT, LLAMA):
        got = storing.request("POST", "/v1/responses", {"model": model, "input": "Hi", "stream": True})
        last = events_of(got.body)[-1]
        stored = storing.request("GET", f"/v1/responses/{last['response']['id']}").json
        assert (stored["status"], stored["error"]["code"]) == ("failed", "provider_error")
        (item,) = stored["output"]
        assert (item["status"], item["content"][0]["text"]) == ("incomplete", "eins")


def test_stored_response_item_reference_is_resolved(storing: Gateway, provider_c: FakeProvider) -> None:
    provider_c.plays(answer(200, openai_wire.chat("eins")))
    item = create(storing)["output"][0]["id"]
    conversation = [
        {"role": "user", "content": "Hi"},
        {"type": "item_reference", "id": item},
        {"role": "user", "content": "Go on"},
    ]
    create(storing, input=conversation)
    assert [message["content"] for message in provider_c.wait(2).json["messages"]] == ["Hi", "eins", "Go on"]
    unknown = {"model": LLAMA, "input": [{"type": "item_reference", "id": "msg_none"}]}
    assert storing.request("POST", "/v1/responses", unknown).status == 404


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_stored_response_whose_input_refers_to_an_item_is_continued(
    storing: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    native = [responses_wire.response(text, id=f"resp_{text}") for text in ("eins", "zwei")]
    for item, response in zip(("msg_a", "msg_b"), native, strict=True):
        response["output"][0]["id"] = item
    texts = ("eins", "zwei")
    fakes[letter].plays(
        *(answer(200, each) for each in native) if letter == "A" else (scripted(letter, text) for text in texts)
    )
    first = create(storing, model, input="one")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    second = create(storing, model, input=[reference, {"role": "user", "content": "two"}])
    listed = storing.request("GET", f"/v1/responses/{second['id']}/input_items?order=asc").json["data"]
    assert [(item["type"], item["content"][0]["text"]) for item in listed] == [("message", "eins"), ("message", "two")]
    storing.request("DELETE", f"/v1/responses/{first['id']}")
    create(storing, LLAMA, input="three", previous_response_id=second["id"])
    sent = [message["content"] for message in fakes["C"].requests[-1].json["messages"]]
    assert sent == ["eins", "two", "zwei", "three"]


def test_stored_response_with_reference_that_only_the_provider_knows_stays_there(
    storing: Gateway, provider_a: FakeProvider
) -> None:
    provider_a.plays(answer(200, responses_wire.response("eins", id="resp_1")))
    first = create(storing, GPT, input=[{"type": "item_reference", "id": "msg_unknown"}])
    create(storing, GPT, input="two", previous_response_id=first["id"])
    assert provider_a.wait(2).json["previous_response_id"] == "resp_1"
    got = storing.request("POST", "/v1/responses", {"model": LLAMA, "input": "x", "previous_response_id": "resp_1"})
    assert (got.status, got.json["error"]["param"]) == (404, "previous_response_id")
    assert "refers to an item" in got.json["error"]["message"]


def test_stored_response_thinking_returns_with_its_signature(storing: Gateway, provider_b: FakeProvider) -> None:
    blocks = [anthropic_wire.thinking("hm", "sig-1"), anthropic_wire.tool_use("call_1", "weather", "{}")]
    provider_b.plays(answer(200, anthropic_wire.message(blocks, stop="tool_use")))
    first = create(storing, CLAUDE, tools=TOOLS)
    output = [{"type": "function_call_output", "call_id": "call_1", "output": "sun"}]
    create(storing, CLAUDE, input=output, tools=TOOLS, previous_response_id=first["id"])
    assistant = provider_b.wait(2).json["messages"][1]["content"]
    assert assistant[0] == {"type": "thinking", "thinking": "hm", "signature": "sig-1"}
    assert assistant[1]["type"] == "tool_use"


def test_stored_response_of_native_provider_is_continued_there(storing: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(
        answer(200, responses_wire.response("eins")), answer(200, responses_wire.response("zwei", id="resp_2"))
    )
    first = create(storing, GPT)
    create(storing, GPT, input="second", previous_response_id=first["id"])
    sent = provider_a.wait(2).json
    assert (sent["previous_response_id"], sent["input"]) == (first["id"], "second")


def continue_response(gateway: Gateway, response_id: str, **options: Any) -> tuple[int, str | None]:
    body = {"model": GPT, "input": "x", "previous_response_id": response_id}
    got = gateway.request("POST", "/v1/responses", body, **options)
    return got.status, got.json.get("error", {}).get("code") if got.status != 200 else None


def native(number: int) -> Any:
    """Return the answer of a provider with ids of its own."""
    body = responses_wire.response("eins", id=f"resp_{number}")
    body["output"] = [{**body["output"][0], "id": f"msg_{number}"}]
    return answer(200, body)


def test_native_response_of_another_key_never_reaches_the_provider(storing: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(native(1), native(2), native(3))
    create(storing, GPT)
    other = "test-client-key-2"
    assert continue_response(storing, "resp_1", key=other) == (404, "not_found")
    for fields in ({}, {"conversation": "conv_1"}):
        body = {"model": GPT, "input": [{"type": "item_reference", "id": "msg_1"}], **fields}
        assert storing.request("POST", "/v1/responses", body, key=other).status == 404
    assert len(provider_a.requests) == 1
    assert continue_response(storing, "resp_1") == (200, None)
    assert continue_response(storing, "resp_unknown", key=other) == (200, None)


def test_native_response_deleted_is_not_continued_after_restart(storing: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(native(1), native(2), native(3), native(4))
    create(storing, GPT)
    create(storing, GPT, previous_response_id="resp_1")
    create(storing, GPT, previous_response_id="resp_2")
    assert storing.request("DELETE", "/v1/responses/resp_1").status == 200
    for _ in range(2):
        # The third continues the second, which continues the deleted one.
        assert {continue_response(storing, f"resp_{number}") for number in (1, 2, 3)} == {(404, "not_found")}
        storing.stop()
        storing.start()
    assert len(provider_a.requests) == 3


def test_native_response_without_store_is_not_continued_by_another_key(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(env=TWO_KEYS)
    provider_a.plays(native(1), native(2))
    create(gateway, GPT)
    assert continue_response(gateway, "resp_1", key="test-client-key-2") == (404, "not_found")
    assert continue_response(gateway, "resp_1") == (200, None)
    assert len(provider_a.requests) == 2


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_previous_response_and_conversation_exclude_each_other(
    storing: Gateway, provider_a: FakeProvider, provider_c: FakeProvider, model: str
) -> None:
    body = {"model": model, "input": "x", "previous_response_id": "resp_1", "conversation": "conv_1"}
    got = storing.request("POST", "/v1/responses", body)
    assert (got.status, got.json["error"]["param"]) == (400, "previous_response_id")
    assert "exclude each other" in got.json["error"]["message"]
    assert not provider_a.requests
    assert not provider_c.requests


def test_stored_response_moves_between_native_and_translated_models(
    storing: Gateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(answer(200, responses_wire.response("eins")))
    first = create(storing, GPT, input="first")
    second = create(storing, LLAMA, input="second", previous_response_id=first["id"])
    assert [message["content"] for message in provider_c.wait().json["messages"]] == ["first", "eins", "second"]
    create(storing, GPT, input="third", previous_response_id=second["id"])
    sent = provider_a.wait(2).json
    assert "previous_response_id" not in sent
    assert [item["content"][0]["text"] for item in sent["input"]][:3] == ["first", "eins", "second"]


def test_stored_response_id_unknown_goes_to_first_native_provider(storing: Gateway, provider_a: FakeProvider) -> None:
    create(storing, GPT, previous_response_id="resp_elsewhere")
    assert provider_a.wait().json["previous_response_id"] == "resp_elsewhere"


@pytest.mark.parametrize(("letter", "model"), EVERY)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ],
)
def test_state_without_store_is_native_or_400(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, fields: dict[str, Any], param: str
) -> None:
    got = gateway.request("POST", "/v1/responses", {"model": model, "input": "Hi", **fields})
    if letter == "A":
        assert got.status == 200
        sent = fakes[letter].wait().json
        assert all(sent[name] == value for name, value in fields.items())
        return
    assert (got.status, got.json["error"]["code"], got.json["error"]["param"]) == (400, "invalid_request", param)
    assert "[responses]" in got.json["error"]["message"]
    assert not fakes[letter].requests


def test_state_unknown_native_id_has_no_fallback(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    gateway = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n')
    provider_a.plays(answer(500, b"{}"), answer(500, b"{}"))
    body = {"model": GPT, "input": "Hi"}
    assert gateway.request("POST", "/v1/responses", body).status == 200
    got = gateway.request("POST", "/v1/responses", {**body, "previous_response_id": "resp_1"})
    assert got.status == 502
    assert len(provider_c.requests) == 1


def test_stored_response_other_method_names_those_that_work(gateway: Gateway) -> None:
    got = gateway.request("PUT", "/v1/responses/resp_1", {})
    assert (got.status, got.headers["allow"]) == (405, "DELETE, GET, HEAD")


def test_stored_routes_without_store_say_how_to_enable_it(gateway: Gateway) -> None:
    got = gateway.request("GET", "/v1/responses/resp_1")
    assert got.status == 404
    assert "[responses]" in got.json["error"]["message"]


def test_responses_websocket_upgrade_returns_426(gateway: Gateway) -> None:
    headers = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    got = gateway.request("GET", "/v1/responses", headers=headers)
    assert (got.status, got.json["error"]["code"]) == (426, "invalid_request")


def test_sdk_reports_deleted_response(storing: Gateway, provider_c: FakeProvider) -> None:
    with pytest.raises(openai.NotFoundError):
        storing.openai().responses.retrieve("resp_none")
