"""Transcription of recorded speech over the WebSocket with a real model."""

import asyncio
import json
from pathlib import Path

import httpx2
import pytest
import websockets

from tests.speech import material
from tests.speech.gateway import KEY, Gateway, check_stable_prefixes, session

CLIPS = sorted(material.TEXTS)


@pytest.mark.parametrize("name", CLIPS)
async def test_session_clip_is_transcribed_with_stable_prefixes(gateway: Gateway, clips: dict[str, Path], name: str):
    expected_text = material.TEXTS[name]
    audio = material.read_pcm(clips[name])
    async with session(gateway) as client:
        await client.send_message(type="config", model="moonshine-tiny-en", language="en", vad=True)
        ready = await client.wait_for("ready")
        assert (ready["model"], ready["sample_rate"]) == ("moonshine-tiny-en", 16000)
        for place in range(0, len(audio), 16000):  # four times real time, so that there are many partials
            await client.socket.send(audio[place : place + 16000])
            await asyncio.sleep(0.125)
        await client.send_message(type="flush")
        final = await client.wait_for("final")
        await client.send_message(type="close")
        assert (await client.wait_for("closed"))["reason"] == "client_close"
    assert final["duration_ms"] == round(len(audio) / 32)
    assert final["chunks_processed"] >= 1
    assert client.partials()
    check_stable_prefixes(client.received)
    allowed = 0.1 * len(material.words(expected_text))
    assert material.count_word_errors(expected_text, final["text"]) <= max(allowed, 1), final["text"]


async def test_session_two_utterances_have_separate_finals(gateway: Gateway, clips: dict[str, Path]):
    async with session(gateway) as client:
        for name in ("en-hello-world", "en-counting"):
            await client.send_audio(material.read_pcm(clips[name]))
            await client.send_message(type="flush")
        first, second = await client.wait_for("final"), await client.wait_for("final")
    assert material.words(first["text"]) == ["hello", "world"]
    assert material.count_word_errors(material.TEXTS["en-counting"], second["text"]) <= 1
    assert client.received[0]["type"] == "ready"
    check_stable_prefixes(client.received)


async def test_session_reset_discards_earlier_audio(gateway: Gateway, clips: dict[str, Path]):
    async with session(gateway) as client:
        await client.send_message(type="config")
        await client.send_audio(material.read_pcm(clips["beckett"]))
        await client.wait_for("partial")
        await client.send_message(type="reset")
        await client.send_audio(material.read_pcm(clips["en-counting"]))
        await client.send_message(type="flush")
        final = await client.wait_for("final")
    assert material.count_word_errors(material.TEXTS["en-counting"], final["text"]) <= 1
    assert final["duration_ms"] == round(len(material.read_pcm(clips["en-counting"])) / 32)


async def test_session_silence_gives_empty_final(gateway: Gateway):
    for vad in (True, False):
        async with session(gateway) as client:
            await client.send_message(type="config", vad=vad)
            await client.send_audio(bytes(64000))
            await client.send_message(type="flush")
            final = await client.wait_for("final")
        assert (final["text"], final["duration_ms"], client.partials()) == ("", 2000, [])


async def test_session_words_after_long_silence_are_transcribed(gateway: Gateway, clips: dict[str, Path]):
    hello = material.read_pcm(clips["en-hello-world"])
    for vad in (True, False):
        async with session(gateway) as client:
            await client.send_message(type="config", vad=vad)
            await client.send_audio(bytes(5 * 32000) + hello + bytes(3 * 32000) + hello)
            await client.send_message(type="flush")
            final = await client.wait_for("final")
        assert material.words(final["text"]) == ["hello", "world"] * 2
        check_stable_prefixes(client.received)


async def test_session_frame_size_does_not_change_text(gateway: Gateway, clips: dict[str, Path]):
    audio = material.read_pcm(clips["en-counting"])
    async with session(gateway) as client:
        await client.send_audio(audio, frame=1237)
        await client.send_message(type="flush")
        odd = await client.wait_for("final")
        await client.send_audio(audio, frame=len(audio))
        await client.send_message(type="flush")
        whole = await client.wait_for("final")
    assert odd["text"] == whole["text"]
    assert odd["duration_ms"] == whole["duration_ms"]


async def test_session_key_in_subprotocol_is_accepted(gateway: Gateway):
    async with session(gateway, headers={}, subprotocols=["svc.v1", f"svc.api-key.{KEY}"]) as client:
        assert client.socket.subprotocol == "svc.v1"
        await client.send_message(type="config")
        await client.wait_for("ready")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_session_missing_or_wrong_key_returns_401(gateway: Gateway, headers: dict[str, str]):
    with pytest.raises(websockets.InvalidStatus) as refusal:
        async with session(gateway, headers=headers):
            pass
    assert refusal.value.response.status_code == 401
    assert b'"authentication_error"' in refusal.value.response.body


async def test_session_rejected_upgrade_returns_json_error(gateway: Gateway):
    rejected = {
        "/v1/audio/transcriptions/stream": (401, "authentication_error", {}),
        "/v1/no/such/socket": (404, "not_found", {"Authorization": f"Bearer {KEY}"}),
    }
    for path, (status, code, headers) in rejected.items():
        with pytest.raises(websockets.InvalidStatus) as refusal:
            async with websockets.connect(gateway.address.replace("http", "ws") + path, additional_headers=headers):
                pass
        response = refusal.value.response
        assert (response.status_code, json.loads(response.body)["error"]["code"]) == (status, code)
        assert response.headers["x-request-id"]
    async with httpx2.AsyncClient() as client:  # a handshake without Sec-WebSocket-Key
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        response = await client.get(gateway.address + "/v1/audio/transcriptions/stream", headers=upgrade)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert response.json()["error"]["code"] == "invalid_request"
    assert "Sec-WebSocket-Key" in response.json()["error"]["message"]
    assert response.headers["x-request-id"]
    assert gateway.log is not None
    assert "uvicorn" not in gateway.log.read_text()


async def test_models_list_includes_speech_models(gateway: Gateway):
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        listed = {row["id"]: row for row in (await client.get(gateway.address + "/v1/models")).json()["data"]}
        one = await client.get(gateway.address + "/v1/models/moonshine-tiny-en")
    assert listed["moonshine-tiny-en"]["owned_by"] == "local"
    assert one.json() == listed["moonshine-tiny-en"]
