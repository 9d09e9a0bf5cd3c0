"""The maximum duration of an audio file: by its header and by its decoded samples."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from tests.speech.test_upload import KINDS, encoded

from svc.errors import InvalidRequest
from svc.speech.audio_files import AudioSource, open_audio

NOISE = np.random.default_rng(1).integers(-9000, 9000, 16000 * 8).astype("<i2").tobytes()


def without_length(kind: str) -> bytes:
    """Return 8 s of noise in a file whose header does not state the duration."""
    if kind == "flac":  # STREAMINFO has the number of samples in 36 bits; 0 is unknown
        data = bytearray(encoded(NOISE, "flac")[1])
        head = int.from_bytes(data[18:26], "big") >> 36 << 36
        data[18:26] = head.to_bytes(8, "big")
        return bytes(data)
    out = io.BytesIO()
    with av.open(io.BytesIO(encoded(NOISE, "m4a")[1])) as whole, av.open(out, "w", format="adts") as bare:
        stream = bare.add_stream_from_template(whole.streams.audio[0])
        for packet in whole.demux(whole.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                bare.mux(packet)
    return out.getvalue()


async def drain(source: AudioSource) -> None:
    """Read all samples."""
    async for _ in source.chunks():
        pass


async def decoded_seconds(path: Path, max_seconds: float) -> float:
    """Return the decoded seconds."""
    with path.open("rb") as file:
        async with open_audio(file, max_seconds) as source:
            await drain(source)
            return source.seconds


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_open_audio_header_above_max_seconds_is_rejected_before_decoding(kind: str, tmp_path: Path):
    path = tmp_path / "audio"
    path.write_bytes(encoded(NOISE, kind)[1])
    assert await decoded_seconds(path, 9) == pytest.approx(8, abs=0.3)
    with path.open("rb") as file, pytest.raises(InvalidRequest, match=r"longer than 5 seconds.*max_upload_seconds"):
        async with open_audio(file, 5):
            pytest.fail("open_audio accepted the file")


@pytest.mark.parametrize("kind", ["flac", "aac"])
async def test_open_audio_header_without_length_is_rejected_while_decoding(kind: str, tmp_path: Path):
    path = tmp_path / "audio"
    path.write_bytes(without_length(kind))
    assert await decoded_seconds(path, 9) == pytest.approx(8, abs=0.3)
    with path.open("rb") as file:
        async with open_audio(file, 2.5) as source:
            with pytest.raises(InvalidRequest, match=r"longer than 2.5 seconds"):
                await drain(source)
            assert source.seconds < 4


async def test_open_audio_variable_bit_rate_mp3_is_not_rejected_by_estimate(tmp_path: Path):
    """The bit rate of the first, silent frames would give three times the duration."""
    samples = np.concatenate((np.zeros(16000 * 4, np.int16), np.frombuffer(NOISE, "<i2")))
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format="MP3", subtype="MPEG_LAYER_III", bitrate_mode="VARIABLE")
    data = out.getvalue()
    path = tmp_path / "audio.mp3"
    path.write_bytes(data[data.index(b"\xff\xf3", 4) :])  # the first frame states the length
    assert soundfile.info(path).duration > 20
    assert await decoded_seconds(path, 15) == pytest.approx(12, abs=0.5)
