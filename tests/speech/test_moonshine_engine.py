"""The Moonshine engine with the real model: the draft of a hypothesis saves time and never changes the text."""

import numpy as np
import pytest

from svc.errors import SpeechFailed
from svc.speech.engines import moonshine
from svc.speech.model import RecognitionModel, detect_model
from svc.speech.resample import Samples

from . import material


@pytest.fixture(scope="module")
def model() -> RecognitionModel:
    return detect_model(material.make_model())


@pytest.fixture(scope="module")
def engine(model: RecognitionModel) -> moonshine.MoonshineEngine:
    return moonshine.load(model)


@pytest.fixture(scope="module")
def speech() -> Samples:
    """The first 11 s of a clip: longer than 384 frames, where the decoder checks its attention mask."""
    pcm = material.read_pcm(material.make_clips()["two-cities"])[: 11 * 32000]
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768


@pytest.mark.slow
def test_decoder_with_earlier_hypotheses_returns_text_of_fresh_decoder(engine, speech):
    kept = engine.begin_segment(None)
    for seconds in (0.5, 1, 2.5, 4, 3, 7, 11):
        samples = speech[: int(seconds * 16000)]
        fresh = engine.begin_segment(None).decode_final(samples).text
        # Passes of several tokens round activations differently, which may decide between two close tokens.
        assert material.count_word_errors(fresh, kept.decode_partial(samples).text) <= 1
    assert (
        material.count_word_errors(material.TEXTS["two-cities"][:100], kept.decode_final(speech[: 7 * 16000]).text) < 8
    )


@pytest.mark.parametrize("draft", [[], [5000], [70, 71, 72] * 100])
def test_decode_wrong_draft_returns_tokens_of_greedy_search(engine, speech, draft):
    frames = engine.encode(speech[:32000])
    right = engine.decode(frames, [])
    assert engine.decode(frames, draft) == right
    assert engine.decode(frames, right[:3] + draft) == right
    assert engine.decode(frames, right + draft) == right


@pytest.mark.parametrize("count", [0, 1, 1599])
def test_decoder_audio_shorter_than_a_frame_returns_no_text(engine, count):
    assert engine.begin_segment(None).decode_partial(np.zeros(count, np.float32)).text == ""


def test_decoder_silence_returns_text_within_token_limit(engine):
    assert len(engine.begin_segment(None).decode_partial(np.zeros(16000, np.float32)).text.split()) < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [({"family": "whisper"}, "family 'whisper'"), ({"options": {"rule_fsts": "x"}}, "option 'rule_fsts'")],
)
def test_load_unsupported_model_is_speech_error(model, change, message):
    fields = {name: getattr(model, name) for name in model.__struct_fields__}
    with pytest.raises(SpeechFailed, match=message):
        moonshine.load(RecognitionModel(**{**fields, **change}))
