"""Truncated MP3 files, with and without a header that states the number of frames."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from svc.speech.mp3_frames import begins_with_frames, is_truncated
from svc.speech.synthesis.encoders import create_encoder

SECONDS = 2


def encode(rate: int, channels: int) -> bytes:
    """Return a file of libsndfile, with the number of frames in its first one."""
    times = np.arange(SECONDS * rate) / rate
    samples = np.stack([np.sin(880 * times) / 2] * channels, axis=1)
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="MP3", subtype="MPEG_LAYER_III")
    return file.getvalue()


def encode_stream() -> bytes:
    """Return a file as a voice streams it, without a number of frames."""
    encoder = create_encoder("mp3")
    samples = np.sin(np.arange(SECONDS * 24000) / 24).astype(np.float32) / 2
    return encoder.encode(samples, is_last=True)


def frame(header: int, size: int) -> bytes:
    return struct.pack(">I", header).ljust(size, b"\0")


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_complete_file_is_not_truncated_and_half_of_it_is(rate: int, channels: int) -> None:
    data = encode(rate, channels)
    assert not is_truncated(data)
    assert not is_truncated(data + b"TAG".ljust(128, b" "))
    for kept in (0.2, 0.5, 0.9):
        assert is_truncated(data[: int(len(data) * kept)])


def test_mp3_stream_is_not_truncated_and_most_parts_of_it_are() -> None:
    data = encode_stream()
    assert not is_truncated(data)
    assert sum(is_truncated(data[:end]) for end in range(2000, 3000)) > 970  # unless it ends with a frame


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (0xFFFB9000, 417),  # version 1, layer III, 128 kbit/s, 44,100
        (0xFFFB9200, 418),  # with padding
        (0xFFF38400, 192),  # version 2, layer III, 64 kbit/s, 24,000
        (0xFFE38400, 384),  # version 2.5, layer III, 64 kbit/s, 12,000
        (0xFFFD9400, 480),  # version 1, layer II, 160 kbit/s, 48,000
        (0xFFFF9400, 288),  # version 1, layer I, 288 kbit/s, 48,000
    ],
)
def test_mp3_frame_of_any_version_has_its_size(header: int, size: int) -> None:
    data = frame(header, size) * 3
    assert not is_truncated(data)
    assert is_truncated(data[:-1])
    tagged = b"ID3\4\0\0\0\0\1\0" + bytes(128) + data
    assert not is_truncated(tagged)
    assert is_truncated(tagged[:-1])


def test_mp3_first_frames_are_told_from_samples() -> None:
    for data in (encode(44100, 2), encode(16000, 1), encode_stream()):
        assert begins_with_frames(data) is True
        assert begins_with_frames(data[:100]) is None
    frame_size = 417
    one_frame = frame(0xFFFB9000, frame_size)
    assert begins_with_frames(one_frame + bytes(frame_size)) is False
    assert begins_with_frames(one_frame * 2 + frame(0xFFF39000, frame_size)) is False
    noise = np.random.default_rng(1).integers(-32768, 32767, 100_000, dtype="<i2").tobytes()
    assert not any(begins_with_frames(noise[start : start + 8192]) for start in range(0, 100_000, 2))


@pytest.mark.parametrize("data", [b"", b"ID3", b"\xff\xfb", b"no frames at all", b"\xff\xfb\0\0" + bytes(100)])
def test_mp3_data_without_frames_is_left_to_the_decoder(data: bytes) -> None:
    assert not is_truncated(data)
