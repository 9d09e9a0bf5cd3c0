"""Requests to an upstream of the same dialect: the client's bytes, with as few changes as possible."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from tests.codecs import pass_through_request

from svc.dialects.base import EncodedRequest, ModelProfile
from svc.dialects.openai import dialect
from svc.errors import InvalidRequest
from svc.wire.chat import UpstreamOverrides

USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def pass_through(raw: bytes, model: str = "m", **overrides: Any) -> EncodedRequest:
    return pass_through_request(dialect, raw, ModelProfile(model, overrides=UpstreamOverrides(**overrides)))


def test_passthrough_without_changes_returns_same_object() -> None:
    raw = body(top_k=3, unknown={"a": 1})
    assert pass_through(raw).body is raw


def test_passthrough_stream_without_stream_options_appends_include_usage() -> None:
    raw = body(stream=True) + b" \n"
    built = pass_through(raw)
    assert built.body == raw.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'
    assert json.loads(built.body)["stream_options"] == {"include_usage": True}


def test_passthrough_client_stream_options_are_kept_with_include_usage() -> None:
    built = pass_through(body(stream=True, stream_options={"include_obfuscation": False}))
    assert json.loads(built.body)["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_passthrough_upstream_without_stream_usage_gets_no_stream_options() -> None:
    assert pass_through(body(stream=True), stream_usage=False).body == body(stream=True)
    with_usage = pass_through(body(stream=True, stream_options={"include_usage": True}), stream_usage=False)
    assert "stream_options" not in json.loads(with_usage.body)


def test_passthrough_other_model_name_is_replaced_in_place() -> None:
    raw = b'{"messages":[{"role":"user","content":"\\"model\\": \\"x\\""}], "model" : "gp\\"t", "seed":1}'
    assert pass_through(raw, model='a"b').body == raw.replace(b'"gp\\"t"', b'"a\\"b"')


def test_passthrough_long_name_ending_in_model_is_not_replaced() -> None:
    name = b'"%b\\"model"' % (b"x" * 1200)
    raw = b'{%b:"x","pad":"%b",%b}' % (name, b"y" * 40_000, body()[1:-1])
    assert json.loads(pass_through(raw, model="other").body) == {**json.loads(raw), "model": "other"}


@pytest.mark.parametrize("text", ["long " * 10_000, '"quoted" ' * 10_000, "back\\" * 10_000, '"'])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_passthrough_model_name_of_a_long_body_is_replaced(text: str, place: int, separators: tuple[str, str]) -> None:
    fields: list[tuple[str, Any]] = [
        ("user", text + "a"),
        ("messages", [{"role": "user", "content": text}, {"role": "assistant", "content": "model"}]),
        ("metadata", {"model": "inner", "text": "long " * 10_000 + text}),
    ]
    fields.insert(place, ("model", "m"))
    sent = pass_through(json.dumps(dict(fields), separators=separators).encode(), model="other").body
    assert json.loads(sent) == {**dict(fields), "model": "other"}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"secret","model":"m","messages":[{"role":"user","content":"hi"}]}',
        b'{"mod\\u0065l":"secret","messages":[{"role":"user","content":"hi"}],"model":"m"}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"max_tokens":2}',
        b'{"\\u006d\\u006f\\u0064\\u0065\\u006c":"m","messages":[{"role":"user","content":"hi"}]}',
    ],
)
def test_passthrough_duplicate_or_escaped_names_are_reencoded(raw: bytes) -> None:
    sent = pass_through(raw).body
    assert sent.count(b'"model"') == 1
    assert b"secret" not in sent
    assert json.loads(sent) == json.loads(raw)


@pytest.mark.parametrize("name", [b"Model", b"MODEL", b"\\u004dodel", b"m\\u004fdel"])
def test_passthrough_model_name_in_other_case_is_dropped(name: bytes) -> None:
    """Go's encoding/json uses the last matching name, whatever its case."""
    raw = body()[:-1] + b', "%b": "secret"}' % name
    built = pass_through(raw)
    assert json.loads(built.body) == json.loads(body())
    assert built.dropped_fields == (json.loads(b'"%b"' % name),)
    request = dialect.decode_request(raw)
    assert b"secret" not in dialect.encode_request(request, ModelProfile("m")).body


@pytest.mark.parametrize("name", ["Max_Tokens", "MAX_COMPLETION_TOKENS", "N", "Stream", "Messages", "Stream_Options"])
def test_passthrough_checked_field_in_other_case_is_dropped(name: str) -> None:
    built = pass_through(json.dumps({**json.loads(body()), name: 90_000}).encode())
    assert json.loads(built.body) == json.loads(body())
    assert built.dropped_fields == (name,)


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "max_to\u212aens",
        "\u017ftream",
        "MAX_COMPLETION_TO\u212aEN\u017f",
        "me\u017f\u017fages",
        "min_token\u017f",
        "N_Predict",
    ],
)
def test_passthrough_name_that_go_case_folds_to_a_field_is_dropped(name: str, escaped: bool) -> None:
    """Go's encoding/json compares names by Unicode's simple case folding."""
    raw = json.dumps({**json.loads(body(max_tokens=5)), name: 90_000}, ensure_ascii=escaped).encode()
    built = pass_through(raw)
    assert json.loads(built.body) == json.loads(body(max_tokens=5))
    assert built.dropped_fields == (name,)


@pytest.mark.parametrize("text", ["\u212a", "Wa\u017f\u017fer", "\ufb06ream"])
def test_passthrough_case_folding_letters_in_values_are_kept(text: str) -> None:
    raw = body(user=text, **{text: 1})
    assert json.loads(pass_through(raw).body) == json.loads(raw)
    assert pass_through(raw).dropped_fields == ()


def test_passthrough_uppercase_model_in_values_is_kept() -> None:
    raw = body(user="Model", messages=[{"role": "user", "content": "MODEL"}])
    assert json.loads(pass_through(raw).body) == json.loads(raw)
    assert pass_through(raw).dropped_fields == ()


def test_passthrough_rejected_optional_fields_are_dropped_and_listed() -> None:
    raw = body(n=1, logprobs=False, seed=7, messages=[{**USER, "name": "bob"}])
    built = pass_through(raw, rejects=("n", "logprobs", "logit_bias", "seed", "messages[].name"))
    assert json.loads(built.body) == {"model": "m", "messages": [USER]}
    assert built.dropped_fields == ("n", "logprobs", "seed", "messages[].name")


@pytest.mark.parametrize("field", [{"n": 2}, {"logprobs": True}, {"top_logprobs": 3}, {"logit_bias": {"5": 1}}])
def test_passthrough_rejected_field_that_shapes_response_raises_invalid_request(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pass_through(body(**field), rejects=("n", "logprobs", "top_logprobs", "logit_bias"))
    assert caught.value.param == next(iter(field))


@pytest.mark.parametrize(
    ("sent", "expected"), [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
)
def test_passthrough_rejected_token_limit_name_uses_the_other_name(sent: str, expected: str) -> None:
    built = pass_through(body(**{sent: 5}), rejects=(sent,))
    assert json.loads(built.body)[expected] == 5
    assert sent not in json.loads(built.body)
    assert built.dropped_fields == ()


def test_passthrough_renames_and_min_temperature_are_applied() -> None:
    built = pass_through(body(seed=3, temperature=0), renames={"seed": "random_seed"}, min_temperature=1e-8)
    sent = json.loads(built.body)
    assert (sent["random_seed"], sent["temperature"]) == (3, 1e-8)
    assert "seed" not in sent


def test_passthrough_nested_field_with_rejected_name_is_kept() -> None:
    raw = body(tools=[{"type": "function", "function": {"name": "f", "parameters": {"seed": 1}}}])
    assert json.loads(pass_through(raw, rejects=("seed", "messages[].name")).body) == json.loads(raw)


def test_passthrough_rejected_field_of_tool_calls_is_dropped() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None}
    odd = [{**turn, "content": "a", "tool_calls": [None]}, {**turn, "content": "a", "tool_calls": None}]
    raw = body(messages=[USER, {**turn, "tool_calls": [{**call, "extra": {"google": 1}}, call]}, *odd, USER])
    built = pass_through(raw, rejects=("messages[].tool_calls[].extra",))
    assert json.loads(built.body)["messages"] == [USER, {**turn, "tool_calls": [call, call]}, *odd, USER]
    assert built.dropped_fields == ("messages[].tool_calls[].extra",)


def test_passthrough_rejected_field_of_messages_without_value_is_not_listed() -> None:
    raw = body(messages=[USER, {"role": "assistant", "content": "a", "refusal": None, "annotations": []}, USER])
    built = pass_through(raw, rejects=("messages[].refusal", "messages[].annotations"))
    assert json.loads(built.body)["messages"] == [USER, {"role": "assistant", "content": "a"}, USER]
    assert built.dropped_fields == ()


def test_passthrough_many_names_in_other_cases_takes_linear_time() -> None:
    letters = [(letter, letter.upper()) for letter in "max_completion_tokens"]
    cases = ["".join(case) for case in itertools.islice(itertools.product(*letters), 1, 25_000)]
    names = ["".join(name) for name in itertools.islice(itertools.product("abcdefghij", repeat=5), 25_000)]
    raw = body(unknown=["n", "n", *cases], metadata=dict.fromkeys(names, 1))
    began = time.process_time()
    assert json.loads(pass_through(raw).body) == json.loads(raw)
    assert time.process_time() - began < 0.5


def test_passthrough_escaped_nested_name_does_not_bypass_override() -> None:
    raw = b'{"model":"m","messages":[{"role":"user","n\\u0061me":"bob","content":"hi"}]}'
    built = pass_through(raw, rejects=("messages[].name",))
    assert json.loads(built.body)["messages"] == [USER]
    assert built.dropped_fields == ("messages[].name",)
