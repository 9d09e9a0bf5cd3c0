"""How long a sound file may last: by what its header says, and by what comes out of it."""

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
    """8 s of noise in a file whose header does not say so."""
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


async def drain(sound: AudioSource) -> None:
    """Takes all samples."""
    async for _ in sound.chunks():
        pass


async def heard(path: Path, max_seconds: float) -> float:
    """Seconds that come out."""
    with path.open("rb") as file:
        async with open_audio(file, max_seconds) as sound:
            await drain(sound)
            return sound.seconds


@pytest.mark.parametrize("kind", KINDS)
async def test_opened_header_says_too_long_is_refused_before_decoding(kind: str, tmp_path: Path):
    path = tmp_path / "sound"
    path.write_bytes(encoded(NOISE, kind)[1])
    assert await heard(path, 9) == pytest.approx(8, abs=0.3)
    with path.open("rb") as file, pytest.raises(InvalidRequest, match=r"longer than 5 seconds.*max_upload_seconds"):
        async with open_audio(file, 5):
            pytest.fail("it was to be refused when it was opened")


@pytest.mark.parametrize("kind", ["flac", "aac"])
async def test_opened_header_without_length_is_refused_while_decoding(kind: str, tmp_path: Path):
    path = tmp_path / "sound"
    path.write_bytes(without_length(kind))
    assert await heard(path, 9) == pytest.approx(8, abs=0.3)
    with path.open("rb") as file:
        async with open_audio(file, 2.5) as sound:
            with pytest.raises(InvalidRequest, match=r"longer than 2.5 seconds"):
                await drain(sound)
            assert sound.seconds < 4


async def test_opened_mp3_with_a_changing_bit_rate_is_not_refused_by_a_guess(tmp_path: Path):
    """By the bit rate of its first, silent frames the file would last three times as long."""
    samples = np.concatenate((np.zeros(16000 * 4, np.int16), np.frombuffer(NOISE, "<i2")))
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format="MP3", subtype="MPEG_LAYER_III", bitrate_mode="VARIABLE")
    data = out.getvalue()
    path = tmp_path / "sound.mp3"
    path.write_bytes(data[data.index(b"\xff\xf3", 4) :])  # the first frame has the length
    assert soundfile.info(path).duration > 20
    assert await heard(path, 15) == pytest.approx(12, abs=0.5)
