"""`POST /v1/audio/speech` with voices of this machine: formats, content, errors, cancellation, crashes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import soundfile

from svc.client.aio import AsyncClient
from svc.client.client import Client
from svc.errors import GatewayFailed, InvalidRequest
from tests import fork_server
from tests.processes import environment_of
from tests.speech import material
from tests.speech.gateway import KEY, Gateway, run_gateway

OTHER_KEY = "test-key-of-another"
ESPEAK, PIPER = "espeak-en-us", "piper-joe-en-us"
FOX = "The quick brown fox jumps over the lazy dog."
TWO_SENTENCES = f"Hello world, this is a test. {FOX}"
LONGEST = ("All work and no play makes Jack a dull boy. " * 100)[:4096]
PCM_BYTES_PER_SECOND = 48_000


@pytest.fixture(scope="module")
def voices() -> Path:
    return material.make_voices()


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory, voices: Path) -> Iterator[Gateway]:
    with run_gateway(tmp_path_factory.mktemp("speaker"), SVC_REGISTRY_ROOT=str(voices)) as running:
        yield running


def post(gateway: Gateway, *, key: str = KEY, **fields: Any) -> httpx2.Response:
    body = {"model": ESPEAK, "input": FOX, "voice": "alloy", **fields}
    headers = {"authorization": f"Bearer {key}"}
    url = f"{gateway.address}/v1/audio/speech"
    return httpx2.post(url, json=body, headers=headers, timeout=60, trust_env=False)


def pcm_seconds(gateway: Gateway, **fields: Any) -> float:
    response = post(gateway, response_format="pcm", **fields)
    assert (response.status_code, response.headers["content-type"]) == (200, "audio/pcm")
    return len(response.content) / PCM_BYTES_PER_SECOND


def voice_process(gateway: Gateway) -> int:
    """Return the id of the process that speaks, or 0."""
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == gateway.process.pid and b"svc.speech.synthesis.server" in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response_format", "content_type", "container"),
    [
        ("wav", "audio/wav", "WAV"),
        ("flac", "audio/flac", "FLAC"),
        ("mp3", "audio/mpeg", "MP3"),
        ("opus", "audio/ogg", "OGG"),
        (None, "audio/mpeg", "MP3"),
    ],
)
@pytest.mark.parametrize("text", ["Hello.", TWO_SENTENCES])
def test_speech_format_has_right_duration(
    speaker: Gateway, text: str, response_format: str | None, content_type: str, container: str
) -> None:
    expected = pcm_seconds(speaker, input=text)
    response = post(speaker, input=text, response_format=response_format)
    assert (response.status_code, response.headers["content-type"]) == (200, content_type)
    with soundfile.SoundFile(io.BytesIO(response.content)) as file:
        samples = file.read()
        assert (file.format, file.samplerate, file.channels) == (container, 24000, 1)
    assert len(samples) / 24000 == pytest.approx(expected, abs=0.15)
    assert abs(samples).max() > 0.05


def test_speech_wav_of_short_text_states_its_length(speaker: Gateway) -> None:
    response = post(speaker, input="Hello.", response_format="wav")
    with wave.open(io.BytesIO(response.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        assert len(response.content) == 44 + 2 * file.getnframes()


def test_speech_openai_client_streams_natural_voice_that_is_understood(speaker: Gateway) -> None:
    plain = openai.DefaultHttpxClient(verify=False)
    with openai.OpenAI(base_url=f"{speaker.address}/v1", api_key=KEY, http_client=plain) as client:
        with client.audio.speech.with_streaming_response.create(
            model=PIPER, input=TWO_SENTENCES, voice="alloy", response_format="wav"
        ) as response:
            chunks = [chunk for chunk in response.iter_bytes() if chunk]
        assert len(chunks) > 1
        text = client.audio.transcriptions.create(model="moonshine-tiny-en", file=("a.wav", b"".join(chunks))).text
    assert material.count_word_errors(TWO_SENTENCES, text) <= 1


def test_speech_models_are_listed_with_their_kind(speaker: Gateway) -> None:
    listed = httpx2.get(
        f"{speaker.address}/v1/models", headers={"authorization": f"Bearer {KEY}"}, trust_env=False
    ).json()["data"]
    assert {row["id"]: row.get("kind") for row in listed} == {
        ESPEAK: "speech",
        PIPER: "speech",
        "moonshine-tiny-en": "transcription",
    }


def test_speech_voice_and_speed_change_the_audio(speaker: Gateway) -> None:
    default = pcm_seconds(speaker)
    assert pcm_seconds(speaker, voice="no-such-voice") == pytest.approx(default, abs=0.01)
    assert pcm_seconds(speaker, voice=None) == pytest.approx(default, abs=0.01)
    assert abs(pcm_seconds(speaker, voice="en-gb-scotland") - default) > 0.05
    assert pcm_seconds(speaker, speed=2) < 0.7 * pcm_seconds(speaker) < 0.6 * pcm_seconds(speaker, speed=0.5)


def test_speech_instructions_are_dropped_and_named(speaker: Gateway) -> None:
    response = post(speaker, instructions="Whisper.")
    assert (response.status_code, response.headers["x-svc-dropped"]) == (200, "instructions")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "aac"}, "response_format"),
        ({"stream_format": "sse"}, "stream_format"),
        ({"input": "..."}, "input"),
        ({"input": ""}, "input"),
        ({"speed": 5}, "speed"),
    ],
)
def test_speech_value_that_voices_lack_returns_400(speaker: Gateway, fields: dict[str, Any], param: str) -> None:
    response = post(speaker, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_request", param)
    assert param in error["message"]


def test_speech_recognition_model_and_voice_name_their_endpoints(speaker: Gateway) -> None:
    recognition = post(speaker, model="moonshine-tiny-en").json()["error"]
    assert "POST /v1/audio/transcriptions" in recognition["message"]
    headers = {"authorization": f"Bearer {KEY}"}
    files = {"file": ("a.wav", post(speaker, response_format="wav").content)}
    upload = httpx2.post(
        f"{speaker.address}/v1/audio/transcriptions",
        data={"model": ESPEAK},
        files=files,
        headers=headers,
        trust_env=False,
    )
    assert "POST /v1/audio/speech" in upload.json()["error"]["message"]


@pytest.fixture(scope="module")
def two_voices_at_a_time(tmp_path_factory: pytest.TempPathFactory, voices: Path) -> Iterator[Gateway]:
    config = "[speech]\nmax_syntheses = 2\nmax_queue = 4\ndefault_voice = 'none'\n"
    environ = {"SVC_REGISTRY_ROOT": str(voices), "SVC_API_KEYS": f"{KEY},{OTHER_KEY}"}
    with run_gateway(tmp_path_factory.mktemp("queue"), config, **environ) as running:
        yield running


@contextlib.contextmanager
def speaking(gateway: Gateway) -> Iterator[httpx2.Response]:
    """Have the longest text spoken, which takes half a minute, until the context ends."""
    body = {"model": PIPER, "input": LONGEST, "voice": "alloy", "response_format": "wav"}
    headers, url = {"authorization": f"Bearer {KEY}"}, f"{gateway.address}/v1/audio/speech"
    with (
        httpx2.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", url, json=body, headers=headers) as response,
    ):
        chunks = response.iter_raw(1000)  # without a reference to it, the response would be closed
        assert len(next(chunks)) > 0
        yield response


@pytest.mark.slow
def test_speech_key_with_long_texts_delays_no_other_key_and_gets_429(two_voices_at_a_time: Gateway) -> None:
    gateway = two_voices_at_a_time
    with speaking(gateway) as long, ThreadPoolExecutor(2) as threads:
        requests = {threads.submit(post, gateway) for _ in range(2)}  # the key leaves one of the two voices to others
        (refused,), (waiting,) = wait(requests, 30, FIRST_COMPLETED)
        response = refused.result()
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (429, "rate_limit_exceeded")
        assert "(queue)" in error["message"]
        assert int(response.headers["retry-after"]) >= 1
        assert "x-should-retry" not in response.headers
        assert post(gateway, key=OTHER_KEY).status_code == 200
        assert not waiting.done()
        long.close()
        assert waiting.result(30).status_code == 200


@pytest.mark.slow
def test_speech_disconnect_frees_the_voice(two_voices_at_a_time: Gateway) -> None:
    for _ in range(4):  # more than can be in the queue
        with speaking(two_voices_at_a_time):
            pass
    assert post(two_voices_at_a_time).status_code == 200


@pytest.mark.slow
def test_speech_crash_of_the_voice_is_reported_and_recovered(tmp_path: Path, voices: Path) -> None:
    config = "[speech]\ndefault_voice = 'none'\n[routing]\nretries = 0\n"
    with run_gateway(tmp_path, config, SVC_REGISTRY_ROOT=str(voices)) as gateway:
        assert voice_process(gateway) == 0  # nothing was spoken yet
        with Client(gateway_url=f"{gateway.address}/v1", api_key=KEY, retries=0) as client:
            stream = client.speak(LONGEST, model=PIPER, format="pcm", stream=True)
            assert len(next(stream)) > 0
            assert KEY not in environment_of(voice_process(gateway)).values()
            os.kill(voice_process(gateway), signal.SIGKILL)
            with pytest.raises(GatewayFailed, match="interrupted"):
                list(stream)
        assert post(gateway).status_code == 200
        assert "Traceback" not in (gateway.log or Path()).read_text()


def test_speech_voice_that_is_added_is_offered_without_restart(tmp_path: Path) -> None:
    root = tmp_path / "registry"
    with run_gateway(tmp_path, SVC_REGISTRY_ROOT=str(root)) as gateway:
        assert post(gateway).status_code == 404
        material.add_bundle(ESPEAK, root)
        deadline = time.monotonic() + 20
        while (response := post(gateway)).status_code == 404:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert response.status_code == 200


def test_speech_default_voice_that_is_added_is_loaded_without_a_request(tmp_path: Path) -> None:
    root = tmp_path / "registry"
    config = f"[speech]\ndefault_voice = '{ESPEAK}'\n"
    with run_gateway(tmp_path, config, SVC_REGISTRY_ROOT=str(root)) as gateway:
        assert voice_process(gateway) == 0
        material.add_bundle(ESPEAK, root)
        deadline = time.monotonic() + 30
        while voice_process(gateway) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert post(gateway).status_code == 200


def test_sdk_speak_returns_complete_audio(speaker: Gateway) -> None:
    with Client(gateway_url=f"{speaker.address}/v1", api_key=KEY) as client:
        audio = client.speak(TWO_SENTENCES, model=ESPEAK)
        with wave.open(io.BytesIO(audio)) as file:  # the length is right, although the gateway streams
            assert file.getnframes() == (len(audio) - 44) // 2
        streamed = b"".join(client.speak(TWO_SENTENCES, model=ESPEAK, format="pcm", stream=True))
        assert len(streamed) == pytest.approx(len(audio) - 44, abs=1000)  # espeak-ng varies by some samples
        assert client.speak("Hi.", format="pcm") != client.speak("Hi.", format="pcm", model=ESPEAK)  # PIPER is first
        fast = client.speak("Hello there.", model=ESPEAK, format="pcm", speed=2)
        assert len(fast) < len(client.speak("Hello there.", model=ESPEAK, format="pcm"))
        with pytest.raises(InvalidRequest) as caught:
            client.speak("Hi", format="aac", model=ESPEAK)
        assert caught.value.param == "response_format"


async def test_async_sdk_speak_returns_audio(speaker: Gateway) -> None:
    expected = pcm_seconds(speaker)
    async with AsyncClient(gateway_url=f"{speaker.address}/v1", api_key=KEY) as client:
        audio = await client.speak(FOX, model=ESPEAK)
        assert (len(audio) - 44) / PCM_BYTES_PER_SECOND == pytest.approx(expected, abs=0.01)
        async with await client.speak(FOX, model=ESPEAK, format="pcm", stream=True) as stream:
            streamed = b"".join([chunk async for chunk in stream])
        assert len(streamed) / PCM_BYTES_PER_SECOND == pytest.approx(expected, abs=0.01)


def speak(*arguments: str, cwd: Path, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `svc speak` with a home that has no gateway."""
    own = {"SVC_HOME": str(cwd / "home"), "SVC_API_KEY": KEY}
    variables = {**os.environ, **own, **environ}
    if not stdin:
        return fork_server.run_command(["speak", *arguments], variables, cwd)
    command = [sys.executable, "-m", "svc", "speak", *arguments]
    return subprocess.run(
        command, input=stdin, env=variables, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("suffix", ["wav", "mp3", "opus", "flac"])
def test_speak_command_writes_file_through_gateway(speaker: Gateway, tmp_path: Path, suffix: str) -> None:
    environ = {"SVC_GATEWAY_URL": f"{speaker.address}/v1"}
    done = speak(TWO_SENTENCES, "-o", f"out.{suffix}", "--model", ESPEAK, "--json", cwd=tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["route"], printed["format"], printed["model"]) == ("gateway", suffix, ESPEAK)
    assert soundfile.info(tmp_path / f"out.{suffix}").duration > 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{suffix}"]


def test_speak_command_speaks_without_gateway(voices: Path, tmp_path: Path) -> None:
    registry = {"SVC_REGISTRY_ROOT": str(voices)}
    done = speak("-", "-o", "out.wav", "--model", ESPEAK, "--json", cwd=tmp_path, stdin=f"{FOX}\n", **registry)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["route"] == "device"
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert file.getnframes() / file.getframerate() > 1.5
    command = [sys.executable, "-m", "svc", "speak", "Hi", "-o", "-", "--model", ESPEAK]
    environ = {**os.environ, "SVC_HOME": str(tmp_path), **registry}
    written = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=True).stdout
    assert soundfile.info(io.BytesIO(written)).duration > 0.2


@pytest.mark.parametrize("voice", ["en-gb", "fr-fr"])
def test_speak_command_voice_whose_file_has_another_name_speaks(voices: Path, tmp_path: Path, voice: str) -> None:
    registry = {"SVC_REGISTRY_ROOT": str(voices)}
    done = speak(FOX, "-o", "out.wav", "--model", ESPEAK, "--voice", voice, cwd=tmp_path, **registry)
    assert done.returncode == 0, done.stderr
    assert soundfile.info(tmp_path / "out.wav").duration > 1.5


def test_speak_command_plays_with_installed_player(voices: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    player = folder / "aplay"
    player.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/played\n')
    player.chmod(0o755)
    environ = {"SVC_REGISTRY_ROOT": str(voices), "PATH": f"{folder}:/usr/bin:/bin"}
    done = speak("Hello.", "--model", ESPEAK, cwd=tmp_path, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "played").stat().st_size > PCM_BYTES_PER_SECOND / 4
    player.write_text("#!/bin/sh\necho no sound card >&2\nexit 1\n")
    failed = speak("Hello.", "--model", ESPEAK, cwd=tmp_path, **environ)
    assert (failed.returncode, "no sound card" in failed.stderr) == (1, True)
    player.unlink()
    without = speak("Hello.", "--model", ESPEAK, cwd=tmp_path, **{**environ, "PATH": str(folder)})
    assert (without.returncode, "-o FILE" in without.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["Hi", "-o", "x.txt"], 2, "suffix"),
        (["Hi", "-o", "x.aac"], 1, "response_format"),
        (["Hi", "-o", "x.wav", "--speed", "5"], 2, "--speed"),
        (["Hi", "-o", "x.wav", "--model", "nobody"], 1, "nobody"),
        (["  ", "-o", "x.wav"], 2, "empty"),
        (["x" * 4097, "-o", "x.wav"], 2, "4,096"),
        (["Hi", "-o", "missing/x.wav"], 2, "missing"),
    ],
)
def test_speak_command_wrong_use_is_one_line(
    voices: Path, tmp_path: Path, arguments: list[str], status: int, part: str
) -> None:
    done = speak(*arguments, cwd=tmp_path, SVC_REGISTRY_ROOT=str(voices))
    assert (done.returncode, done.stdout) == (status, "")
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*x.*"))


def test_speak_command_interrupt_leaves_no_file(speaker: Gateway, tmp_path: Path) -> None:
    environ = {**os.environ, "SVC_GATEWAY_URL": f"{speaker.address}/v1", "SVC_API_KEY": KEY}
    command = [sys.executable, "-m", "svc", "speak", LONGEST, "--model", PIPER, "-o", "out.wav"]
    process = subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in tmp_path.glob(".out.wav.*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
    assert not list(tmp_path.iterdir())


def test_speech_alias_of_a_voice_speaks(tmp_path: Path, voices: Path) -> None:
    config = f"[speech]\ndefault_voice = 'none'\n[[aliases]]\nname = 'tts-1'\nmodel = '{ESPEAK}'\n"
    with run_gateway(tmp_path, config, SVC_REGISTRY_ROOT=str(voices)) as gateway:
        assert post(gateway, model="tts-1").headers["x-svc-provider"] == "local"
