"""Hostile archives are rejected, and nothing is written."""

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


def open_and_verify(path, limits):
    with open_archive(path, limits) as archive:
        archive.verify()
        read_metadata(archive)


def assert_rejected(tmp_path, data, match=None, limits=None):
    path = tmp_path / "b.xyb"
    path.write_bytes(data)
    with pytest.raises(InvalidBundle, match=match):
        open_and_verify(path, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.xyb"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("names", NAMES, ids=ascii)
def test_archive_unsafe_member_name_is_rejected(tmp_path, make, names):
    assert_rejected(tmp_path, make(names), "rejected")


def test_archive_nul_in_member_name_is_rejected(tmp_path):
    assert_rejected(tmp_path, zipped(["aXb"]).replace(b"aXb", b"a\x00b"), "NUL")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_archive_zip_link_or_device_is_rejected(tmp_path, kind):
    assert_rejected(tmp_path, zipped(["x"], mode=kind | 0o644), "link or a device")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_archive_tar_link_or_device_is_rejected(tmp_path, kind):
    assert_rejected(tmp_path, tarred(["x"], type=kind), "link or a device")


def test_archive_sparse_tar_member_error_says_how_to_pack(tmp_path):
    header = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "4096"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.size, info.pax_headers = 1, header
        archive.addfile(info, io.BytesIO(b"x"))
    assert_rejected(tmp_path, zstandard.compress(buffer.getvalue()), "is a sparse file; pack it without --sparse")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_archive_over_limits_is_rejected(tmp_path, make):
    data = make(["zeros"], data=bytes(40 << 20), method=zipfile.ZIP_DEFLATED)
    assert_rejected(tmp_path, data, "(SVC_BUNDLE_MAX_RATIO)")
    assert_rejected(tmp_path, make(["a", "b"]), "members", ArchiveLimits(max_members=2))
    assert_rejected(tmp_path, make(["a"], data=bytes(10)), "unpacks to", ArchiveLimits(max_total_bytes=10))


def test_limits_from_environ_values_are_parsed_and_validated():
    found = limits_from_environ({"SVC_BUNDLE_MAX_BYTES": "7", "SVC_BUNDLE_MAX_RATIO": "2.5"})
    assert (found.max_total_bytes, found.max_ratio) == (7, 2.5)
    assert limits_from_environ({"SVC_BUNDLE_MAX_BYTES": ""}) == ArchiveLimits()
    for wrong in ({"SVC_BUNDLE_MAX_BYTES": "-1"}, {"SVC_BUNDLE_MAX_RATIO": "nan"}, {"SVC_BUNDLE_MAX_RATIO": "x"}):
        with pytest.raises(UsageError):
            limits_from_environ(wrong)


@pytest.mark.parametrize(
    "rest",
    [b"garbage", bytes(100), zstandard.compress(b"hidden"), tarred(["y"])],
    ids=["text", "zeros", "frame", "tar"],
)
def test_archive_tar_with_bytes_after_its_end_is_rejected(tmp_path, rest):
    assert_rejected(tmp_path, tarred(["x"]) + rest)


def test_archive_tar_with_padding_and_skippable_frame_is_accepted(tmp_path):
    path = tmp_path / "b.xyb"
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    path.write_bytes(tarred(["x"]) + skippable + zstandard.compress(bytes(1024)))
    open_and_verify(path, None)


def test_archive_tar_bomb_is_rejected(tmp_path):
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


def test_archive_overlapping_zip_members_are_rejected(tmp_path):
    """Two entries of the central directory point at one member."""
    data = bytearray(zipped(["a", "b"]))
    first = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    assert_rejected(tmp_path, bytes(data), "overlap")


def test_archive_zip_member_with_two_names_is_rejected(tmp_path):
    data = bytearray(zipped(["a"]))
    at = data.rindex(b"PK\x01\x02") + 46
    data[at : at + 1] = b"b"
    assert_rejected(tmp_path, bytes(data), "two names")


def test_archive_wrong_member_size_is_rejected(tmp_path):
    data = bytearray(zipped(["a"], data=b"aaaaaaaa" * 100, method=zipfile.ZIP_DEFLATED))
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = struct.pack("<L", 10)
    assert_rejected(tmp_path, bytes(data), "damaged")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_archive_truncated_anywhere_is_rejected(tmp_path, make):
    whole = make(["a"], data=bytes(range(256)) * 64)
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        assert_rejected(tmp_path, whole[:length])


def test_archive_flipped_bit_is_rejected(tmp_path):
    data = bytearray(zipped(["a"], data=b"a" * 1000))
    data[data.index(b"aaaa") + 500] ^= 1
    assert_rejected(tmp_path, bytes(data), "damaged")


def test_extract_without_disk_space_raises_insufficient_storage(tmp_path):
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


def test_archive_neither_zip_nor_tar_is_rejected(tmp_path):
    for data in (b"", b"PK", b"hello world", zstandard.compress(b"hello"), b"PK\x05\x06" + bytes(18)):
        assert_rejected(tmp_path, data)


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
def test_archive_invisible_character_in_name_is_rejected(tmp_path, make, name, invisible):
    assert_rejected(tmp_path, make([name.format(invisible)]), "an invisible or bidirectional")


def with_end_record(data, *fields):
    """Return the zip with changed end record fields: disk, first disk, entries here, entries, size, offset."""
    at = data.rindex(b"PK\x05\x06") + 4
    values = list(struct.unpack_from("<4H2L", data, at))
    for place, value in fields:
        values[place] = value
    return data[:at] + struct.pack("<4H2L", *values) + data[at + 16 :]


def with_zip64_end(data, **wrong):
    """Return the same zip with a ZIP64 end record."""
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
def test_archive_inconsistent_end_record_is_rejected(tmp_path, fields):
    assert_rejected(tmp_path, with_end_record(zipped(["a"]), *fields), "rejected")


@pytest.mark.parametrize(
    "wrong", [{"here": 0, "entries": 0}, {"size": 0}, {"offset": 1}, {"entries": 1 << 40}], ids=str
)
def test_archive_inconsistent_zip64_end_record_is_rejected(tmp_path, wrong):
    assert_rejected(tmp_path, with_zip64_end(zipped(["a"]), **wrong), "rejected")
    saturated = with_end_record(
        with_zip64_end(zipped(["a"]), **wrong), (2, 0xFFFF), (3, 0xFFFF), (4, 0xFFFFFFFF), (5, 0xFFFFFFFF)
    )
    assert_rejected(tmp_path, saturated, "rejected")


def test_archive_consistent_zip64_end_record_is_read(tmp_path):
    path = tmp_path / "b.xyb"
    for data in (
        with_zip64_end(zipped(["a"])),
        with_end_record(with_zip64_end(zipped(["a"])), (2, 0xFFFF), (3, 0xFFFF)),
    ):
        path.write_bytes(data)
        open_and_verify(path, None)


def test_archive_bytes_around_zip_are_rejected(tmp_path):
    whole = zipped(["a"])
    assert_rejected(tmp_path, whole + b"x", "follow")
    assert_rejected(tmp_path, whole[:100] + b"x" + whole[100:])
    assert_rejected(tmp_path, whole[:-2] + b"\x05\x00" + b"notes"[:4])


def test_archive_zip_with_comment_is_read(tmp_path):
    path = tmp_path / "b.xyb"
    path.write_bytes(zipped(["a"])[:-2] + b"\x05\x00notes")
    open_and_verify(path, None)


def test_archive_directory_over_member_limit_is_rejected_by_end_record(tmp_path):
    """A parsed directory takes ten times its size in memory, so the end record's count is checked first."""
    data = zipped([str(number) for number in range(100)])
    assert_rejected(tmp_path, data, "members", ArchiveLimits(max_members=10))
    assert_rejected(tmp_path, with_end_record(data, (2, 1), (3, 1)), "members", ArchiveLimits(max_members=10))


def test_archive_unicode_path_field_with_other_name_is_rejected(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model_metadata.json", ABOUT)
        info = zipfile.ZipInfo("name")
        field = struct.pack("<BL", 1, zlib.crc32(b"name")) + b"../other"
        info.extra = struct.pack("<2H", 0x7075, len(field)) + field
        archive.writestr(info, b"x")
    assert_rejected(tmp_path, buffer.getvalue(), "two names")


def test_archive_zip_member_without_name_is_rejected(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", b"x")
    data = bytearray(buffer.getvalue())
    at = data.rindex(b"PK\x01\x02")
    data[at + 28 : at + 32] = b"\x00\x00\x01\x00"  # the name becomes an extra field
    assert_rejected(tmp_path, bytes(data), "no name")
