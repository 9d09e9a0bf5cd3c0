"""Invalid input of clients and operators, and killed processes, with a real gateway."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import websockets

import svc
from svc import errors
from tests.speech import material
from tests.speech.gateway import KEY, Gateway, check_stable_prefixes, session
from tests.speech.gateway import run_gateway as run


async def test_session_invalid_message_is_error_and_session_continues(gateway: Gateway, clips: dict[str, Path]):
    invalid = ["", "[]", "{", '{"type":"bye"}', '{"type":"config","vad":"yes"}', "x" * 10_000_000]
    async with session(gateway) as client:
        for text in invalid:
            await client.socket.send(text)
            assert (await client.wait_for("error"))["code"] == "invalid_request"
        await client.send_audio(material.read_pcm(clips["en-hello-world"]))
        await client.send_message(type="flush")
        assert material.words((await client.wait_for("final"))["text"]) == ["hello", "world"]


@pytest.mark.slow
async def test_session_100000_tiny_frames_are_transcribed_and_others_served(gateway: Gateway, clips: dict[str, Path]):
    audio = material.read_pcm(clips["en-counting"])
    sizes = len(audio) // 100_000 + 1
    async with session(gateway) as client, session(gateway) as other:
        await client.send_message(type="config")
        await client.wait_for("ready")
        sending = asyncio.create_task(client.send_audio(audio + bytes(100_000 * sizes - len(audio)), frame=sizes))
        await other.send_audio(material.read_pcm(clips["en-hello-world"]))  # other sessions continue meanwhile
        await other.send_message(type="flush")
        assert material.words((await other.wait_for("final"))["text"]) == ["hello", "world"]
        await sending
        await client.send_message(type="flush")
        final = await client.wait_for("final")
    assert material.count_word_errors(material.TEXTS["en-counting"], final["text"]) <= 1
    check_stable_prefixes(client.received)


async def test_session_flood_of_invalid_messages_does_not_block_others(gateway: Gateway):
    """Guards against quadratic work over the messages of one read, which would block the event loop."""
    count = 20_000
    async with session(gateway) as client, httpx2.AsyncClient() as other:

        async def send() -> None:
            for _ in range(count):
                await client.socket.send("{")

        async def read_errors() -> None:
            for _ in range(count):
                await client.wait_for("error")

        flood = asyncio.gather(send(), read_errors())
        waits = []
        while not flood.done():
            started_at = time.monotonic()
            await other.get(gateway.address + "/health", timeout=30)
            waits.append(time.monotonic() - started_at)
            await asyncio.sleep(0.01)
        await flood
    assert max(waits) < 5


@pytest.mark.slow
async def test_session_audio_faster_than_real_time_is_transcribed_completely(gateway: Gateway, clips: dict[str, Path]):
    audio = material.read_pcm(clips["en-quick-brown-fox"]) * 20  # a minute in one frame
    async with session(gateway) as client:
        await client.socket.send(audio)
        await client.send_message(type="flush")
        final = await client.wait_for("final", timeout=60)
    assert final["duration_ms"] == round(len(audio) / 32)
    assert material.count_word_errors(20 * (material.TEXTS["en-quick-brown-fox"] + " "), final["text"]) <= 20
    check_stable_prefixes(client.received)


@pytest.mark.parametrize("cut", ["before config", "in audio", "after flush"])
async def test_session_client_disconnect_frees_its_slot(gateway: Gateway, clips: dict[str, Path], cut: str):
    for _ in range(20):  # more than the session limit
        async with session(gateway) as client:
            if cut != "before config":
                await client.send_message(type="config")
                await client.wait_for("ready")
                await client.send_audio(material.read_pcm(clips["en-hello-world"]))
            if cut == "after flush":
                await client.send_message(type="flush")
            client.socket.transport.abort()


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"model": "no-such-model"}, "model_not_found"),
        ({"model": "moonshine-tiny-en@9"}, "model_not_found"),
        ({"model": "../../etc"}, "model_not_found"),
        ({"model_dir": "/etc"}, "invalid_request"),
        ({"model_dir": "relative"}, "invalid_request"),
        ({"model_dir": "/no\0thing"}, "invalid_request"),
        ({"language": "fr"}, "invalid_request"),
    ],
)
async def test_session_unavailable_model_or_language_is_error(gateway: Gateway, config: dict[str, str], code: str):
    async with session(gateway) as client:
        await client.send_message(type="config", **config)
        error = await client.wait_for("error")
        assert error["code"] == code
        if "language" in config:
            assert "en" in error["message"]
        await client.send_message(type="config", model="moonshine-tiny-en@1", language="en-GB")
        await client.wait_for("ready")


@pytest.fixture
def small_gateway(tmp_path: Path, model: Path) -> Iterator[Gateway]:
    """A gateway with two sessions, a short idle timeout, and an allowed folder of models."""
    allowed = tmp_path / "allowed"
    shutil.copytree(model, allowed / "mine")
    shutil.copytree(model, tmp_path / "outside")
    (allowed / "link").symlink_to(tmp_path / "outside")
    (allowed / "mine" / "stt.json").unlink()  # the model is detected from its files
    (allowed / "mine" / "model_metadata.json").write_text('{"model_id": "my-own"}')
    shutil.copytree(allowed / "mine", allowed / "broken")
    (allowed / "broken" / "encoder_model.ort").write_bytes(b"no model")
    shutil.copytree(allowed / "mine", allowed / "exits")
    shutil.copy(model / "encoder_model.ort", allowed / "exits" / "silero_vad.onnx")
    config = f'[speech]\nmax_sessions = 2\nidle_timeout = 4\nmodel_dirs = ["{allowed}"]\n'
    with run(tmp_path, config) as running:
        yield running


@pytest.mark.slow
async def test_session_model_dir_outside_allowed_folders_is_rejected(
    small_gateway: Gateway, tmp_path: Path, clips: dict[str, Path]
):
    allowed = tmp_path / "allowed"
    async with session(small_gateway) as client:
        await client.send_message(type="config", model_dir=str(allowed / "mine"))
        assert (await client.wait_for("ready"))["model"] == "my-own"
        await client.send_audio(material.read_pcm(clips["en-hello-world"]))
        await client.send_message(type="flush")
        assert material.words((await client.wait_for("final"))["text"]) == ["hello", "world"]
        for outside in (tmp_path / "outside", allowed / "link", allowed / ".." / "outside", allowed / "none"):
            await client.send_message(type="config", model_dir=str(outside))
            assert (await client.wait_for("error"))["code"] == "invalid_request"
        for unusable in ("broken", "exits", ""):
            await client.send_message(type="config", model_dir=str(allowed / unusable))
            assert (await client.wait_for("error"))["code"] == "asr_error"
        await client.send_message(type="config")
        await client.wait_for("ready")


def test_gateway_missing_default_speech_model_is_logged_at_startup(tmp_path: Path, model: Path):
    with run(tmp_path, '[speech]\ndefault_model = "moonshine-tiny-xx"\n') as gateway:
        assert gateway.log is not None
        deadline = time.monotonic() + 10
        while "moonshine-tiny-xx" not in gateway.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "svc models" in gateway.log.read_text()


async def test_session_over_limit_is_rejected_until_a_slot_is_free(small_gateway: Gateway):
    async with session(small_gateway) as one:
        await one.send_message(type="config")
        await one.wait_for("ready")  # the model is loaded, which may take as long as the idle timeout
        async with session(small_gateway) as two:
            async with session(small_gateway) as three:
                error = json.loads(await three.socket.recv())
                assert (error["type"], error["code"]) == ("error", "rate_limit_exceeded")
                with pytest.raises(websockets.ConnectionClosed):
                    await three.socket.recv()
                assert three.socket.close_code == 1013
            await two.send_message(type="config")
            await two.wait_for("ready")
            await two.send_message(type="close")
            await two.wait_for("closed")
            async with session(small_gateway) as four:  # at once
                await four.send_message(type="config")
                await four.wait_for("ready")


@pytest.mark.slow
async def test_session_after_disconnect_is_not_over_the_limit(tmp_path: Path, model: Path):
    with run(tmp_path, "[speech]\nmax_sessions = 1\n") as gateway:
        for _ in range(40):
            async with session(gateway) as client:
                await client.send_message(type="config")
                assert (await client.wait_for_any("ready", "error"))["type"] == "ready"


@pytest.mark.slow
def test_sdk_live_over_session_limit_raises_rate_limited(small_gateway: Gateway):
    with svc.Client(gateway_url=small_gateway.address, api_key=KEY) as client, client.live(), client.live():
        for _ in range(8):  # the gateway may close before, while or after the client sends `config`
            with pytest.raises(errors.RateLimited):
                client.live()


async def test_sdk_async_live_over_session_limit_raises_rate_limited(small_gateway: Gateway):
    async with (
        svc.AsyncClient(gateway_url=small_gateway.address, api_key=KEY) as client,
        await client.live(),
        await client.live(),
    ):
        for refused in await asyncio.gather(*[client.live() for _ in range(20)], return_exceptions=True):
            assert isinstance(refused, errors.RateLimited)


@pytest.mark.slow
async def test_session_idle_is_closed(small_gateway: Gateway):
    async with session(small_gateway) as client:
        assert (await client.wait_for("closed", timeout=10))["reason"] == "idle_timeout"
        with pytest.raises(websockets.ConnectionClosed):
            await client.socket.recv()
        assert client.socket.close_code == 1000


@pytest.mark.slow
async def test_session_that_gateway_does_not_read_is_not_idle(small_gateway: Gateway):
    async with session(small_gateway, ping_interval=None) as client:
        await client.send_message(type="config")
        await client.wait_for("ready")
        (worker,) = small_gateway.workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            await client.send_audio(bytes(30 * 32000), frame=30 * 32000)  # more than the gateway queues for a worker
            with pytest.raises(TimeoutError):
                await client.wait_for_any("closed", "error", timeout=6)  # longer than the idle timeout
        finally:
            os.kill(worker, signal.SIGCONT)
        await client.send_message(type="flush")
        assert (await client.wait_for("final"))["duration_ms"] == 30_000


@pytest.mark.slow
async def test_session_killed_worker_is_error_and_session_continues(small_gateway: Gateway, clips: dict[str, Path]):
    audio = material.read_pcm(clips["beckett"])
    async with session(small_gateway) as client:
        await client.send_audio(audio)
        await client.wait_for("partial")
        while not client.partials()[-1]["is_stable"]:
            await client.wait_for("partial")
        (worker,) = small_gateway.workers()
        os.kill(worker, signal.SIGKILL)
        assert (await client.wait_for("error"))["code"] == "asr_error"
        await client.send_audio(audio)
        await client.send_message(type="flush")
        final = await client.wait_for("final")
        assert final["duration_ms"] == round(2 * len(audio) / 32)
        assert "fail better" in final["text"].lower()
        check_stable_prefixes(client.received)
        assert small_gateway.workers() != [worker]


async def test_session_server_shutdown_sends_closed_and_ends_workers(small_gateway: Gateway):
    async with session(small_gateway) as client:
        await client.send_message(type="config")
        await client.wait_for("ready")
        workers = small_gateway.workers()
        small_gateway.process.send_signal(signal.SIGTERM)
        assert (await client.wait_for("closed", timeout=10))["reason"] == "server_shutdown"
    assert small_gateway.process.wait(10) == 0
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
