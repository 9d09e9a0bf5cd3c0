"""Uploads through openai-python: segments, granularities and stream events."""

import asyncio
import io
import json
import os
import signal
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.audio import TranscriptionStreamEvent, TranscriptionVerbose

import svc
from svc.speech import transcript_formats
from svc.speech.ipc import FinalTranscript, TranscriptSegment
from tests.speech import material
from tests.speech.accounts import create_key, wait_for_entries
from tests.speech.gateway import KEY, Gateway
from tests.speech.gateway import run_gateway as run

MODEL = "moonshine-tiny-en"


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.address + "/v1", api_key=KEY, max_retries=0) as client:
        yield client


def long_wav(clips: dict[str, Path], times: int) -> bytes:
    """Return a WAV file with `times` repetitions of 48 s of speech."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(material.read_pcm(clips["two-cities"]) * times)
    return out.getvalue()


async def collect(stream: openai.AsyncStream[TranscriptionStreamEvent], into: list[str]) -> None:
    """Append the types of the events to `into`, also when the stream fails later."""
    async for event in stream:
        into.append(event.type)


@pytest.mark.slow
def test_upload_verbose_json_segments_match_openai_schema(client: openai.OpenAI, clips: dict[str, Path]):
    raw = client.audio.transcriptions.with_raw_response.create(
        model=MODEL,
        file=clips["two-cities"],
        response_format="verbose_json",
        language="en",
        timestamp_granularities=["segment"],
    )
    answer = TranscriptionVerbose.model_validate_json(raw.content, strict=True)
    assert answer.segments is not None
    assert len(answer.segments) > 2
    assert answer.usage is not None
    assert answer.usage.seconds == round(answer.duration)
    for number, segment in enumerate(answer.segments):
        assert (segment.id, segment.seek) == (number, round(segment.start * 1000) // 10)
        data = segment.text.encode()
        assert segment.compression_ratio == pytest.approx(len(data) / len(zlib.compress(data)))
        constants = (segment.tokens, segment.temperature, segment.avg_logprob, segment.no_speech_prob)
        assert constants == ([], 0.0, 0.0, 0.0)  # the engine reports none


@pytest.mark.parametrize("granularities", [["word"], ["segment", "word"], ["sentence"]])
def test_upload_unsupported_granularity_is_rejected(
    client: openai.OpenAI, clips: dict[str, Path], granularities: list[str]
):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.audio.transcriptions.create(
            model=MODEL,
            file=clips["en-hello-world"],
            response_format="verbose_json",
            timestamp_granularities=granularities,  # type: ignore[arg-type]
        )
    assert (refusal.value.code, refusal.value.param) == ("invalid_request", "timestamp_granularities")


def test_upload_words_without_verbose_json_are_rejected(client: openai.OpenAI, clips: dict[str, Path]):
    with pytest.raises(openai.BadRequestError, match="verbose_json"):
        client.audio.transcriptions.create(
            model=MODEL, file=clips["en-hello-world"], response_format="json", timestamp_granularities=["word"]
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"known_speaker_names": ["agent"]}, "known_speaker_names"),
        ({"extra_body": {"temperature": "warm"}}, "temperature"),
        ({"temperature": 2}, "temperature"),
    ],
)
def test_upload_field_that_cannot_be_honoured_is_rejected(
    client: openai.OpenAI, clips: dict[str, Path], fields: dict[str, Any], param: str
):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.audio.transcriptions.create(model=MODEL, file=clips["en-hello-world"], **fields)
    assert (refusal.value.code, refusal.value.param) == ("invalid_request", param)


def test_upload_hint_that_has_no_effect_is_named(client: openai.OpenAI, clips: dict[str, Path]):
    raw = client.audio.transcriptions.with_raw_response.create(
        model=MODEL, file=clips["en-hello-world"], prompt="Greetings", temperature=0.5
    )
    assert raw.headers["x-svc-dropped"] == "prompt,temperature"
    plain = client.audio.transcriptions.with_raw_response.create(
        model=MODEL, file=clips["en-hello-world"], temperature=0
    )
    assert "x-svc-dropped" not in plain.headers


def test_upload_logprobs_are_rejected(client: openai.OpenAI, clips: dict[str, Path]):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.audio.transcriptions.create(model=MODEL, file=clips["en-hello-world"], include=["logprobs"])
    assert refusal.value.param == "include"


@pytest.mark.slow
def test_upload_stream_sends_deltas_then_full_text(client: openai.OpenAI, clips: dict[str, Path]):
    whole = client.audio.transcriptions.create(model=MODEL, file=clips["two-cities"])
    stream = client.audio.transcriptions.create(model=MODEL, file=clips["two-cities"], stream=True)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert stream.response.headers["x-accel-buffering"] == "no"
    *deltas, done = list(stream)
    assert done.type == "transcript.text.done"
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 2
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == done.text == whole.text


def test_upload_stream_of_silence_gives_empty_transcript(client: openai.OpenAI):
    silence = io.BytesIO()
    with wave.open(silence, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(64000))
    (done,) = list(client.audio.transcriptions.create(model=MODEL, file=silence.getvalue(), stream=True))
    assert (done.type, done.text) == ("transcript.text.done", "")  # type: ignore[union-attr]


@pytest.mark.slow
def test_upload_stream_sends_keep_alives_and_duration(tmp_path: Path, model: Path, clips: dict[str, Path]):
    with run(tmp_path, "[gateway]\nstream_keep_alive = 0.01\n") as gateway:
        response = httpx2.post(
            gateway.address + "/v1/audio/transcriptions",
            headers={"Authorization": f"Bearer {KEY}"},
            data={"stream": "true"},
            files={"file": ("a.wav", clips["two-cities"].read_bytes())},
            timeout=60,
        )
        with svc.Client(gateway_url=gateway.address, api_key=KEY) as client:
            transcript = client.transcribe(clips["two-cities"])
    first, *_, done, _ = response.text.split("\n\n")
    assert first == ": keep-alive"  # the model takes longer to load and to decode the first segment
    event = json.loads(done.removeprefix("data: "))
    assert event["usage"] == {"type": "duration", "seconds": round(len(material.read_pcm(clips["two-cities"])) / 32000)}
    assert transcript.raw == event
    assert material.count_word_errors(material.TEXTS["two-cities"], transcript.text) < 10


def test_upload_stream_truncated_file_has_warning(client: openai.OpenAI, clips: dict[str, Path]):
    cut = clips["en-counting"].read_bytes()[:-40_000]
    *_, done = list(client.audio.transcriptions.create(model=MODEL, file=cut, stream=True))
    assert "truncated" in done.warning  # type: ignore[union-attr]


def test_upload_stream_error_before_first_event_returns_http_error(client: openai.OpenAI, clips: dict[str, Path]):
    with pytest.raises(openai.BadRequestError):
        client.audio.transcriptions.create(model=MODEL, file=b"no sound", stream=True)
    with pytest.raises(openai.NotFoundError):
        client.audio.transcriptions.create(model="none", file=clips["en-counting"], stream=True)
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.audio.transcriptions.create(  # type: ignore[call-overload]
            model=MODEL, file=clips["en-counting"], stream=True, response_format="srt"
        )


def test_build_response_unknown_language_is_und():
    done = FinalTranscript(1, "la", 1, (TranscriptSegment(0, 1000, "la"),))
    body = transcript_formats.build_response("verbose_json", done, 1.0, None).body
    assert TranscriptionVerbose.model_validate_json(bytes(body), strict=True).language == "und"


@pytest.mark.slow
async def test_upload_stream_killed_worker_ends_with_error_event(tmp_path: Path, model: Path, clips: dict[str, Path]):
    with run(tmp_path) as own:
        key = create_key(tmp_path, "cut")["Authorization"].removeprefix("Bearer ")
        async with openai.AsyncOpenAI(base_url=own.address + "/v1", api_key=key, max_retries=0) as client:
            stream = await client.audio.transcriptions.create(model=MODEL, file=long_wav(clips, 5), stream=True)
            first = await anext(aiter(stream))
            assert first.type == "transcript.text.delta"
            for worker in own.workers():
                os.kill(worker, signal.SIGKILL)
            seen: list[str] = []
            with pytest.raises(openai.APIError, match="worker died"):
                await collect(stream, seen)
            assert "transcript.text.done" not in seen
            retried = await client.audio.transcriptions.create(model=MODEL, file=clips["en-hello-world"], stream=True)
            assert [event.type async for event in retried][-1] == "transcript.text.done"
        cut, ok = await wait_for_entries(tmp_path, "cut", 2)
        assert (cut["status"], cut["http_status"], cut["code"]) == ("cut", 200, "asr_error")
        assert (ok["status"], ok["http_status"], ok["code"]) == ("ok", 200, None)


@pytest.mark.slow
async def test_upload_stream_client_disconnect_frees_its_slot(tmp_path: Path, model: Path, clips: dict[str, Path]):
    with run(tmp_path, "[speech]\nmax_sessions = 1\n") as own:
        header = create_key(tmp_path, "left")
        async with httpx2.AsyncClient(headers=header, timeout=60) as client:
            form = {"data": {"stream": "true"}, "files": {"file": ("long.wav", long_wav(clips, 5))}}
            async with client.stream("POST", own.address + "/v1/audio/transcriptions", **form) as answer:
                assert answer.status_code == 200
                line = await anext(answer.aiter_lines())
                assert json.loads(line.removeprefix("data: "))["type"] == "transcript.text.delta"
        form = {"files": {"file": ("a.wav", clips["en-hello-world"].read_bytes())}}
        async with httpx2.AsyncClient(headers=header, timeout=60) as client:
            for _ in range(40):
                retried = await client.post(own.address + "/v1/audio/transcriptions", **form)
                if retried.status_code == 200:
                    break
                assert retried.status_code == 429
                await asyncio.sleep(0.25)
        assert retried.status_code == 200
        assert "client_closed" in [entry["status"] for entry in await wait_for_entries(tmp_path, "left", 2)]
    assert own.log is not None
    assert "Traceback" not in own.log.read_text()
