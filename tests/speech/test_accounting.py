"""Rate limits, ledger entries and metrics of speech requests."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import websockets

from tests.speech import material
from tests.speech.accounts import create_key, wait_for_entries
from tests.speech.gateway import KEY, Gateway, session
from tests.speech.gateway import run_gateway as run

STREAM, UPLOAD = "/v1/audio/transcriptions/stream", "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accounting")


@pytest.fixture(scope="module")
def accounting_gateway(home: Path, model: Path) -> Iterator[Gateway]:
    with run(home, PROVIDER_A_API_KEY="unused") as running:
        yield running


async def read_metrics(gateway: Gateway) -> dict[str, float]:
    async with httpx2.AsyncClient() as client:
        page = (await client.get(gateway.address + "/metrics")).text
    rows = [line.rpartition(" ") for line in page.splitlines() if line.startswith(("svc_speech", "svc_request"))]
    return {name: float(value) for name, _, value in rows}


async def upload(gateway: Gateway, headers: dict[str, str], data: bytes, **form: str) -> httpx2.Response:
    async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
        return await client.post(gateway.address + UPLOAD, data=form, files={"file": ("a.wav", data)})


async def test_speech_each_session_and_upload_has_one_ledger_entry(
    accounting_gateway: Gateway, home: Path, clips: dict[str, Path]
):
    key = create_key(home, "counted", "--tag", "team=ears")
    hello = clips["en-hello-world"]
    async with session(accounting_gateway, headers=key) as client:
        request_id = client.socket.response.headers["x-request-id"]
        await client.send_audio(material.read_pcm(hello))
        await client.send_message(type="flush")
        await client.wait_for("final")
        await client.send_message(type="flush")
        await client.send_message(type="close")
        await client.wait_for("closed")
    async with session(accounting_gateway, headers={**key, "x-request-id": "mine"}) as client:
        await client.send_message(type="config")
        await client.wait_for("ready")
        client.socket.transport.abort()
    response = await upload(accounting_gateway, key, hello.read_bytes())
    assert (await upload(accounting_gateway, key, b"no sound")).status_code == 400
    async with session(accounting_gateway, headers=key) as client:  # no model was loaded
        await client.send_message(type="config", model="none")
        await client.wait_for("error")
    ok, disconnected, uploaded = await wait_for_entries(home, "counted", 3)
    assert (ok["request_id"], ok["endpoint"], ok["model"], ok["provider"]) == (
        request_id,
        STREAM,
        "moonshine-tiny-en",
        "local",
    )
    assert (ok["status"], ok["http_status"], ok["attempts"], ok["tags"]) == ("ok", 101, 1, {"team": "ears"})
    assert (ok["model_asked"], ok["prompt_tokens"], ok["cost_usd"]) == ("moonshine-tiny-en", None, None)
    assert 0 < ok["ttfb_ms"] < ok["latency_ms"]
    assert (disconnected["status"], disconnected["client_request_id"]) == ("client_closed", "mine")
    assert (uploaded["request_id"], uploaded["endpoint"]) == (response.headers["x-request-id"], UPLOAD)
    assert (uploaded["status"], uploaded["http_status"]) == ("ok", 200)


async def test_speech_sessions_and_uploads_count_toward_rpm(
    accounting_gateway: Gateway, home: Path, clips: dict[str, Path]
):
    key = create_key(home, "slow", "--rpm", "2")
    response = await upload(accounting_gateway, key, clips["en-hello-world"].read_bytes())
    assert response.headers["x-ratelimit-remaining-requests"] == "1"
    async with session(accounting_gateway, headers=key) as client:
        await client.send_message(type="config")
        await client.wait_for("ready")
    async with session(accounting_gateway, headers=key) as client:
        error = json.loads(await client.socket.recv())
        assert (error["type"], error["code"]) == ("error", "rate_limit_exceeded")
        assert "2 requests per minute (rpm)" in error["message"]
        with pytest.raises(websockets.ConnectionClosed):
            await client.socket.recv()
        assert client.socket.close_code == 1013
    rejected = await upload(accounting_gateway, key, clips["en-hello-world"].read_bytes())
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(rejected.headers["retry-after"]) >= 1


async def test_speech_malformed_uploads_count_toward_rpm(accounting_gateway: Gateway, home: Path):
    key = create_key(home, "careless", "--rpm", "2")
    responses = [await upload(accounting_gateway, key, b"no sound", response_format="tablets") for _ in range(3)]
    assert [each.status_code for each in responses] == [400, 400, 429]


async def test_speech_open_session_counts_toward_concurrency(
    accounting_gateway: Gateway, home: Path, clips: dict[str, Path]
):
    key = create_key(home, "one at a time", "--concurrency", "1", "--budget-usd", "1", "--tpm", "10")
    for _ in range(2):
        async with session(accounting_gateway, headers=key) as client:
            await client.send_message(type="config")
            await client.wait_for("ready")
            assert (await upload(accounting_gateway, key, clips["en-hello-world"].read_bytes())).status_code == 429
            await client.send_message(type="close")
            await client.wait_for("closed")


async def test_speech_key_without_model_or_scope_is_rejected(
    accounting_gateway: Gateway, home: Path, clips: dict[str, Path]
):
    async with session(accounting_gateway, headers=create_key(home, "other model", "--models", "gpt-4o")) as client:
        await client.send_message(type="config")
        assert (await client.wait_for("error"))["code"] == "model_not_found"
    with pytest.raises(websockets.InvalidStatus) as refusal:
        async with session(accounting_gateway, headers=create_key(home, "chat alone", "--scope", "chat")):
            pass
    assert refusal.value.response.status_code == 403


async def test_speech_model_of_another_kind_error_names_endpoint(accounting_gateway: Gateway, clips: dict[str, Path]):
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        body = {"model": "moonshine-tiny-en", "messages": [{"role": "user", "content": "Hi"}]}
        response = await client.post(accounting_gateway.address + "/v1/chat/completions", json=body)
    assert response.status_code == 404
    assert "POST /v1/audio/transcriptions" in response.json()["error"]["message"]
    response = await upload(
        accounting_gateway, {"Authorization": f"Bearer {KEY}"}, clips["en-hello-world"].read_bytes(), model="gpt-4o"
    )
    assert response.status_code == 404
    assert "POST /v1/chat/completions" in response.json()["error"]["message"]


async def test_speech_metrics_count_sessions_uploads_errors_and_audio_seconds(
    accounting_gateway: Gateway, clips: dict[str, Path]
):
    before = await read_metrics(accounting_gateway)
    header = {"Authorization": f"Bearer {KEY}"}
    audio = material.read_pcm(clips["en-counting"])
    async with session(accounting_gateway) as client:
        await client.send_message(type="config", model="none")
        await client.wait_for("error")
        await client.send_message(type="config")
        await client.wait_for("ready")
        during = await read_metrics(accounting_gateway)
        await client.send_audio(audio)
        await client.send_message(type="flush")
        await client.wait_for("final")
    await upload(accounting_gateway, header, clips["en-hello-world"].read_bytes())
    await upload(accounting_gateway, header, b"no sound")
    for _ in range(50):
        after = await read_metrics(accounting_gateway)
        if not after["svc_speech_sessions"]:
            break
        await asyncio.sleep(0.05)
    assert (before["svc_speech_sessions"], during["svc_speech_sessions"], after["svc_speech_sessions"]) == (0, 1, 0)
    assert during["svc_speech_workers"] == 1

    def increase(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert increase('svc_speech_requests_total{kind="stream"}') == 1
    assert increase('svc_speech_requests_total{kind="upload"}') == 2
    assert increase('svc_speech_errors_total{code="model_not_found"}') == 1
    assert increase('svc_speech_errors_total{code="invalid_request"}') == 1
    timed = 'svc_request_seconds_count{provider="local",model="moonshine-tiny-en"}'
    assert increase(timed) == 1  # the upload only: the client decides how long a session lasts
    hello = len(material.read_pcm(clips["en-hello-world"])) / 32000
    assert abs(increase("svc_speech_audio_seconds_total") - len(audio) / 32000 - hello) < 0.1
