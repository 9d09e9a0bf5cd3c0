"""Tool calls that the token limit truncates, for an Anthropic client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.dialects import anthropic, openai
from svc.dialects.truncated_json import decode_complete_members
from svc.errors import ProviderFailed


def translated(arguments: str, finish: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    made: dict[str, Any] = json.loads(
        anthropic.dialect.encode_response(openai.dialect.decode_response(json.dumps(body).encode()))
    )
    return made


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"path": "a.txt", "text": "Once up', {"path": "a.txt"}),
        ('{"path": "a.txt", "text": "a, {b}, \\"c', {"path": "a.txt"}),
        ('{"path": "a.txt", "lines": [1, 2, {"a": 3}, 4', {"path": "a.txt"}),
        ('{"path": "a.txt", "lines": [1, 2]', {"path": "a.txt", "lines": [1, 2]}),
        ('{"path": "a.txt"', {"path": "a.txt"}),
        ('{"path": "a.txt",', {"path": "a.txt"}),
        ('{"path": "a.txt", "count"', {"path": "a.txt"}),
        ('{"path": "a.txt", "count": 12', {"path": "a.txt"}),
        ('{"a": true', {"a": True}),
        ('{"a": 12', {}),
        ('{"a": "x\\', {}),
        ('{"a": "x}', {}),
        ("{", {}),
        ("", {}),
        ("[1, 2", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": ' + "[" * 100_000, {}),
    ],
)
@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_tool_call_truncated_arguments_keep_complete_members(
    arguments: str, shown: dict[str, Any], finish: str
) -> None:
    made = translated(arguments, finish)
    assert made["stop_reason"] == {"length": "max_tokens", "content_filter": "refusal"}[finish]
    [block] = made["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "f", shown)


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_tool_call_finished_with_invalid_json_raises_provider_failed(finish: str) -> None:
    with pytest.raises(ProviderFailed):
        translated('{"path": "a.t', finish)


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6)
)
nested: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@given(members=st.dictionaries(st.text(max_size=5), nested, max_size=4), data=st.data())
@settings(max_examples=300, deadline=None)
def test_complete_members_any_truncation_is_prefix_of_members(members: dict[str, Any], data: st.DataObject) -> None:
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    text = json.dumps(members, ensure_ascii=data.draw(st.booleans()), separators=separators)
    cut = data.draw(st.integers(0, len(text)))
    kept = decode_complete_members(text[:cut])
    whole = json.loads(text)
    assert kept == {name: whole[name] for name in list(whole)[: len(kept)]}
    if cut == len(text):
        assert kept == whole
