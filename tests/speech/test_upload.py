"""The upload endpoint: file formats, damaged files and response formats."""

import io
import json
import wave
from pathlib import Path
from typing import Any

import av
import httpx2
import numpy as np
import openai
import pytest
import soundfile

from tests.speech import material
from tests.speech.gateway import KEY, Gateway
from tests.speech.gateway import run_gateway as run

PATH = "/v1/audio/transcriptions"
KINDS = ["wav", "flac", "mp3", "ogg-vorbis", "ogg-opus", "m4a", "webm"]


def encoded(pcm: bytes, kind: str) -> tuple[str, bytes]:
    """Encode 16 kHz mono samples in a file format and return file name and data."""
    samples = np.frombuffer(pcm, "<i2")
    out = io.BytesIO()
    if kind == "wav":
        with wave.open(out, "wb") as file:
            file.setparams((2, 2, 16000, 0, "NONE", ""))
            file.writeframes(samples.repeat(2).tobytes())
    elif kind in ("m4a", "webm"):
        with av.open(out, "w", format={"m4a": "mp4", "webm": "webm"}[kind]) as container:
            stream: Any = container.add_stream({"m4a": "aac", "webm": "libopus"}[kind], rate=16000, layout="mono")
            frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate = 16000
            resampler = av.AudioResampler(format=stream.format.name, layout="mono", rate=stream.rate)
            for resampled in [*resampler.resample(frame), *resampler.resample(None)]:
                container.mux(stream.encode(resampled))
            container.mux(stream.encode(None))
    else:
        form, subtype = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III")}.get(
            kind, ("OGG", kind.removeprefix("ogg-").upper())
        )
        soundfile.write(out, samples, 16000, format=form, subtype=subtype)
    return f"speech.{kind.partition('-')[0]}", out.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_upload_each_file_format_is_transcribed(gateway: Gateway, clips: dict[str, Path], kind: str):
    file = encoded(material.read_pcm(clips["en-counting"]), kind)
    with openai.OpenAI(base_url=gateway.address + "/v1", api_key=KEY, max_retries=0) as client:
        transcription = client.audio.transcriptions.create(
            model="moonshine-tiny-en", file=file, response_format="verbose_json", language="en"
        )
    assert material.count_word_errors(material.TEXTS["en-counting"], transcription.text) <= 1
    assert abs(float(transcription.duration) - len(material.read_pcm(clips["en-counting"])) / 32000) < 0.2
    assert transcription.segments


async def post(gateway: Gateway, data: bytes, name: str = "a.bin", **form: str) -> httpx2.Response:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        return await client.post(gateway.address + PATH, data=form, files={"file": (name, data)})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flac", "mp3", "ogg-opus", "m4a", "webm"])
async def test_upload_damaged_file_is_transcribed_or_returns_400(gateway: Gateway, clips: dict[str, Path], kind: str):
    _, whole = encoded(material.read_pcm(clips["en-counting"]), kind)
    responses = [await post(gateway, data) for data in (whole[: len(whole) // 2], whole[:40], whole[:64] + bytes(5000))]
    for response in responses:  # audio that can be decoded is transcribed
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            assert response.json()["error"]["code"] == "invalid_request"
    assert responses[1].status_code == 400
    if kind != "m4a":  # its index is at the end
        assert "damaged after" in responses[0].headers["x-svc-warning"]
        assert "x-svc-warning" not in (await post(gateway, whole)).headers


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no sound",
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/secret.ts\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"fLaC" + bytes(1000),
        b"\x1a\x45\xdf\xa3" + b"#EXTM3U\nhttp://127.0.0.1:1/\n",
        b"\0\0\0\x18ftypM4A " + bytes(1000),
        b"\xff\xfb" * 2000,
    ],
)
async def test_upload_not_audio_returns_400_and_lists_formats(gateway: Gateway, data: bytes):
    response = await post(gateway, data)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    if not data:
        assert response.json()["error"]["message"] == "The file is empty."
    elif b"EXTM3U" in data[:10]:
        assert "wav, mp3, flac, ogg, m4a, mp4, webm" in response.json()["error"]["message"]


@pytest.mark.parametrize("rate", [1, 655_350])
async def test_upload_unsupported_sample_rate_returns_400(gateway: Gateway, rate: int):
    out = io.BytesIO()
    soundfile.write(out, np.zeros(2000, np.int16), rate, format="FLAC")
    response = await post(gateway, out.getvalue())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert f"{rate} Hz" in response.json()["error"]["message"]


async def test_upload_client_disconnect_frees_its_slot(gateway: Gateway, clips: dict[str, Path]):
    long_pcm = io.BytesIO()
    with wave.open(long_pcm, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(material.read_pcm(clips["two-cities"]) * 6)
    for _ in range(10):  # more than the session limit
        with pytest.raises(httpx2.ReadTimeout):
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=0.15) as client:
                await client.post(gateway.address + PATH, files={"file": ("long.wav", long_pcm.getvalue())})
    response = await post(gateway, clips["en-hello-world"].read_bytes(), response_format="text")
    assert material.words(response.text) == ["hello", "world"]
    assert gateway.log is not None
    assert "Traceback" not in gateway.log.read_text()


async def test_upload_each_response_format_is_returned(gateway: Gateway, clips: dict[str, Path]):
    data = clips["en-counting"].read_bytes()
    formats = ("json", "text", "verbose_json", "srt", "vtt")
    responses = {format: await post(gateway, data, response_format=format) for format in formats}
    assert all(response.status_code == 200 and "seven" in response.text for response in responses.values())
    assert json.loads(responses["json"].text)["usage"]["type"] == "duration"
    assert responses["srt"].text.startswith("1\n00:00:0")
    assert responses["vtt"].text.startswith("WEBVTT\n\n00:00:0")
    assert (await post(gateway, data, response_format="xml")).status_code == 400
    assert (await post(gateway, data, model="none")).json()["error"]["code"] == "model_not_found"
    cut = await post(gateway, data[:-40_000])
    assert "truncated" in cut.headers["x-svc-warning"]


async def test_upload_two_hours_in_small_file_returns_400(gateway: Gateway):
    out = io.BytesIO()
    soundfile.write(out, np.zeros(2 * 3600 * 8000, np.int16), 8000, format="FLAC")
    assert len(out.getvalue()) < 1_000_000
    response = await post(gateway, out.getvalue())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert "max_upload_seconds" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "file"


@pytest.mark.slow
async def test_upload_longer_than_setting_returns_400(tmp_path: Path, model: Path, clips: dict[str, Path]):
    long_pcm = material.read_pcm(clips["two-cities"])
    silent = bytearray(encoded(long_pcm, "flac")[1])
    silent[18:26] = (int.from_bytes(silent[18:26], "big") >> 36 << 36).to_bytes(8, "big")  # the length is unknown
    with run(tmp_path, "[speech]\nmax_upload_seconds = 4\n") as small:
        for data in (clips["two-cities"].read_bytes(), encoded(long_pcm, "ogg-opus")[1], bytes(silent)):
            response = await post(small, data)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request"), response.text
            assert "longer than 4 seconds" in response.json()["error"]["message"]
        response = await post(small, clips["en-hello-world"].read_bytes(), response_format="text")
        assert material.words(response.text) == ["hello", "world"]
