"""Damaged and truncated Ogg files, and complete ones of two encoders."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from svc.speech.ogg_pages import is_damaged
from svc.speech.synthesis.encoders import create_encoder

NOISE = np.random.default_rng(1).normal(0, 0.2, 3 * 24000).astype(np.float32)


def encode(subtype: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, NOISE, 24000, format="OGG", subtype=subtype)
    return file.getvalue()


FILES = {
    "vorbis": encode("VORBIS"),
    "opus": encode("OPUS"),
    "a voice": create_encoder("opus").encode(NOISE, is_last=True),
}


@pytest.mark.parametrize("name", FILES)
def test_ogg_complete_file_is_not_damaged_and_each_part_of_it_is(name: str) -> None:
    data = FILES[name]
    assert data[:4] == b"OggS"
    assert not is_damaged(data)
    for end in (len(data) // 3, len(data) // 2, len(data) - 1, data.rindex(b"OggS")):
        assert is_damaged(data[:end])


@pytest.mark.parametrize("name", FILES)
def test_ogg_changed_or_missing_pages_and_a_second_stream_are_found(name: str) -> None:
    data = FILES[name]
    third, page = len(data) // 3, data.index(b"OggS", 4)
    assert is_damaged(data[:third] + bytes([data[third] ^ 1]) + data[third + 1 :])
    assert is_damaged(data[:third] + bytes(1000) + data[third + 1000 :])
    assert is_damaged(data[:page] + data[data.index(b"OggS", page + 4) :])
    assert is_damaged(data + encode("VORBIS"))
    assert is_damaged(data + b"more")
