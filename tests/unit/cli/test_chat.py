"""`svc chat` with a gateway that responds, truncates and rejects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import openai_wire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, sse

from svc import cli

Chat = Callable[..., int]


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire(), key="key-1") as fake:
        yield fake


@pytest.fixture
def chat(server: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setenv("SVC_API_KEY", "key-1")
    return lambda *options: cli.main(["chat", "--gateway", server.address, "--model", "m", *options, "Hi"])


@pytest.mark.parametrize("options", [(), ("--no-stream",), ("--max-tokens", "5")])
def test_chat_prints_the_response(chat: Chat, server: FakeProvider, capsys: Any, options: tuple[str, ...]) -> None:
    assert chat(*options) == 0
    assert capsys.readouterr().out.strip() == openai_wire.TEXT
    assert server.requests[0].json.get("max_tokens") == (5 if options[1:] else None)


@pytest.mark.parametrize("end", [fin(), None])
def test_chat_truncated_stream_fails_and_keeps_the_text(
    chat: Chat, server: FakeProvider, capsys: Any, end: Any
) -> None:
    server.plays(sse(openai_wire.stream()[:3], end=end))
    assert chat() == 1
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert "the response was truncated" in shown.err


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (answer(401, {"error": {"message": "Bad key. Send it.", "code": "authentication_error"}}), "SVC_API_KEY"),
        (answer(404, b"<html>"), "ends in /v1"),
        (answer(200, b"<html>"), "not a chat completion"),
        (answer(429, {"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}), "Slow down."),
    ],
)
def test_chat_error_response_is_explained(
    chat: Chat, server: FakeProvider, capsys: Any, response: Any, message: str
) -> None:
    server.plays(response)
    assert chat("--no-stream") == 1
    assert message in capsys.readouterr().err
    assert len(server.requests) == 1
