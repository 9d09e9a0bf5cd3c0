"""Hostile archives: refused, and nothing is written."""

import io
import json
import stat
import struct
import tarfile
import zipfile

import pytest
import zstandard

from svc.bundles.archive import Limits, limits_of, metadata_of
from svc.bundles.opening import extract, open_archive
from svc.errors import InsufficientStorage, InvalidBundle, UsageError

ABOUT = json.dumps({"model_id": "m", "version": "1", "execution_template": {"type": "X"}, "files": []}).encode()
NAMES = [
    ["/etc/passwd"],
    ["../up"],
    ["a/../../up"],
    ["C:/x"],
    ["c:x"],
    ["a\\b"],
    ["a", "A"],
    ["é", "e\u0301"],
    ["straße", "STRASSE"],
    ["a", "a/b"],
    ["a/b", "A/c"],
    ["a//b"],
    ["x" * 300],
    ["same", "same"],
]


def zipped(names, **fields):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model_metadata.json", ABOUT)
        for name in names:
            info = zipfile.ZipInfo("placeholder")
            info.filename = info.orig_filename = name
            info.external_attr = fields.get("mode", 0o644) << 16
            info.create_system = 3
            archive.writestr(info, fields.get("data", b"x"), compress_type=fields.get("method", zipfile.ZIP_STORED))
    return buffer.getvalue()


def tarred(names, **fields):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in [("model_metadata.json", ABOUT), *((name, fields.get("data", b"x")) for name in names)]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if name != "model_metadata.json" and "type" in fields:
                info.type, info.linkname, info.size = fields["type"], "/etc/passwd", 0
            archive.addfile(info, io.BytesIO(data))
    return zstandard.compress(buffer.getvalue())


def look(path, limits):
    with open_archive(path, limits) as archive:
        archive.verify()
        metadata_of(archive)


def refused(tmp_path, data, match=None, limits=None):
    path = tmp_path / "b.xyb"
    path.write_bytes(data)
    with pytest.raises(InvalidBundle, match=match):
        look(path, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.xyb"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("names", NAMES, ids=ascii)
def test_names(tmp_path, make, names):
    refused(tmp_path, make(names), "refused")


def test_nul(tmp_path):
    refused(tmp_path, zipped(["aXb"]).replace(b"aXb", b"a\x00b"), "NUL")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_kinds_in_a_zip(tmp_path, kind):
    refused(tmp_path, zipped(["x"], mode=kind | 0o644), "link or a device")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_kinds_in_a_tar(tmp_path, kind):
    refused(tmp_path, tarred(["x"], type=kind), "link or a device")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_bombs(tmp_path, make):
    data = make(["zeros"], data=bytes(40 << 20), method=zipfile.ZIP_DEFLATED)
    refused(tmp_path, data, "times its size")
    refused(tmp_path, make(["a", "b"]), "members", Limits(members=2))
    refused(tmp_path, make(["a"], data=bytes(10)), "unpacks to", Limits(total=10))


def test_limits_of_the_environment():
    found = limits_of({"SVC_BUNDLE_MAX_BYTES": "7", "SVC_BUNDLE_MAX_RATIO": "2.5"})
    assert (found.total, found.ratio) == (7, 2.5)
    assert limits_of({"SVC_BUNDLE_MAX_BYTES": ""}) == Limits()
    for wrong in ({"SVC_BUNDLE_MAX_BYTES": "-1"}, {"SVC_BUNDLE_MAX_RATIO": "nan"}, {"SVC_BUNDLE_MAX_RATIO": "x"}):
        with pytest.raises(UsageError):
            limits_of(wrong)


def test_a_tar_bomb_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "b.xyb"
    compressor = zstandard.ZstdCompressor().compressobj()
    info = tarfile.TarInfo("zeros")
    info.size = 8 << 30
    with path.open("wb") as file:
        file.write(compressor.compress(info.tobuf()))
        for _ in range(256):
            file.write(compressor.compress(bytes(1 << 20)))
        file.write(compressor.flush())
    with pytest.raises(InvalidBundle):
        open_archive(path)


def test_overlapping_members(tmp_path):
    """Two entries of the directory that point at one member."""
    data = bytearray(zipped(["a", "b"]))
    first = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    refused(tmp_path, bytes(data), "overlap")


def test_two_names(tmp_path):
    data = bytearray(zipped(["a"]))
    at = data.rindex(b"PK\x01\x02") + 46
    data[at : at + 1] = b"b"
    refused(tmp_path, bytes(data), "two names")


def test_a_size_that_lies(tmp_path):
    data = bytearray(zipped(["a"], data=b"aaaaaaaa" * 100, method=zipfile.ZIP_DEFLATED))
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = struct.pack("<L", 10)
    refused(tmp_path, bytes(data), "damaged")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_any_cut_is_refused(tmp_path, make):
    whole = make(["a"], data=bytes(range(256)) * 64)
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        refused(tmp_path, whole[:length])


def test_a_flipped_bit_is_found(tmp_path):
    data = bytearray(zipped(["a"], data=b"a" * 1000))
    data[data.index(b"aaaa") + 500] ^= 1
    refused(tmp_path, bytes(data), "damaged")


def test_more_than_the_disk_has(tmp_path):
    path = tmp_path / "b.xyb"
    path.write_bytes(zipped(["a"]))
    folder = tmp_path / "tmp"
    folder.mkdir()
    with open_archive(path) as archive:
        archive.files["a"] = 1 << 60
        with pytest.raises(InsufficientStorage):
            extract(archive, folder, tmp_path / "out")
    assert not folder.exists()
    assert not (tmp_path / "out").exists()


def test_neither_zip_nor_tar(tmp_path):
    for data in (b"", b"PK", b"hello world", zstandard.compress(b"hello"), b"PK\x05\x06" + bytes(18)):
        refused(tmp_path, data)
