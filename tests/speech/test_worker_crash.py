"""`kill -9` of the speech worker during sessions and uploads: client errors and ledger entries."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx2
import pytest

from tests.processes import child, children, parent_of
from tests.speech import material
from tests.speech.accounts import create_key, wait_for_entries
from tests.speech.gateway import Gateway, LiveClient, check_stable_prefixes, session
from tests.speech.gateway import run_gateway as run
from tests.speech.test_openai_uploads import long_wav

UPLOAD = "/v1/audio/transcriptions"


async def upload(gateway: Gateway, headers: dict[str, str], data: bytes) -> httpx2.Response:
    async with httpx2.AsyncClient(headers=headers, timeout=90) as client:
        return await client.post(gateway.address + UPLOAD, files={"file": ("a.wav", data)})


async def metric(gateway: Gateway, name: str) -> float:
    async with httpx2.AsyncClient() as client:
        page = (await client.get(gateway.address + "/metrics")).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))


async def wait_for_upload(gateway: Gateway) -> None:
    """Wait until an upload's form is read, and one more second until the worker has it."""
    async with asyncio.timeout(30):
        while not await metric(gateway, 'svc_speech_requests_total{kind="upload"}'):
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)


async def wait_for_stable_partial(client: LiveClient) -> None:
    """Wait for a stable partial."""
    while not (await client.wait_for("partial"))["is_stable"]:
        pass


@pytest.mark.slow
async def test_killed_worker_sessions_continue_and_upload_returns_500(
    tmp_path: Path, model: Path, clips: dict[str, Path]
):
    audio = material.read_pcm(clips["beckett"])
    with run(tmp_path) as gateway:
        live, sent = create_key(tmp_path, "live"), create_key(tmp_path, "sent")
        async with (
            session(gateway, headers=live) as speaking,
            session(gateway, headers=live) as flushed,
            session(gateway, headers=live) as silent,
        ):
            await silent.send_message(type="config")
            await silent.wait_for("ready")
            await speaking.send_audio(audio)
            await wait_for_stable_partial(speaking)
            await flushed.send_audio(audio * 6)
            await wait_for_stable_partial(flushed)
            (worker,) = gateway.workers()
            os.kill(worker, signal.SIGSTOP)  # the worker answers nothing more before it is killed
            await flushed.send_message(type="flush")
            uploading = asyncio.create_task(upload(gateway, sent, long_wav(clips, 5)))
            await wait_for_upload(gateway)
            os.kill(worker, signal.SIGKILL)

            for client in (speaking, flushed, silent):
                assert (await client.wait_for("error"))["code"] == "asr_error"
            final_after_crash = await flushed.wait_for("final")  # with the stable text
            assert final_after_crash["text"]
            failed = await uploading
            assert (failed.status_code, failed.json()["error"]["code"]) == (500, "asr_error")
            assert "Try again" in failed.json()["error"]["message"]

            started_at = time.monotonic()
            retried = await upload(gateway, sent, clips["en-hello-world"].read_bytes())
            assert (retried.status_code, material.words(retried.json()["text"])) == (200, ["hello", "world"])
            assert time.monotonic() - started_at < 30  # the model's loading time
            for client in (speaking, flushed, silent):
                await client.send_audio(audio)
                await client.send_message(type="flush")
                final = await client.wait_for("final")
                assert "fail better" in final["text"].lower()
                check_stable_prefixes(client.received)
                await client.send_message(type="close")
                await client.wait_for("closed")
            (replacement,) = gateway.workers()
            assert replacement != worker
            assert await metric(gateway, "svc_speech_workers") == 1
            assert await metric(gateway, "svc_speech_workers_lost_total") == 1
            assert parent_of(worker) != gateway.process.pid  # the worker is not a zombie
        assert [entry["status"] for entry in await wait_for_entries(tmp_path, "live", 3)] == ["ok"] * 3
        first, second = await wait_for_entries(tmp_path, "sent", 2)
        assert (first["status"], first["http_status"], first["code"]) == ("error", 500, "asr_error")
        assert (first["model"], second["status"]) == ("moonshine-tiny-en", "ok")
    assert children(gateway.process.pid, "svc.speech.worker") == []
    assert gateway.log is not None
    assert "Traceback" not in gateway.log.read_text()


async def test_killed_worker_during_model_load_is_error_and_next_config_succeeds(tmp_path: Path, model: Path):
    with run(tmp_path) as gateway:
        async with session(gateway) as client:
            await client.send_message(type="config")
            os.kill(child(gateway.process.pid, "svc.speech.worker"), signal.SIGKILL)
            first = await client.wait_for_any("ready", "error")
            if first["type"] == "error":  # otherwise the model was already loaded
                assert (first["code"], "its process exited" in first["message"]) == ("asr_error", True)
            await client.send_message(type="config")
            await client.wait_for("ready")
