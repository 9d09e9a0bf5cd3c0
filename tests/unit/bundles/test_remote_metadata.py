"""The metadata of a bundle that is not here, out of both forms, with little read; and hostile ones."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tracemalloc
import zipfile

import pytest
import zstandard

from svc.bundles.remote_metadata import MAX_REMOTE_READ_BYTES, read_remote_metadata
from svc.errors import InvalidBundle

ABOUT = json.dumps({"model_id": "m", "version": "1", "execution_template": {"type": "X"}, "files": ["w"]}).encode()
WEIGHTS = os.urandom(4 << 20)


class File:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.taken = 0

    def __call__(self, start: int, length: int) -> bytes:
        self.taken += length
        return self.data[start : start + length]

    def peek(self):
        return read_remote_metadata(self, len(self.data))


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return made.getvalue()


def tarred(*members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return zstandard.compress(made.getvalue())


NAME = "model_metadata.json"


@pytest.mark.parametrize("members", [[(NAME, ABOUT), ("w", WEIGHTS)], [("w", WEIGHTS), (NAME, ABOUT)]])
def test_a_zip_is_read_at_its_end(members):
    file = File(zipped(*members))
    assert file.peek().type == "X"
    assert file.taken < 300_000


def test_a_tar_is_read_from_its_beginning():
    file = File(tarred((f"./{NAME}", ABOUT), ("w", WEIGHTS)))
    assert file.peek().type == "X"
    assert file.taken < 1 << 20


def test_what_lies_too_deep_is_not_told():
    file = File(tarred(("w", os.urandom(MAX_REMOTE_READ_BYTES + (1 << 20))), (NAME, ABOUT)))
    assert file.peek() is None
    assert file.taken <= MAX_REMOTE_READ_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no bundle at all",
        zipped(("w", b"x")),
        zipped((NAME, b"[]")),
        zipped((NAME, b" " * (64 << 20)), method=zipfile.ZIP_DEFLATED),
        zipped((NAME, ABOUT))[:-30],
        tarred(("w", b"x")),
        tarred((NAME, ABOUT))[:40],
        b"\x28\xb5\x2f\xfd" + b"\xff" * 100,
        b"PK\x03\x04" + b"\0" * 100,
    ],
)
def test_hostile_ones_are_refused(data):
    with pytest.raises(InvalidBundle):
        File(data).peek()


def test_tar_whose_headers_unpack_to_gigabytes_is_refused_in_little_memory(tmp_path):
    """An extended header is read whole by tarfile: of zeros, it costs the sender nothing."""
    compressor = zstandard.ZstdCompressor().compressobj()
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 256 << 20
    data = compressor.compress(info.tobuf(tarfile.USTAR_FORMAT))
    data += b"".join(compressor.compress(bytes(1 << 20)) for _ in range(256)) + compressor.flush()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBundle):
            read_remote_metadata(lambda start, length: data[start : start + length], len(data))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_zip_whose_directory_is_not_one_of_its_members_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(1000):
            archive.writestr(str(number), b"")
    data = bytearray(buffer.getvalue())
    data[-14:-10] = b"\x01\x00\x01\x00"
    with pytest.raises(InvalidBundle, match="directory"):
        read_remote_metadata(lambda start, length: bytes(data[start : start + length]), len(data))
