"""The faster-whisper engine with a real model, for languages that the default model lacks."""

from pathlib import Path

import openai
import pytest

from tests.speech import material
from tests.speech.gateway import KEY, Gateway, check_stable_prefixes, session

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whisper() -> Path:
    return material.make_model("whisper-base")


def test_whisper_upload_segments_have_model_probabilities(gateway: Gateway, clips: dict[str, Path], whisper: Path):
    with openai.OpenAI(base_url=gateway.address + "/v1", api_key=KEY, max_retries=0) as client:
        response = client.audio.transcriptions.create(
            model="whisper-base", file=clips["en-counting"], response_format="verbose_json"
        )
    assert response.language == "en"
    assert response.segments
    for segment in response.segments:
        assert segment.tokens
        assert -1.5 < segment.avg_logprob < 0
        assert 0 < segment.no_speech_prob < 1


def test_whisper_upload_words_have_times(gateway: Gateway, clips: dict[str, Path], whisper: Path):
    with openai.OpenAI(base_url=gateway.address + "/v1", api_key=KEY, max_retries=0) as client:
        response = client.audio.transcriptions.create(
            model="whisper-base",
            file=clips["en-quick-brown-fox"],
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
    assert response.words
    assert response.segments is None
    assert material.words(" ".join(word.word for word in response.words)) == material.words(response.text)
    times = [time for word in response.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= response.duration


async def test_whisper_session_spanish_is_transcribed(gateway: Gateway, clips: dict[str, Path], whisper: Path):
    async with session(gateway) as client:
        await client.send_message(type="config", model="whisper-base", language="es-MX")
        assert (await client.wait_for("ready", timeout=60))["model"] == "whisper-base"
        await client.send_audio(material.read_pcm(clips["es-pangrama"]))
        await client.send_message(type="flush")
        final = await client.wait_for("final", timeout=60)
        assert "feliz cardillo y kiwi" in final["text"].lower()
        check_stable_prefixes(client.received)
        await client.send_message(type="config", model="whisper-base", language="tlh")
        error = await client.wait_for("error")
        assert error["code"] == "invalid_request"
        assert "es" in error["message"]
