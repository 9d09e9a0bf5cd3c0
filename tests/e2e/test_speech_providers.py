"""`POST /v1/audio/speech` with speech models of providers: audio passes through, and its end is honest."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, body, fin, head, pause, reset, sse, stall

TTS, TOKEN_TTS = "tts-1", "gpt-4o-mini-tts"
PATH = "/v1/audio/speech"
WHOLE = b"".join(openai_wire.AUDIO)
FALLBACK = f"""
[routing.fallbacks]
"{TTS}" = ["other-tts"]
[[providers]]
name = "groq"
models = [{{ id = "other-tts", kind = "speech" }}]
"""


def speak(gateway: Gateway, *, key: str | None = None, **fields: Any) -> Got:
    return gateway.request(
        "POST", PATH, {"model": TTS, "input": "Hi", "voice": "alloy", **fields}, key=key or gateway.key
    )


def test_speech_openai_client_streams_unchanged_audio(openai_client: openai.OpenAI, provider_a: FakeProvider) -> None:
    with openai_client.audio.speech.with_streaming_response.create(
        model=TTS, input="Hello", voice="alloy", response_format="aac", speed=1.5
    ) as response:
        assert response.headers["content-type"] == "audio/mpeg"
        assert (response.headers["x-svc-provider"], response.headers["cache-control"]) == ("openai", "no-cache")
        assert b"".join(response.iter_bytes()) == WHOLE
    seen = provider_a.wait()
    assert seen.json == {"model": TTS, "input": "Hello", "voice": "alloy", "response_format": "aac", "speed": 1.5}
    assert seen.headers["accept"] == "*/*"


def test_speech_chunks_leave_as_they_come(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(head(content_type="audio/pcm") + body(b"first") + stall())
    with gateway.raw() as client:
        client.send(request_bytes("POST", PATH, {"model": TTS, "input": "Hi", "voice": "alloy"}, key=gateway.key))
        got = client.read_until(b"first")
        assert (got.status, got.headers["content-type"], got.body) == (200, "audio/pcm", b"first")


def test_speech_request_bytes_are_unchanged(gateway: Gateway, provider_a: FakeProvider) -> None:
    sent = b'{ "input" : "H\\u00e9",  "model":"tts-1", "voice": {"id": "voice_1"}, "new_field": [1], "speed": null }'
    assert gateway.request("POST", PATH, sent).body == WHOLE
    assert provider_a.wait().body == sent


@pytest.mark.parametrize("ending", [reset(), fin()])
def test_speech_interrupted_audio_has_no_end(gateway: Gateway, provider_a: FakeProvider, ending: Any) -> None:
    provider_a.plays(openai_wire.speech([b"one", b"two"], end=pause(0.05) + ending))
    got = speak(gateway)
    assert (got.status, got.whole, got.body) == (200, False, b"onetwo")
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["http_status"], entry["code"]) == ("cut", 200, "provider_error")


def test_speech_interrupted_audio_is_an_error_for_httpx(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(openai_wire.speech([b"one"], end=reset()))
    with (
        httpx2.Client(
            base_url=gateway.url, headers={"authorization": f"Bearer {gateway.key}"}, trust_env=False
        ) as client,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        client.post(PATH, json={"model": TTS, "input": "Hi", "voice": "alloy"})


def test_speech_interrupted_audio_resets_http_1_0_connection(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(openai_wire.speech([b"one"], end=pause(0.1) + reset()))
    with gateway.raw() as client:
        whole = request_bytes("POST", PATH, {"model": TTS, "input": "Hi", "voice": "alloy"}, key=gateway.key)
        client.send(whole.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        with pytest.raises(ConnectionResetError):
            _read_to_end(client.socket)


def _read_to_end(connected: socket.socket) -> None:
    while connected.recv(4096):
        pass


def test_speech_silent_provider_closes_connection(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[gateway]\nidle_timeout = 0.8\nstream_keep_alive = 0.1\n")
    provider_a.plays(head(content_type="audio/mpeg") + body(b"one") + stall())
    got = speak(started)
    assert (got.status, got.whole, got.body) == (200, False, b"one")


def test_speech_client_disconnect_closes_upstream(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(head(content_type="audio/mpeg") + body(b"one") + stall())
    with gateway.raw() as client:
        client.send(request_bytes("POST", PATH, {"model": TTS, "input": "Hi", "voice": "alloy"}, key=gateway.key))
        client.read_until(b"one")
        seen = provider_a.wait()
        left = time.monotonic()
    assert seen.wait_left() - left < 5


@pytest.mark.parametrize(("model", "prompt_tokens"), [(TTS, 900), (TOKEN_TTS, 225)])
def test_speech_client_disconnect_before_audio_is_billed_for_the_text(
    gateway: Gateway, provider_a: FakeProvider, model: str, prompt_tokens: int
) -> None:
    provider_a.plays(stall())
    with gateway.raw() as client:
        fields = {"model": model, "input": "x" * 900, "voice": "alloy"}
        text = f"disconnect-{prompt_tokens}"
        client.send(request_bytes("POST", PATH, fields, key=gateway.key, headers={"x-request-id": text}))
        provider_a.wait()
    lines = [json.loads(line) for line in gateway.logged(text).splitlines() if text in line]
    entry = next(line for line in lines if line.get("endpoint") == PATH)
    assert (entry["status"], entry["prompt_tokens"], entry["estimated"]) == ("client_closed", prompt_tokens, True)


def test_speech_connection_is_reused_after_audio(gateway: Gateway, provider_a: FakeProvider) -> None:
    with gateway.raw() as client:
        request = {"model": TTS, "input": "Hi", "voice": "alloy"}
        assert [client.request("POST", PATH, request, key=gateway.key).body for _ in range(3)] == [WHOLE] * 3


def test_speech_events_pass_through_with_usage(gateway: Gateway, provider_a: FakeProvider) -> None:
    usage = {"input_tokens": 14, "output_tokens": 101, "total_tokens": 115}
    events = [openai_wire.speech_event("delta", audio="AAAA"), openai_wire.speech_event("done", usage=usage)]
    provider_a.plays(sse(events, split_at=7))
    got = speak(gateway, model=TOKEN_TTS, stream_format="sse")
    assert (got.whole, got.body) == (True, b"".join(events))
    assert got.headers["content-type"].startswith("text/event-stream")
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["estimated"]) == (14, 101, False)
    assert entry["cost_usd"] == pytest.approx((14 * 0.6 + 101 * 12) / 1e6)


def test_speech_events_without_done_end_with_error(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse([openai_wire.speech_event("delta", audio="AAAA")]))
    got = speak(gateway, model=TOKEN_TTS, stream_format="sse")
    last = got.body.split(b"data: ")[-1]
    assert (got.whole, json.loads(last)["error"]["code"]) == (True, "provider_error")


def test_speech_ledger_entry_counts_characters(gateway: Gateway, provider_a: FakeProvider) -> None:
    got = speak(gateway, input="h\u00e9llo" * 100)
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["endpoint"], entry["model"], entry["provider"], entry["status"]) == (PATH, TTS, "openai", "ok")
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["estimated"]) == (500, 0, False)
    assert entry["cost_usd"] == pytest.approx(500 * 15 / 1e6)
    assert entry["ttfb_ms"] > 0


def test_speech_usage_of_token_model_is_estimated(gateway: Gateway, provider_a: FakeProvider) -> None:
    got = speak(gateway, model=TOKEN_TTS, input="x" * 900)  # about a minute
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["estimated"]) == (225, 1260, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "  \n"}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"input": "x" * 2_000_000}, "input"),
        ({"input": ["Hi"]}, "input"),
        ({"input": None}, "input"),
        ({"model": ""}, "model"),
        ({"model": 1}, "model"),
        ({"voice": 1}, "voice"),
        ({"response_format": "ogg"}, "response_format"),
        ({"response_format": ["mp3"]}, "response_format"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"instructions": {}}, "instructions"),
        ({"stream_format": "bytes"}, "stream_format"),
    ],
)
def test_speech_invalid_field_returns_400_with_param(
    gateway: Gateway, provider_a: FakeProvider, fields: dict[str, Any], param: str
) -> None:
    got = speak(gateway, **fields)
    error = got.json["error"]
    assert (got.status, error["code"], error["param"]) == (400, "invalid_request", param)
    assert not provider_a.requests


def test_speech_input_of_maximum_length_is_forwarded(gateway: Gateway, provider_a: FakeProvider) -> None:
    longest = "\U0001f999" * 4096
    assert speak(gateway, input=longest).status == 200
    assert provider_a.wait().json["input"] == longest


def test_speech_cut_body_returns_400(gateway: Gateway, provider_a: FakeProvider) -> None:
    assert gateway.request("POST", PATH, b'{"model": "tts-1", "inp').code == "invalid_request"
    assert not provider_a.requests


def test_speech_model_of_other_kind_returns_400_with_endpoint(gateway: Gateway, fakes: dict[str, FakeProvider]) -> None:
    got = speak(gateway, model=GPT)
    assert (got.status, got.json["error"]["param"]) == (400, "model")
    assert "POST /v1/chat/completions" in got.json["error"]["message"]
    chat = gateway.chat(TTS)
    assert (chat.status, chat.json["error"]["code"]) == (400, "invalid_request")
    assert f"POST {PATH}" in chat.json["error"]["message"]
    assert not [fake for fake in fakes.values() if fake.requests]


def test_speech_upstream_400_keeps_message_and_field(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(400, openai_wire.error("No such voice.", param="voice")))
    error = speak(gateway).json["error"]
    assert (error["message"], error["param"], error["code"]) == ("No such voice.", "voice", "invalid_request")


def test_speech_json_response_is_not_audio(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(200, {"ok": True}))
    got = speak(gateway)
    assert (got.status, got.code) == (502, "provider_error")


def test_speech_empty_response_is_an_error(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(200, b"", content_type="audio/mpeg"))
    assert (got := speak(gateway)).status == 502, got.body


def test_speech_fallback_serves_after_failure(start_gateway: StartGateway, fakes: dict[str, FakeProvider]) -> None:
    started = start_gateway(config=f"{FALLBACK}[routing]\nretries = 0\nmin_pace = 1000\n[cache]\nenabled = true\n")
    fakes["A"].always_plays(answer(529, openai_wire.error("overloaded")))
    for _ in range(2):  # audio is not cached
        got = speak(started)
        assert (got.status, got.body, got.headers["x-svc-provider"]) == (200, WHOLE, "groq")
    assert fakes["C"].wait(2).json["model"] == "other-tts"


def test_speech_needs_scope_and_counts_requests(gateway: Gateway, provider_a: FakeProvider) -> None:
    chat_key = create(gateway, "--name", "chatty", "--scope", "chat")["key"]
    assert speak(gateway, key=chat_key).status == 403
    listed = gateway.request("GET", "/v1/models", key=chat_key).json["data"]
    assert not [row for row in listed if row.get("kind") == "speech"]
    limited = create(gateway, "--name", "speaker", "--scope", "speech", "--rpm", "2")["key"]
    assert speak(gateway, key=limited, input="").status == 400
    assert speak(gateway, key=limited).status == 200
    refused = speak(gateway, key=limited)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert "retry-after" in refused.headers
