"""Hostile archives: refused, and nothing is written."""

import io
import json
import stat
import struct
import tarfile
import zipfile
import zlib

import pytest
import zstandard

from svc.bundles.archive import ArchiveLimits, limits_from_environ, read_metadata
from svc.bundles.open_archive import extract, open_archive
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
        read_metadata(archive)


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
    refused(tmp_path, make(["a", "b"]), "members", ArchiveLimits(max_members=2))
    refused(tmp_path, make(["a"], data=bytes(10)), "unpacks to", ArchiveLimits(max_total_bytes=10))


def test_limits_of_the_environment():
    found = limits_from_environ({"SVC_BUNDLE_MAX_BYTES": "7", "SVC_BUNDLE_MAX_RATIO": "2.5"})
    assert (found.max_total_bytes, found.max_ratio) == (7, 2.5)
    assert limits_from_environ({"SVC_BUNDLE_MAX_BYTES": ""}) == ArchiveLimits()
    for wrong in ({"SVC_BUNDLE_MAX_BYTES": "-1"}, {"SVC_BUNDLE_MAX_RATIO": "nan"}, {"SVC_BUNDLE_MAX_RATIO": "x"}):
        with pytest.raises(UsageError):
            limits_from_environ(wrong)


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
        archive.file_sizes["a"] = 1 << 60
        with pytest.raises(InsufficientStorage):
            extract(archive, folder, tmp_path / "out")
    assert not folder.exists()
    assert not (tmp_path / "out").exists()


def test_neither_zip_nor_tar(tmp_path):
    for data in (b"", b"PK", b"hello world", zstandard.compress(b"hello"), b"PK\x05\x06" + bytes(18)):
        refused(tmp_path, data)


INVISIBLE = [
    "a\nb",
    "a\rb",
    "a\x1b[2Jb",
    "a\x7fb",
    "a\x85b",
    "a\u202eb",
    "a\u2066b",
    "a\u200fb",
    "a\ufeffb",
    "a\u2028b",
]


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["a{}b", "{}/b"])
@pytest.mark.parametrize("invisible", INVISIBLE, ids=ascii)
def test_name_with_a_character_that_is_not_shown_is_refused(tmp_path, make, name, invisible):
    refused(tmp_path, make([name.format(invisible)]), "an invisible or bidirectional")


def end_of(data, *fields):
    """The same zip with other values in its end record: this disk, its first, entries here, entries, size, offset."""
    at = data.rindex(b"PK\x05\x06") + 4
    values = list(struct.unpack_from("<4H2L", data, at))
    for place, value in fields:
        values[place] = value
    return data[:at] + struct.pack("<4H2L", *values) + data[at + 16 :]


def large_end(data, **wrong):
    """The same zip with a ZIP64 end record."""
    at = data.rindex(b"PK\x05\x06")
    _, _, here, entries, size, offset = struct.unpack_from("<4H2L", data, at + 4)
    fields = {"here": here, "entries": entries, "size": size, "offset": offset} | wrong
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, *fields.values())
    return data[:at] + record + struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1) + data[at:]


@pytest.mark.parametrize(
    "fields",
    [
        [(2, 0), (3, 0)],
        [(3, 1)],
        [(2, 1)],
        [(2, 3), (3, 3)],
        [(0, 1)],
        [(1, 1)],
        [(2, 0xFFFF), (3, 0xFFFF)],
        [(4, 0)],
        [(5, 0)],
        [(2, 0), (3, 0), (4, 0)],
    ],
    ids=str,
)
def test_end_record_that_contradicts_the_zip_is_refused(tmp_path, fields):
    refused(tmp_path, end_of(zipped(["a"]), *fields), "refused")


@pytest.mark.parametrize(
    "wrong", [{"here": 0, "entries": 0}, {"size": 0}, {"offset": 1}, {"entries": 1 << 40}], ids=str
)
def test_zip64_end_record_that_contradicts_the_zip_is_refused(tmp_path, wrong):
    refused(tmp_path, large_end(zipped(["a"]), **wrong), "refused")
    saturated = end_of(large_end(zipped(["a"]), **wrong), (2, 0xFFFF), (3, 0xFFFF), (4, 0xFFFFFFFF), (5, 0xFFFFFFFF))
    refused(tmp_path, saturated, "refused")


def test_zip64_end_record_that_agrees_is_read(tmp_path):
    path = tmp_path / "b.xyb"
    for data in (large_end(zipped(["a"])), end_of(large_end(zipped(["a"])), (2, 0xFFFF), (3, 0xFFFF))):
        path.write_bytes(data)
        look(path, None)


def test_bytes_around_a_zip_are_refused(tmp_path):
    whole = zipped(["a"])
    refused(tmp_path, whole + b"x", "follow")
    refused(tmp_path, whole[:100] + b"x" + whole[100:])
    refused(tmp_path, whole[:-2] + b"\x05\x00" + b"notes"[:4])


def test_zip_with_a_comment_is_read(tmp_path):
    path = tmp_path / "b.xyb"
    path.write_bytes(zipped(["a"])[:-2] + b"\x05\x00notes")
    look(path, None)


def test_directory_of_many_members_is_not_read_at_all(tmp_path):
    """A directory costs ten times its size in memory: what has too many entries is refused by its end record."""
    data = zipped([str(number) for number in range(100)])
    refused(tmp_path, data, "members", ArchiveLimits(max_members=10))
    refused(tmp_path, end_of(data, (2, 1), (3, 1)), "members", ArchiveLimits(max_members=10))


def test_unicode_path_that_names_another_file_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model_metadata.json", ABOUT)
        info = zipfile.ZipInfo("name")
        field = struct.pack("<BL", 1, zlib.crc32(b"name")) + b"../other"
        info.extra = struct.pack("<2H", 0x7075, len(field)) + field
        archive.writestr(info, b"x")
    refused(tmp_path, buffer.getvalue(), "two names")


def test_zip_member_without_a_name_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", b"x")
    data = bytearray(buffer.getvalue())
    at = data.rindex(b"PK\x01\x02")
    data[at + 28 : at + 32] = b"\x00\x00\x01\x00"  # its name becomes an extra field
    refused(tmp_path, bytes(data), "no name")
