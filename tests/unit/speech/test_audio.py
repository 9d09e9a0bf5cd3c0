import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import InvalidRequest
from svc.speech.audio import AudioFormat, SampleAligner, parse_wav
from svc.speech.resample import Converter, Resampler, to_mono_floats


def wav(samples: bytes, *, tag: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16, size: int | None = None):
    head = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    data = struct.pack("<4sI", b"data", len(samples) if size is None else size) + samples
    body = b"WAVE" + struct.pack("<4sI", b"LIST", 3) + b"abc\0" + struct.pack("<4sI", b"fmt ", len(head)) + head + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_parse_wav_file_of_wave_module_has_format_and_samples():
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(bytes(range(8)))
    wav = parse_wav(buffer.getvalue())
    assert (wav.format, bytes(wav.samples)) == (AudioFormat(44100, 2, "s16"), bytes(range(8)))


@pytest.mark.parametrize(
    ("tag", "bits", "expected"),
    [
        (6, 8, "A-law samples of 8 bits"),
        (7, 8, "\u00b5-law"),
        (2, 4, "ADPCM"),
        (1, 12, "PCM samples of 12"),
        (99, 8, "format 99"),
    ],
)
def test_parse_wav_unsupported_samples_error_names_them_and_a_command(tag: int, bits: int, expected: str):
    with pytest.raises(InvalidRequest, match=expected) as caught:
        parse_wav(wav(b"ab", tag=tag, bits=bits))
    assert "ffmpeg -i in.wav -c:a pcm_s16le out.wav" in caught.value.message
    assert caught.value.param == "file"


@pytest.mark.parametrize("size", [None, 0, 0x7FFF0000, 0xFFFFFFFF])
def test_parse_wav_unknown_data_size_reads_to_end(size):
    read = parse_wav(wav(b"abcdef", size=size))
    assert (read.format.rate, bytes(read.samples), read.truncation_warning) == (8000, b"abcdef", "")


def test_parse_wav_truncated_file_has_truncation_warning():
    whole = wav(bytes(64000))
    read = parse_wav(whole[:-48001])
    assert len(read.samples) == 15998
    assert read.truncation_warning == "The WAV file is truncated: it has 1.0 of 4.0 seconds."
    assert parse_wav(whole + b"LIST\2\0\0\0ab").samples == bytes(64000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"ID3" + bytes(100),
        b"RIFF\0\0\0\0WAVE",
        wav(b"ab", tag=6),
        wav(b"ab", bits=12),
        wav(b"ab", channels=0),
        wav(b"ab", rate=0),
        b"RIFF\0\0\0\0WAVEfmt \x04\0\0\0abcd",
    ],
)
def test_parse_wav_invalid_file_raises_invalid_request(data):
    with pytest.raises(InvalidRequest):
        parse_wav(data)


def test_parse_wav_data_before_format_raises_invalid_request():
    with pytest.raises(InvalidRequest, match="no format chunk before its samples"):
        parse_wav(b"RIFF\0\0\0\0WAVEdata\x02\0\0\0ab")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_parse_wav_any_bytes_is_parsed_or_rejected(data):
    try:
        read = parse_wav(b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + data)
    except InvalidRequest:
        return
    assert len(read.samples) % read.format.frame_bytes == 0
    assert read.seconds >= 0


@settings(deadline=None)
@given(st.lists(st.binary(max_size=7)), st.integers(1, 8))
def test_sample_aligner_any_split_yields_whole_samples(chunks, size):
    joiner = SampleAligner(size)
    out = [joiner.push(chunk) for chunk in chunks]
    whole = b"".join(chunks)
    assert all(len(chunk) % size == 0 for chunk in out)
    assert b"".join(out) == whole[: len(whole) - len(whole) % size]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("u8", bytes([192, 64])),
        ("s16", struct.pack("<2h", 16384, -16384)),
        ("s24", bytes([0, 0, 64, 0, 0, 192])),
        ("s32", struct.pack("<2i", 1 << 30, -(1 << 30))),
        ("f32", struct.pack("<2f", 0.5, -0.5)),
        ("f64", struct.pack("<2d", 0.5, -0.5)),
    ],
)
def test_to_mono_floats_each_encoding_is_decoded(encoding, data):
    assert to_mono_floats(data, AudioFormat(16000, 1, encoding)).tolist() == [0.5, -0.5]
    assert to_mono_floats(data, AudioFormat(16000, 2, encoding)).tolist() == [0.0]


def test_to_mono_floats_nan_is_silence_and_values_are_clipped():
    assert to_mono_floats(
        struct.pack("<3f", float("nan"), float("inf"), 9.0), AudioFormat(16000, 1, "f32")
    ).tolist() == [
        0.0,
        1.0,
        1.0,
    ]


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 32000, 44100, 48000, 96000])
def test_resampler_tone_keeps_frequency_and_amplitude(rate):
    seconds = np.arange(rate) / rate
    tone = np.sin(2 * np.pi * 1000 * seconds).astype(np.float32)
    resampler = Resampler(rate)
    out = np.concatenate((resampler.push(tone), resampler.finish()))
    assert abs(len(out) - 16000) <= 2
    wanted = np.sin(2 * np.pi * 1000 * np.arange(len(out)) / 16000)
    assert np.abs(out - wanted)[200:-200].max() < 1e-3


@pytest.mark.parametrize("frequency", [8200, 9500, 15000])
@pytest.mark.parametrize("rate", [44100, 48000])
def test_resampler_frequency_above_nyquist_is_removed(rate, frequency):
    high = np.sin(2 * np.pi * frequency * np.arange(2 * rate) / rate).astype(np.float32)
    resampler = Resampler(rate)
    out = np.concatenate((resampler.push(high), resampler.finish()))
    assert np.abs(out[1000:-1000]).max() < 1e-5


@pytest.mark.parametrize("rate", [8000, 44100])
def test_resampler_push_returns_all_but_last_150_ms(rate):
    resampler = Resampler(rate)
    received = sum(len(resampler.push(np.zeros(rate // 50, np.float32))) for _ in range(100))
    assert 0 <= 2 * 16000 - received < 0.15 * 16000


@pytest.mark.parametrize("rate", [1000, 11025, 16000, 384000])
def test_resampler_after_finish_begins_new_signal(rate):
    tone = np.sin(2 * np.pi * 200 * np.arange(rate) / rate).astype(np.float32)
    resampler = Resampler(rate)
    first = np.concatenate((resampler.push(tone), resampler.finish()))
    assert len(first) == 16000
    assert len(resampler.finish()) == 0
    np.testing.assert_array_equal(np.concatenate((resampler.push(tone), resampler.finish())), first)


@settings(deadline=None)
@given(st.lists(st.integers(0, 700), max_size=8), st.sampled_from([8000, 16000, 44100, 48000]))
def test_resampler_any_split_gives_same_samples(sizes, rate):
    noise = np.random.default_rng(1).normal(0, 0.1, sum(sizes)).astype(np.float32)
    whole, parts = Resampler(rate), Resampler(rate)
    one = np.concatenate((whole.push(noise), whole.finish()))
    chunks, position = [], 0
    for size in sizes:
        chunks.append(parts.push(noise[position : position + size]))
        position += size
    np.testing.assert_allclose(np.concatenate((*chunks, parts.finish())), one, atol=1e-6)


def test_converter_output_is_16_khz_signed_16_bit():
    converter = Converter(AudioFormat(8000, 1, "s16"))
    out = converter.push(struct.pack("<800h", *[1000] * 800)) + converter.push(b"")
    assert abs(len(out) - 3200) <= 4
    assert 990 <= np.frombuffer(out, "<i2")[800] <= 1001
