"""Metadata of a remote bundle, zip or tar, read with few bytes transferred; and hostile archives."""

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
        self.bytes_read = 0

    def __call__(self, start: int, length: int) -> bytes:
        self.bytes_read += length
        return self.data[start : start + length]

    def read_metadata(self):
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
def test_remote_metadata_zip_reads_little_data(members):
    file = File(zipped(*members))
    assert file.read_metadata().type == "X"
    assert file.bytes_read < 300_000


def test_remote_metadata_tar_reads_little_data():
    file = File(tarred((f"./{NAME}", ABOUT), ("w", WEIGHTS)))
    assert file.read_metadata().type == "X"
    assert file.bytes_read < 1 << 20


def test_remote_metadata_beyond_read_limit_returns_none():
    file = File(tarred(("w", os.urandom(MAX_REMOTE_READ_BYTES + (1 << 20))), (NAME, ABOUT)))
    assert file.read_metadata() is None
    assert file.bytes_read <= MAX_REMOTE_READ_BYTES


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
def test_remote_metadata_hostile_archive_is_rejected(data):
    with pytest.raises(InvalidBundle):
        File(data).read_metadata()


def test_remote_metadata_tar_header_bomb_is_rejected_in_bounded_memory(tmp_path):
    """tarfile reads an extended header into memory. A header of zeros compresses to almost nothing."""
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


def test_remote_metadata_zip_with_inconsistent_directory_is_rejected(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(1000):
            archive.writestr(str(number), b"")
    data = bytearray(buffer.getvalue())
    data[-14:-10] = b"\x01\x00\x01\x00"
    with pytest.raises(InvalidBundle, match="directory"):
        read_remote_metadata(lambda start, length: bytes(data[start : start + length]), len(data))
