"""The archive of `svc backup`: damaged, truncated, foreign and hostile archives are rejected."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from svc.errors import CommandFailed
from svc.stores import backup_archive
from svc.stores.backup_archive import BackupManifest, SourceFile, extract_backup, is_backup_path, write_backup


def ignore_progress(done: int, total: int) -> None:
    assert 0 <= done <= total


def write(path: Path, files: dict[str, bytes]) -> BackupManifest:
    sources = []
    for number, (name, data) in enumerate(files.items()):
        source = path.with_name(f"source-{number}")
        source.write_bytes(data)
        sources.append(SourceFile(name, source))
    with path.open("wb") as archive:
        return write_backup(
            archive,
            sources,
            svc_version="1",
            created="now",
            schema_version=7,
            on_bytes=ignore_progress,
            on_vanished=pytest.fail,
        )


def extract(path: Path, folder: Path) -> BackupManifest:
    folder.mkdir()
    with path.open("rb") as archive:
        return extract_backup(archive, folder, ignore_progress)


FILES = {"svc.db": b"database" * 100, "journal/1-2-a.journal": b"line\n", "recipes/mine/recipe.toml": b""}


def test_written_archive_extracts_to_same_files_and_is_a_tar(tmp_path: Path) -> None:
    written = write(tmp_path / "b.tar", FILES)
    assert extract(tmp_path / "b.tar", tmp_path / "out") == written
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES
    with tarfile.open(tmp_path / "b.tar", "r:") as tar:
        assert tar.getnames() == [*FILES, "manifest.json"]


def test_every_truncated_archive_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "b.tar", FILES)
    data = (tmp_path / "b.tar").read_bytes()
    for number, size in enumerate((*range(0, len(data), 97), len(data) - 1)):
        (tmp_path / "cut.tar").write_bytes(data[:size])
        with pytest.raises(CommandFailed):
            extract(tmp_path / "cut.tar", tmp_path / f"out-{number}")


def test_every_changed_byte_of_a_file_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "b.tar", FILES)
    data = bytearray((tmp_path / "b.tar").read_bytes())
    for number, position in enumerate(range(512, 512 + len(FILES["svc.db"]), 61)):
        data[position] ^= 1
        (tmp_path / "bad.tar").write_bytes(data)
        data[position] ^= 1
        with pytest.raises(CommandFailed, match=r"SHA-256 of 'svc\.db'"):
            extract(tmp_path / "bad.tar", tmp_path / f"out-{number}")


def test_data_after_the_end_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "b.tar", FILES)
    with (tmp_path / "b.tar").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CommandFailed, match="no valid end"):
        extract(tmp_path / "b.tar", tmp_path / "out")


def hostile_member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    return info.tobuf(tarfile.GNU_FORMAT)


def pax_header(data: bytes) -> bytes:
    return hostile_member("PaxHeader", tarfile.XHDTYPE, len(data)) + data + bytes(-len(data) % 512)


@pytest.mark.parametrize(
    "member",
    [
        hostile_member("../svc.db"),
        hostile_member("/etc/cron.d/x"),
        hostile_member("recipes/../../x"),
        hostile_member("registry/.registry/locks/x"),
        hostile_member("journal/../x.journal"),
        hostile_member("run/x"),
        hostile_member("svc.db", tarfile.SYMTYPE),
        hostile_member("svc.db", tarfile.LNKTYPE),
        hostile_member("svc.db", tarfile.CHRTYPE),
        hostile_member("svc.db", tarfile.FIFOTYPE),
        hostile_member("svc.db", tarfile.GNUTYPE_SPARSE),
        hostile_member("svc.db", tarfile.DIRTYPE),
        hostile_member("svc.db", tarfile.XHDTYPE),
        hostile_member("svc.db", size=-1),
        hostile_member("svc.db", size=1 << 60),
        hostile_member("manifest.json", size=1 << 60),
        hostile_member("svc.db") + hostile_member("svc.db"),
        pax_header(b"18 path=../svc.db\n") + hostile_member("svc.db"),
        pax_header(b"19 path=api_key\n") + hostile_member("svc.db"),
        pax_header(b"16 path=api_key\n10 size=1\n") + hostile_member("svc.db"),
        pax_header(b"16 path=api_key\n10 uid=0\n") + hostile_member("svc.db"),
        pax_header(b"10 path=\xff\n") + hostile_member("svc.db"),
        pax_header(b"16 path=api_key\n") * 2 + hostile_member("svc.db"),
        pax_header(b"16 path=api_key\n") + hostile_member("svc.db", tarfile.SYMTYPE),
        pax_header(b"16 path=api_key\n"),
        pax_header(b"9007 path=" + b"x/" * 4498 + b"\n") + hostile_member("svc.db"),
        hostile_member("svc.db", tarfile.XGLTYPE, 16) + b"16 path=api_key\n".ljust(512, b"\0"),
        b"x" * 512,
        bytes(512),
    ],
)
def test_hostile_member_is_rejected_and_writes_nothing_outside(tmp_path: Path, member: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(member + bytes(1024))
    with pytest.raises(CommandFailed):
        extract(tmp_path / "b.tar", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"b.tar", "out"}
    assert not any(path.stat().st_size for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b'{"format":"other"}',
        b'{"format_version":3,"svc_version":"","created":"","schema_version":7,"files":[]}',
        b'{"svc_version":"","created":"","schema_version":7,"files":[{"path":"svc.db","size":0,"sha256":""}]}',
        b'{"svc_version":"","created":"","schema_version":7,"files":[]}',
    ],
)
def test_invalid_manifest_is_rejected(tmp_path: Path, manifest: bytes) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(manifest)
        tar.addfile(info, io.BytesIO(manifest))
    end = 512 + -(-len(manifest) // 512) * 512 + 1024
    (tmp_path / "b.tar").write_bytes(archive.getvalue()[:end])
    with pytest.raises(CommandFailed):
        extract(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize("name", ["svc.db", "registry/.registry/records.sqlite", "registry/m/1/any/m.xyb"])
def test_path_of_the_state_folder_is_accepted(name: str) -> None:
    assert is_backup_path(name)


LONG_NAMES = (
    f"registry/{'m' * 128}/{'1' * 128}/any/{'m' * 128}.xyb",
    f"registry/m/1/any/content/{'中' * 34}",
    f"registry/m/1/any/content/{'中' * 85}",
    f"registry/m/1/any/content/{'folder/' * 140}{'m' * 44}",
    *(f"registry/m/1/any/content/{'m' * length}" for length in range(80, 110)),
)


def test_long_names_are_restored_and_make_a_backup_of_version_2(tmp_path: Path) -> None:
    files = FILES | {name: str(number).encode() for number, name in enumerate(LONG_NAMES)}
    written = write(tmp_path / "b.tar", files)
    assert written.format_version == 2
    assert extract(tmp_path / "b.tar", tmp_path / "out") == written
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files
    with tarfile.open(tmp_path / "b.tar", "r:") as tar:
        assert tar.getnames() == [*files, "manifest.json"]
    command = ["tar", "--quoting-style=literal", "-tf", tmp_path / "b.tar"]
    listed = subprocess.run(command, capture_output=True, check=True, timeout=30)
    assert listed.stdout.decode().splitlines() == [*files, "manifest.json"]
    first = tarfile.TarInfo.frombuf((tmp_path / "b.tar").read_bytes()[:512], "utf-8", "strict")
    assert "newer-version-of-svc" in first.name  # older programs show it: "… is not a plain file"


def test_backup_without_long_names_has_version_1(tmp_path: Path) -> None:
    assert write(tmp_path / "b.tar", FILES).format_version == 1
    assert (tmp_path / "b.tar").read_bytes().startswith(b"svc.db")


@pytest.mark.parametrize("name", ["registry/m/1/any/m.xyb", *LONG_NAMES[:4]])
@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 1 << 50])
def test_header_of_large_file_is_read_as_written(name: str, size: int) -> None:
    header = backup_archive._encode_header(name, size, 0o700)
    assert backup_archive._read_header(io.BytesIO(header)) == (name, size, 0o700)
    with tarfile.TarFile(fileobj=io.BytesIO(header + bytes(1024))) as tar:
        assert tar.firstmember is not None
        assert (tar.firstmember.name, tar.firstmember.size) == (name, size)


def test_long_name_in_gnu_header_of_older_programs_is_read() -> None:
    info = tarfile.TarInfo(LONG_NAMES[0])
    info.size = 8**11
    header = io.BytesIO(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))
    assert backup_archive._read_header(header)[:2] == (LONG_NAMES[0], 8**11)


UNRESTORABLE_NAMES = ("recipes/a\\b", "recipes/a\nb", "recipes/caf\udce9", "x", f"recipes/{'x/' * 4200}x")


@pytest.mark.parametrize("name", UNRESTORABLE_NAMES)
def test_path_that_restore_rejects_is_rejected_before_writing(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandFailed, match="cannot be in a backup"):
        write(tmp_path / "b.tar", FILES | {name: b""})
    assert not (tmp_path / "b.tar").stat().st_size


def test_manifest_that_restore_rejects_is_rejected_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "b.tar", FILES)
    monkeypatch.setattr(backup_archive, "MANIFEST_MAX_BYTES", 500)
    with pytest.raises(CommandFailed, match="cannot list 3 files"):
        write(tmp_path / "c.tar", FILES)
    assert not (tmp_path / "c.tar").stat().st_size
    with pytest.raises(CommandFailed, match="manifest is too large"):
        extract(tmp_path / "b.tar", tmp_path / "out")


def test_large_manifest_makes_a_backup_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_archive, "_VERSION_1_MANIFEST_MAX_BYTES", 500)
    written = write(tmp_path / "b.tar", FILES)
    assert written.format_version == 2
    assert extract(tmp_path / "b.tar", tmp_path / "out") == written
