"""PDF documents in requests that are translated between dialects."""

from __future__ import annotations

from tests.e2e.harness import CLAUDE, GPT, Gateway
from tests.fakes.provider import FakeProvider

PDF = "JVBERi0xLjQK"
ASK = {"type": "text", "text": "Sum up."}


def test_chat_file_is_translated_to_anthropic_document(gateway: Gateway, provider_b: FakeProvider) -> None:
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}
    assert gateway.chat(CLAUDE, messages=[{"role": "user", "content": [part, ASK]}]).status == 200
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    seen = provider_b.wait()
    assert seen.json["messages"][0]["content"] == [{"type": "document", "source": source, "title": "a.pdf"}, ASK]
    assert "anthropic-beta" not in seen.headers


def test_chat_file_id_is_forwarded_to_anthropic_with_beta_header(gateway: Gateway, provider_b: FakeProvider) -> None:
    part = {"type": "file", "file": {"file_id": "file_011"}}
    assert gateway.chat(CLAUDE, messages=[{"role": "user", "content": [part, ASK]}]).status == 200
    seen = provider_b.wait()
    assert seen.json["messages"][0]["content"][0]["source"] == {"type": "file", "file_id": "file_011"}
    assert seen.headers["anthropic-beta"] == "files-api-2025-04-14"


def test_messages_document_is_translated_to_openai_file(gateway: Gateway, provider_a: FakeProvider) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    block = {"type": "document", "source": source, "title": "a.pdf"}
    assert gateway.message(GPT, messages=[{"role": "user", "content": [block, ASK]}]).status == 200
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    assert provider_a.wait().json["messages"][0]["content"] == [{"type": "file", "file": file}, ASK]


def test_messages_document_url_for_openai_returns_400_without_upstream_request(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    block = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
    got = gateway.message(GPT, messages=[{"role": "user", "content": [block, ASK]}])
    assert (got.status, got.json["error"]["type"]) == (400, "invalid_request_error")
    assert "link" in got.json["error"]["message"]
    assert provider_a.requests == []
