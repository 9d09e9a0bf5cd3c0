"""Text to speech without a real voice: parts of a text, encoders, requests, WAV sizes."""

from __future__ import annotations

import asyncio
import io
import time
import wave
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile

from svc.errors import InvalidRequest
from svc.speech.synthesis.encoders import SPEECH_SAMPLE_RATE_HZ, create_encoder
from svc.speech.synthesis.process import VoiceProcess
from svc.speech.synthesis.sentences import MAX_FIRST_PART_CHARS, MAX_PART_CHARS, split_for_streaming
from svc.speech.synthesis.synthesizer import MAX_HOLD_SECONDS, synthesize
from svc.wire.synthesis import SPEECH_CONTENT_TYPES, SpeechRequest, complete_wav_sizes

TONE = (np.sin(np.arange(3 * SPEECH_SAMPLE_RATE_HZ) / 20) / 2).astype(np.float32)


class ToneVoice:
    """A voice that says one tenth of a second for each character, at 16 kHz. It takes `seconds` for each part."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.said: list[tuple[str, float, str | None]] = []

    def say(self, text: str, speed: float = 1.0, variant: str | None = None) -> tuple[int, bytes]:
        self.said.append((text, speed, variant))
        time.sleep(self.seconds)
        return 16000, (np.sin(np.arange(1600 * len(text)) / 20) * 9000).astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello.", ["Hello."]),
        ("Hello. Bye!", ["Hello.", "Bye!"]),
        ("The quick brown fox jumps over the lazy dog.", ["The quick brown fox", "jumps over the lazy dog."]),
        (
            "Please note that the meeting, which was planned for Monday, is off.",
            ["Please note that the meeting,", "which was planned for Monday, is off."],
        ),
        ("…", []),
        ("?!\n\n--", []),
        ("你好。", ["你好。"]),
    ],
)
def test_split_for_streaming_parts(text: str, parts: list[str]) -> None:
    assert split_for_streaming(text) == parts


@pytest.mark.parametrize("text", ["word " * 800, "x" * 4096, "a, b; " * 600, "No end here, " * 300])
def test_split_for_streaming_keeps_every_character_and_the_limits(text: str) -> None:
    parts = split_for_streaming(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert len(parts[0]) <= MAX_FIRST_PART_CHARS
    assert max(len(part) for part in parts[1:]) <= MAX_PART_CHARS


@pytest.mark.parametrize("response_format", SPEECH_CONTENT_TYPES)
def test_encoder_output_of_small_blocks_is_complete(response_format: str) -> None:
    encoder = create_encoder(response_format)
    blocks = [TONE[start : start + 1000] for start in range(0, len(TONE), 1000)]
    data = b"".join(encoder.encode(block, is_last=index == len(blocks) - 1) for index, block in enumerate(blocks))
    if response_format == "pcm":
        samples = np.frombuffer(data, "<i2") / 32767
    else:
        samples, rate = soundfile.read(io.BytesIO(data))
        assert rate == SPEECH_SAMPLE_RATE_HZ
    assert len(samples) == pytest.approx(len(TONE), abs=2400)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.35, abs=0.05)


@pytest.mark.parametrize("response_format", ["mp3", "opus", "wav", "pcm"])
def test_encoder_sends_audio_before_its_end(response_format: str) -> None:
    encoder = create_encoder(response_format)
    first = encoder.encode(TONE[: encoder.block_samples])
    assert len(first) > 1000


def test_complete_wav_sizes_corrects_a_stream_only() -> None:
    encoder = create_encoder("wav")
    streamed = encoder.encode(TONE[:1000]) + encoder.encode(TONE[1000:], is_last=True)
    with wave.open(io.BytesIO(complete_wav_sizes(streamed))) as file:
        assert file.getnframes() == len(TONE)
    exact = create_encoder("wav").encode(TONE, is_last=True)
    assert complete_wav_sizes(exact) == exact == complete_wav_sizes(streamed)
    for other in (b"", b"RIFF", b"ID3 and more", streamed[:20], b"RIFF\xff\xff\xff\xffWAVELIST\x04\0\0\0abcd"):
        assert complete_wav_sizes(other) == other
    listed = streamed[:12] + b"LIST\x04\0\0\0abcd" + streamed[12:]
    with wave.open(io.BytesIO(complete_wav_sizes(listed))) as file:
        assert file.getnframes() == len(TONE)


def test_streamed_wav_is_read_by_ffmpeg_with_its_duration() -> None:
    """The header of a stream has no size. FFmpeg, and so ffprobe, reads to the end of the file."""
    av = pytest.importorskip("av")
    encoder = create_encoder("wav")
    streamed = b"".join(encoder.encode(TONE) for _ in range(20)) + encoder.encode(TONE, is_last=True)
    with av.open(io.BytesIO(streamed)) as container:
        rate = container.streams.audio[0].rate
        samples = sum(frame.samples for frame in container.decode(audio=0))
    assert (rate, samples) == (SPEECH_SAMPLE_RATE_HZ, 21 * len(TONE))


def test_synthesize_passes_speed_and_voice_and_pauses_between_sentences() -> None:
    voice = ToneVoice()
    request = SpeechRequest(model="m", input="Hello. Bye.", voice="anna", response_format="pcm", speed=2)
    audio = b"".join(synthesize(voice, request))
    assert voice.said == [("Hello.", 2, "anna"), ("Bye.", 2, "anna")]
    assert len(audio) / 2 / SPEECH_SAMPLE_RATE_HZ == pytest.approx(0.6 + 0.4 + 0.25 / 2, abs=0.01)


def test_synthesize_first_part_is_ready_before_the_next_is_spoken() -> None:
    for response_format, seconds in (("wav", MAX_HOLD_SECONDS / 2), ("pcm", 0.0), ("mp3", 0.0), ("opus", 0.0)):
        voice = ToneVoice(seconds)
        chunks = synthesize(voice, SpeechRequest(model="m", input="One. Two. Three.", response_format=response_format))
        assert next(chunks)
        assert [text for text, _, _ in voice.said] == ["One."]
        next(chunks)


def test_synthesize_wav_of_fast_voice_states_its_length() -> None:
    (data,) = synthesize(ToneVoice(), SpeechRequest(model="m", input="One. Two. Three.", response_format="wav"))
    with wave.open(io.BytesIO(data)) as file:
        assert file.getnframes() / SPEECH_SAMPLE_RATE_HZ == pytest.approx(1.4 + 2 * 0.25, abs=0.01)
        assert len(data) == 44 + 2 * file.getnframes()


def test_synthesize_text_without_words_names_the_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        next(synthesize(ToneVoice(), SpeechRequest(model="m", input="…")))
    assert caught.value.param == "input"


def test_speech_request_null_is_the_default() -> None:
    body = b'{"model":"m","input":"i","voice":null,"response_format":null,"speed":null,"stream_format":null}'
    request = msgspec.json.decode(body, type=SpeechRequest)
    assert (request.format, request.voice_name, request.speed) == ("mp3", None, None)
    assert msgspec.json.decode(b'{"model":"m","input":"i","voice":{"id":"v"}}', type=SpeechRequest).voice_name is None


async def test_voice_process_without_heartbeats_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = VoiceProcess(tmp_path, 1, lambda _: None, silence_timeout=0.01)
    process.start()
    process.preload("none")
    async with asyncio.timeout(30):
        while "exited (status -9)" not in caplog.text:
            await asyncio.sleep(0.01)
    await process.stop()
    assert "the process that speaks hangs and is killed" in caplog.text
