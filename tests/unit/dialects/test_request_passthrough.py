"""Requests to an upstream of the same dialect: the client's own bytes, or the smallest change."""

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


def passed(raw: bytes, model: str = "m", **quirks: Any) -> EncodedRequest:
    return pass_through_request(dialect, raw, ModelProfile(model, overrides=UpstreamOverrides(**quirks)))


def test_nothing_to_change_is_the_same_object() -> None:
    raw = body(top_k=3, unknown={"a": 1})
    assert passed(raw).body is raw


def test_usage_is_asked_for_by_bytes() -> None:
    raw = body(stream=True) + b" \n"
    built = passed(raw)
    assert built.body == raw.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'
    assert json.loads(built.body)["stream_options"] == {"include_usage": True}


def test_stream_options_of_the_client_are_kept() -> None:
    built = passed(body(stream=True, stream_options={"include_obfuscation": False}))
    assert json.loads(built.body)["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_an_upstream_that_does_not_take_stream_options_gets_none() -> None:
    assert passed(body(stream=True), stream_usage=False).body == body(stream=True)
    asked = passed(body(stream=True, stream_options={"include_usage": True}), stream_usage=False)
    assert "stream_options" not in json.loads(asked.body)


def test_the_model_is_replaced_in_place() -> None:
    raw = b'{"messages":[{"role":"user","content":"\\"model\\": \\"x\\""}], "model" : "gp\\"t", "seed":1}'
    assert passed(raw, model='a"b').body == raw.replace(b'"gp\\"t"', b'"a\\"b"')


def test_a_long_name_that_ends_like_the_model_is_not_taken_for_it() -> None:
    name = b'"%b\\"model"' % (b"x" * 1200)
    raw = b'{%b:"x","pad":"%b",%b}' % (name, b"y" * 40_000, body()[1:-1])
    built = passed(raw, model="other")
    assert built.body == raw.replace(b'"model": "m"', b'"model": "other"')
    assert json.loads(built.body)["model"] == "other"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"secret","model":"m","messages":[{"role":"user","content":"hi"}]}',
        b'{"mod\\u0065l":"secret","messages":[{"role":"user","content":"hi"}],"model":"m"}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"max_tokens":2}',
        b'{"\\u006d\\u006f\\u0064\\u0065\\u006c":"m","messages":[{"role":"user","content":"hi"}]}',
    ],
)
def test_what_can_be_read_in_two_ways_is_written_anew(raw: bytes) -> None:
    sent = passed(raw).body
    assert sent.count(b'"model"') == 1
    assert b"secret" not in sent
    assert json.loads(sent) == json.loads(raw)


@pytest.mark.parametrize("name", [b"Model", b"MODEL", b"\\u004dodel", b"m\\u004fdel"])
def test_no_other_model_in_capitals(name: bytes) -> None:
    """An upstream in Go would take the last, whatever its case."""
    raw = body()[:-1] + b', "%b": "secret"}' % name
    built = passed(raw)
    assert json.loads(built.body) == json.loads(body())
    assert built.dropped_fields == (json.loads(b'"%b"' % name),)
    request = dialect.decode_request(raw)
    assert b"secret" not in dialect.encode_request(request, ModelProfile("m")).body


@pytest.mark.parametrize("name", ["Max_Tokens", "MAX_COMPLETION_TOKENS", "N", "Stream", "Messages", "Stream_Options"])
def test_nor_another_field_that_was_looked_at(name: str) -> None:
    built = passed(json.dumps({**json.loads(body()), name: 90_000}).encode())
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
def test_passing_drops_a_name_that_go_folds_to_a_field(name: str, escaped: bool) -> None:
    """Go's encoding/json compares names by Unicode's simple case folding."""
    raw = json.dumps({**json.loads(body(max_tokens=5)), name: 90_000}, ensure_ascii=escaped).encode()
    built = passed(raw)
    assert json.loads(built.body) == json.loads(body(max_tokens=5))
    assert built.dropped_fields == (name,)


@pytest.mark.parametrize("text", ["\u212a", "Wa\u017f\u017fer", "\ufb06ream"])
def test_passing_keeps_such_letters_in_texts_and_other_names(text: str) -> None:
    raw = body(user=text, **{text: 1})
    assert json.loads(passed(raw).body) == json.loads(raw)
    assert passed(raw).dropped_fields == ()


def test_the_word_model_in_capitals_is_only_a_word() -> None:
    raw = body(user="Model", messages=[{"role": "user", "content": "MODEL"}])
    assert json.loads(passed(raw).body) == json.loads(raw)
    assert passed(raw).dropped_fields == ()


def test_hints_that_the_upstream_rejects_are_left_out_and_named() -> None:
    raw = body(n=1, logprobs=False, seed=7, messages=[{**USER, "name": "bob"}])
    built = passed(raw, rejects=("n", "logprobs", "logit_bias", "seed", "messages[].name"))
    assert json.loads(built.body) == {"model": "m", "messages": [USER]}
    assert built.dropped_fields == ("n", "logprobs", "seed", "messages[].name")


@pytest.mark.parametrize("field", [{"n": 2}, {"logprobs": True}, {"top_logprobs": 3}, {"logit_bias": {"5": 1}}])
def test_what_would_change_the_answers_form_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        passed(body(**field), rejects=("n", "logprobs", "top_logprobs", "logit_bias"))
    assert caught.value.param == next(iter(field))


@pytest.mark.parametrize(
    ("sent", "taken"), [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
)
def test_the_two_names_of_the_limit(sent: str, taken: str) -> None:
    built = passed(body(**{sent: 5}), rejects=(sent,))
    assert json.loads(built.body)[taken] == 5
    assert sent not in json.loads(built.body)
    assert built.dropped_fields == ()


def test_renames_and_least_temperature() -> None:
    built = passed(body(seed=3, temperature=0), renames={"seed": "random_seed"}, min_temperature=1e-8)
    sent = json.loads(built.body)
    assert (sent["random_seed"], sent["temperature"]) == (3, 1e-8)
    assert "seed" not in sent


def test_a_nested_field_of_a_rejected_name_stays() -> None:
    raw = body(tools=[{"type": "function", "function": {"name": "f", "parameters": {"seed": 1}}}])
    assert json.loads(passed(raw, rejects=("seed", "messages[].name")).body) == json.loads(raw)


def test_pass_request_many_names_in_other_cases_takes_linear_time() -> None:
    letters = [(letter, letter.upper()) for letter in "max_completion_tokens"]
    cases = ["".join(case) for case in itertools.islice(itertools.product(*letters), 1, 25_000)]
    names = ["".join(name) for name in itertools.islice(itertools.product("abcdefghij", repeat=5), 25_000)]
    raw = body(unknown=["n", "n", *cases], metadata=dict.fromkeys(names, 1))
    began = time.process_time()
    assert json.loads(passed(raw).body) == json.loads(raw)
    assert time.process_time() - began < 0.5
