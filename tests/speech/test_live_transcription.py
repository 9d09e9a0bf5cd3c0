"""Human speech through the real socket, the real model: the words, and the promises about them."""

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
async def test_every_clip_is_understood_and_stable_text_stays(gateway: Gateway, clips: dict[str, Path], name: str):
    said = material.TEXTS[name]
    audio = material.read_pcm(clips[name])
    async with session(gateway) as client:
        await client.send_message(type="config", model="moonshine-tiny-en", language="en", vad=True)
        ready = await client.wait_for("ready")
        assert (ready["model"], ready["sample_rate"]) == ("moonshine-tiny-en", 16000)
        for place in range(0, len(audio), 16000):  # four times as fast as speech, so that there are many partials
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
    allowed = 0.1 * len(material.words(said))
    assert material.count_word_errors(said, final["text"]) <= max(allowed, 1), final["text"]


async def test_utterances_are_apart(gateway: Gateway, clips: dict[str, Path]):
    async with session(gateway) as client:
        for name in ("en-hello-world", "en-counting"):
            await client.send_audio(material.read_pcm(clips[name]))
            await client.send_message(type="flush")
        first, second = await client.wait_for("final"), await client.wait_for("final")
    assert material.words(first["text"]) == ["hello", "world"]
    assert material.count_word_errors(material.TEXTS["en-counting"], second["text"]) <= 1
    assert client.received[0]["type"] == "ready"
    check_stable_prefixes(client.received)


async def test_reset_forgets(gateway: Gateway, clips: dict[str, Path]):
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


async def test_silence_is_an_empty_final(gateway: Gateway):
    for vad in (True, False):
        async with session(gateway) as client:
            await client.send_message(type="config", vad=vad)
            await client.send_audio(bytes(64000))
            await client.send_message(type="flush")
            final = await client.wait_for("final")
        assert (final["text"], final["duration_ms"], client.partials()) == ("", 2000, [])


async def test_words_after_a_long_silence(gateway: Gateway, clips: dict[str, Path]):
    hello = material.read_pcm(clips["en-hello-world"])
    for vad in (True, False):
        async with session(gateway) as client:
            await client.send_message(type="config", vad=vad)
            await client.send_audio(bytes(5 * 32000) + hello + bytes(3 * 32000) + hello)
            await client.send_message(type="flush")
            final = await client.wait_for("final")
        assert material.words(final["text"]) == ["hello", "world"] * 2
        check_stable_prefixes(client.received)


async def test_odd_frames(gateway: Gateway, clips: dict[str, Path]):
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


async def test_browsers_send_the_key_as_a_subprotocol(gateway: Gateway):
    async with session(gateway, headers={}, subprotocols=["svc.v1", f"svc.api-key.{KEY}"]) as client:
        assert client.socket.subprotocol == "svc.v1"
        await client.send_message(type="config")
        await client.wait_for("ready")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_no_key_no_upgrade(gateway: Gateway, headers: dict[str, str]):
    with pytest.raises(websockets.InvalidStatus) as refusal:
        async with session(gateway, headers=headers):
            pass
    assert refusal.value.response.status_code == 401
    assert b'"authentication_error"' in refusal.value.response.body


async def test_refused_upgrades_are_json_and_no_fault_of_ours(gateway: Gateway):
    refused = {
        "/v1/audio/transcriptions/stream": (401, "authentication_error", {}),
        "/v1/no/such/socket": (404, "not_found", {"Authorization": f"Bearer {KEY}"}),
    }
    for path, (status, code, headers) in refused.items():
        with pytest.raises(websockets.InvalidStatus) as refusal:
            async with websockets.connect(gateway.address.replace("http", "ws") + path, additional_headers=headers):
                pass
        response = refusal.value.response
        assert (response.status_code, json.loads(response.body)["error"]["code"]) == (status, code)
        assert response.headers["x-request-id"]
    async with httpx2.AsyncClient() as client:  # a handshake without its key
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        answer = await client.get(gateway.address + "/v1/audio/transcriptions/stream", headers=upgrade)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json()["error"]["code"] == "invalid_request"
    assert "Sec-WebSocket-Key" in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"]
    assert gateway.log is not None
    assert "uvicorn" not in gateway.log.read_text()


async def test_speech_models_are_listed(gateway: Gateway):
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        listed = {row["id"]: row for row in (await client.get(gateway.address + "/v1/models")).json()["data"]}
        one = await client.get(gateway.address + "/v1/models/moonshine-tiny-en")
    assert listed["moonshine-tiny-en"]["owned_by"] == "local"
    assert one.json() == listed["moonshine-tiny-en"]
