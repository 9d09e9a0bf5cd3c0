"""The streaming engine with toy models. The models recognise tones, and the library around them is the real one."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.speech.engines import sherpa_online
from svc.speech.model import detect_model
from tests.speech import material, toy, toy_paraformer, toy_transducer
from tests.speech.gateway import Gateway, check_stable_prefixes, session
from tests.speech.gateway import run_gateway as run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.make(tmp_path_factory.mktemp("models") / "singer")


@pytest.fixture(scope="module")
def streaming(folder: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with run(tmp_path_factory.mktemp("home"), f'[speech]\nmodel_dirs = ["{folder.parent}"]\n') as running:
        yield running


def test_streaming_engine_partials_are_prefixes_of_final_text(folder: Path, clips: dict[str, Path]):
    samples = np.frombuffer(material.read_pcm(clips["en-counting"]), "<i2").astype(np.float32) / 32768
    engine = sherpa_online.load(detect_model(folder))
    segment = engine.begin_segment("en")
    partials = [segment.decode_partial(samples[:size]).text for size in range(0, len(samples), 4000)]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(partials))
    assert partials[3] != partials[-1]
    assert (
        segment.decode_final(samples).text
        == engine.begin_segment(None).decode_final(samples).text
        == "mi ti sol mi mi ut ut mi re la fa la mi"
    )
    cut = engine.begin_segment(None)
    cut.decode_partial(samples)
    shorter = samples[:12000]  # less audio than the partial had
    assert cut.decode_final(shorter).text == engine.begin_segment(None).decode_final(shorter).text


@pytest.fixture(scope="module")
def counting(clips: dict[str, Path]) -> Any:
    return np.frombuffer(material.read_pcm(clips["en-counting"]), "<i2").astype(np.float32) / 32768


@pytest.mark.parametrize("toy_model", [toy_transducer, toy_paraformer], ids=["zipformer", "paraformer"])
def test_streaming_engine_each_family_decodes_partials_and_final(toy_model: Any, tmp_path: Path, counting: Any):
    engine = sherpa_online.load(detect_model(toy_model.make(tmp_path / "model")))
    segment = engine.begin_segment(None)
    partials = [segment.decode_partial(counting[:size]).text for size in range(0, len(counting), 4000)]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(partials))
    final = segment.decode_final(counting).text
    assert final == engine.begin_segment(None).decode_final(counting).text
    assert final.startswith(partials[-1])
    assert len(final) > 10
    assert set(final) <= set(toy_transducer.NOTES)
    assert engine.begin_segment(None).decode_final(np.zeros(16000, np.float32)).text == ""


def test_streaming_engine_hot_words_are_preferred(tmp_path: Path, counting: Any):
    hot_word = toy_transducer.NOTES[6]
    (tmp_path / "hot.txt").write_text(hot_word + "\n", encoding="utf-8")
    search = {"decoding_method": "modified_beam_search"}
    hints = {**search, "hotwords_file": str(tmp_path / "hot.txt"), "hotwords_score": 5.0}
    plain, hinted = (
        sherpa_online.load(detect_model(toy_transducer.make(tmp_path / name, **options)))
        .begin_segment(None)
        .decode_final(counting)
        .text
        for name, options in (("plain", search), ("hinted", hints))
    )
    assert hinted.count(hot_word) > plain.count(hot_word)


@pytest.mark.parametrize("toy_model", [toy_transducer, toy_paraformer], ids=["zipformer", "paraformer"])
async def test_session_each_streaming_family_is_transcribed(
    streaming: Gateway, folder: Path, toy_model: Any, clips: dict[str, Path]
):
    model = toy_model.make(folder.with_name(toy_model.__name__.rpartition("_")[2]))
    audio = material.read_pcm(clips["en-counting"])
    async with session(streaming) as client:
        await client.send_message(type="config", model_dir=str(model), language="zh-CN")
        assert (await client.wait_for("ready"))["model"] == model.name
        for place in range(0, len(audio), 6400):
            await client.socket.send(audio[place : place + 6400])
            await asyncio.sleep(0.05)
        await client.send_message(type="flush")
        message = await client.wait_for("final")
        final = message["text"]
        await client.send_audio(audio)
        await client.send_message(type="flush")
        second = await client.wait_for("final")
    if toy_model is toy_transducer:  # Paraformer reports no times
        assert "".join(word["word"] for word in message["words"]) == final
        starts = [word["start_ms"] for word in message["words"] + second["words"]]
        assert starts == sorted(starts)
        assert second["words"][0]["start_ms"] >= message["duration_ms"]
    else:
        assert "words" not in message
    assert len(final) > 5
    assert set(final) <= set(toy_transducer.NOTES)
    assert len({partial["text"] for partial in client.partials()} - {""}) > 1  # a busy machine sends few
    check_stable_prefixes(client.received)


async def test_session_concurrent_streaming_models_are_transcribed(
    streaming: Gateway, folder: Path, clips: dict[str, Path]
):
    audio = material.read_pcm(clips["en-counting"])

    async def count() -> None:
        async with session(streaming) as client:
            await client.send_message(type="config", model_dir=str(folder))
            assert (await client.wait_for("ready"))["model"] == "singer"
            for _ in range(2):
                for place in range(0, len(audio), 6400):
                    await client.socket.send(audio[place : place + 6400])
                    await asyncio.sleep(0.05)
                await client.send_message(type="flush")
                notes = (await client.wait_for("final"))["text"].split()
                assert len(notes) >= 5
                assert set(notes) <= set(toy.NOTES)
            await client.send_audio(audio)
            await client.send_message(type="reset")
            await client.send_message(type="flush")
            assert (await client.wait_for("final"))["text"] == ""
        assert len({partial["text"] for partial in client.partials()} - {""}) > 1  # a busy machine sends few
        check_stable_prefixes(client.received)

    await asyncio.gather(count(), count(), count())


async def test_session_damaged_streaming_model_is_error(streaming: Gateway, folder: Path):
    broken = folder.with_name("broken")
    toy.make(broken)
    (broken / "model.onnx").write_bytes(b"no model")
    async with session(streaming) as client:
        await client.send_message(type="config", model_dir=str(broken))
        assert (await client.wait_for("error"))["code"] == "asr_error"
