"""PDFs that cross dialects."""

from __future__ import annotations

from tests.e2e.harness import CLAUDE, GPT, Gateway
from tests.fakes.provider import FakeProvider

PDF = "JVBERi0xLjQK"
ASK = {"type": "text", "text": "Sum up."}


def test_file_of_a_chat_reaches_anthropic_as_a_document(gateway: Gateway, provider_b: FakeProvider) -> None:
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}
    assert gateway.chat(CLAUDE, messages=[{"role": "user", "content": [part, ASK]}]).status == 200
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    seen = provider_b.wait()
    assert seen.json["messages"][0]["content"] == [{"type": "document", "source": source, "title": "a.pdf"}, ASK]
    assert "anthropic-beta" not in seen.headers


def test_file_id_of_a_chat_reaches_anthropic_with_the_beta_header(gateway: Gateway, provider_b: FakeProvider) -> None:
    part = {"type": "file", "file": {"file_id": "file_011"}}
    assert gateway.chat(CLAUDE, messages=[{"role": "user", "content": [part, ASK]}]).status == 200
    seen = provider_b.wait()
    assert seen.json["messages"][0]["content"][0]["source"] == {"type": "file", "file_id": "file_011"}
    assert seen.headers["anthropic-beta"] == "files-api-2025-04-14"


def test_document_of_a_message_reaches_openai_as_a_file(gateway: Gateway, provider_a: FakeProvider) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    block = {"type": "document", "source": source, "title": "a.pdf"}
    assert gateway.message(GPT, messages=[{"role": "user", "content": [block, ASK]}]).status == 200
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    assert provider_a.wait().json["messages"][0]["content"] == [{"type": "file", "file": file}, ASK]


def test_document_by_link_for_openai_is_refused_before_it_is_asked(gateway: Gateway, provider_a: FakeProvider) -> None:
    block = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
    got = gateway.message(GPT, messages=[{"role": "user", "content": [block, ASK]}])
    assert (got.status, got.json["error"]["type"]) == (400, "invalid_request_error")
    assert "link" in got.json["error"]["message"]
    assert provider_a.requests == []
