"""The synchronous and asynchronous SDK clients against a real gateway with real models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import svc
from svc import errors
from tests.e2e.harness import KEY
from tests.e2e.pipeline.conftest import Machine
from tests.speech import material
from tests.speech.material import TEXTS

MODEL = "smollm2-135m"


@pytest.fixture
def client(machine: Machine) -> Iterator[svc.Client]:
    with svc.Client(gateway_url=f"{machine.gateway.url}/v1", api_key=KEY, registry=machine.registry) as one:
        yield one


def async_client(machine: Machine) -> svc.AsyncClient:
    return svc.AsyncClient(gateway_url=f"{machine.gateway.url}/v1", api_key=KEY, registry=machine.registry)


def test_sdk_chat_uses_default_model_in_json_and_stream(client: svc.Client) -> None:
    assert MODEL in [model.id for model in client.models()]
    got = client.chat("What is the capital of France?", max_tokens=20, temperature=0)
    assert "Paris" in got.text
    assert got.request_id
    stream = client.chat("What is the capital of France?", model=MODEL, max_tokens=20, temperature=0, stream=True)
    assert len([chunk for chunk in stream if chunk.text]) > 3
    assert stream.usage is not None
    assert stream.usage.completion_tokens == got.usage.completion_tokens if got.usage else False


def test_sdk_wrong_key_raises_authentication_failed(machine: Machine, clips: dict[str, Path]) -> None:
    client = svc.Client(gateway_url=machine.gateway.url, api_key="svc_sk_wrong")
    for call in (client.models, client.live, lambda: client.transcribe(clips["beckett"])):
        with pytest.raises(errors.AuthenticationFailed):
            call()


def test_sdk_transcribe_accepts_path_and_bytes(client: svc.Client, clips: dict[str, Path]) -> None:
    by_path = client.transcribe(clips["beckett"])
    by_bytes = client.transcribe(clips["beckett"].read_bytes(), language="en")
    assert by_path.text == by_bytes.text
    assert material.count_word_errors(TEXTS["beckett"], by_path.text) <= 1
    with pytest.raises(errors.InvalidRequest):
        client.transcribe(b"no audio")


def test_sdk_live_session_feed_flush_reset_finish(client: svc.Client, clips: dict[str, Path]) -> None:
    with client.live(language="en") as live:
        assert live.session_id
        live.feed(material.read_pcm(clips["beckett"]))
        assert material.count_word_errors(TEXTS["beckett"], live.finish().text) <= 1
        live.feed(material.read_pcm(clips["en-hello-world"]))
        live.flush()
        events = []
        for event in live:
            events.append(event)
            if isinstance(event, svc.Final):
                break
        assert material.words(events[-1].text) == ["hello", "world"]
        live.feed(material.read_pcm(clips["beckett"]))
        live.reset()
        assert live.finish().text == ""
    assert live.closed == "client_close"
    with pytest.raises(errors.GatewayFailed, match="closed"):
        live.feed(b"\0\0")


def test_sdk_live_fed_by_another_thread_yields_partials_and_final(client: svc.Client, clips: dict[str, Path]) -> None:
    audio = material.read_pcm(clips["two-cities"])

    def feed() -> None:
        for place in range(0, len(audio), 9999):
            live.feed(audio[place : place + 9999])
        live.flush()

    with client.live() as live:
        feeder = threading.Thread(target=feed)
        feeder.start()
        partials = 0
        for event in live:
            if isinstance(event, svc.Final):
                break
            partials += 1
        feeder.join(10)
    assert partials > 5
    assert material.count_word_errors(TEXTS["two-cities"], event.text) <= 0.1 * len(TEXTS["two-cities"].split())


@pytest.mark.parametrize("end", ["finish", "close"])
def test_sdk_live_ended_while_another_thread_iterates_lets_it_read_all(
    client: svc.Client, clips: dict[str, Path], end: str
) -> None:
    seen: list[svc.Partial | svc.Final] = []
    text = None
    with client.live(language="en") as live:
        reader = threading.Thread(target=lambda: seen.extend(live))
        reader.start()
        live.feed(material.read_pcm(clips["beckett"]))
        if end == "finish":
            text = live.finish().text
        else:
            live.flush()
    reader.join(10)
    assert live.closed == "client_close"
    final = seen[-1]
    assert isinstance(final, svc.Final)
    assert text in (None, final.text)
    assert material.count_word_errors(TEXTS["beckett"], final.text) <= 1


@pytest.mark.parametrize("end", ["finish", "close"])
def test_sdk_async_live_ended_while_another_task_iterates_lets_it_read_all(
    machine: Machine, clips: dict[str, Path], end: str
) -> None:
    async def run() -> None:
        async def read() -> list[svc.Partial | svc.Final]:
            return [event async for event in live]

        text = None
        async with async_client(machine) as client, await client.live(language="en") as live:
            reader = asyncio.create_task(read())
            await live.feed(material.read_pcm(clips["beckett"]))
            if end == "finish":
                text = (await live.finish()).text
            else:
                await live.flush()
        final = (await asyncio.wait_for(reader, 10))[-1]
        assert live.closed == "client_close"
        assert isinstance(final, svc.Final)
        assert text in (None, final.text)

    asyncio.run(run())


def test_sdk_live_unknown_model_or_extra_option_raises(client: svc.Client) -> None:
    with pytest.raises(errors.ModelNotFound):
        client.live(model="nobody@1")
    with pytest.raises(errors.InvalidRequest):
        client.live(model_dir="/etc")


def test_sdk_async_client_chats_and_transcribes(machine: Machine, clips: dict[str, Path]) -> None:
    async def run() -> None:
        async with async_client(machine) as client:
            stream = await client.chat("What is the capital of France?", stream=True, max_tokens=20, temperature=0)
            async for _ in stream:
                pass
            assert "Paris" in stream.text
            async with await client.live() as live:
                await asyncio.gather(live.feed(material.read_pcm(clips["beckett"])), asyncio.sleep(0))
                final = await live.finish()
            assert material.count_word_errors(TEXTS["beckett"], final.text) <= 1
            assert live.closed == "client_close"
            assert material.count_word_errors(TEXTS["beckett"], (await client.transcribe(clips["beckett"])).text) <= 1

    asyncio.run(run())


def test_sdk_bundle_is_downloaded_and_unknown_one_raises(
    client: svc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SVC_REGISTRY_ROOT", raising=False)
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    bundle = client.bundle("espeak-en-us@1")
    assert bundle.reference == "espeak-en-us@1.0.0"
    assert (bundle.path / "tts.json").is_file()
    assert bundle.metadata.model_id == "espeak-en-us"
    with pytest.raises(errors.BundleNotFound):
        client.bundle("nothing@1")
