"""Documents that the other dialect does not support: the request is rejected, and the error names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.dialects import anthropic, openai
from svc.dialects.base import EncodedRequest, ModelProfile
from svc.errors import InvalidRequest

WHERE = "messages[0].content[0]"


def translate(dialect: str, part: dict[str, Any]) -> EncodedRequest:
    """Translate a request with one content part from `dialect` to the other dialect."""
    messages: list[Any] = [{"role": "user", "content": [part]}]
    if part["type"] == "tool_result":
        messages.insert(0, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]})
    raw = json.dumps({"model": "m", "max_tokens": 5, "messages": messages}).encode()
    if dialect == "anthropic":
        return openai.dialect.encode_request(anthropic.dialect.decode_request(raw), ModelProfile("gpt"))
    return anthropic.dialect.encode_request(openai.dialect.decode_request(raw), ModelProfile("claude"))


def file(**fields: str) -> dict[str, Any]:
    return {"type": "file", "file": fields}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


@pytest.mark.parametrize(
    ("dialect", "part", "param"),
    [
        ("anthropic", document(type="url", url="https://example.com/a.pdf"), f"{WHERE}.source.url"),
        ("anthropic", document(type="base64", data="JVBERi0="), f"{WHERE}.source"),
        ("anthropic", document(type="new", data="x"), f"{WHERE}.source"),
        (
            "anthropic",
            document(type="content", content=[document(type="text", data="x")]),
            f"{WHERE}.source.content[0].type",
        ),
        ("openai", {"type": "file"}, f"{WHERE}.file"),
        ("openai", file(filename="a.pdf"), f"{WHERE}.file"),
        ("openai", file(file_data="not a data URL"), f"{WHERE}.file.file_data"),
        ("openai", file(file_data="data:application/zip;base64,UEs="), f"{WHERE}.file.file_data"),
        ("openai", file(file_data="data:text/plain;base64,/w=="), f"{WHERE}.file.file_data"),
        ("openai", file(file_data="data:text/plain;base64,é"), f"{WHERE}.file.file_data"),
        ("openai", file(file_data="JVBERi0xLjQ=="), f"{WHERE}.file.file_data"),
        ("openai", file(file_data="data:application/pdf;base64,A=A"), f"{WHERE}.file.file_data"),
        ("openai", file(file_data=""), f"{WHERE}.file.file_data"),
    ],
)
def test_document_unsupported_by_other_dialect_raises_invalid_request(
    dialect: str, part: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate(dialect, part)
    assert caught.value.param == param


def test_file_id_to_anthropic_adds_files_beta_header() -> None:
    assert translate("openai", file(file_id="file_1")).header_lines == (b"anthropic-beta: files-api-2025-04-14",)
    assert translate("openai", file(file_data="data:application/pdf;base64,JVBERi0=")).header_lines == ()


def test_file_id_from_anthropic_client_adds_no_beta_header() -> None:
    part = document(type="file", file_id="file_1")
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [part]}]}
    request = anthropic.dialect.decode_request(json.dumps(body).encode())
    assert anthropic.dialect.encode_request(request, ModelProfile("claude")).header_lines == ()


@pytest.mark.parametrize("inside", [True, False])
def test_document_context_and_citations_are_listed_as_dropped(inside: bool) -> None:
    part = document(type="text", data="x") | {"context": "From 2026.", "citations": {"enabled": True}}
    if inside:
        part = {"type": "tool_result", "tool_use_id": "t", "content": [part]}
    assert translate("anthropic", part).dropped_fields == ("messages[].context", "messages[].citations")


def test_document_text_in_tool_result_becomes_tool_message_text() -> None:
    inner = [{"type": "text", "text": "a"}, document(type="text", media_type="text/plain", data="b")]
    body = json.loads(translate("anthropic", {"type": "tool_result", "tool_use_id": "t", "content": inner}).body)
    assert body["messages"][1:] == [{"role": "tool", "tool_call_id": "t", "content": "a\nb"}]
