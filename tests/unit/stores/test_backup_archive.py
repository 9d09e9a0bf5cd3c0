"""The archive of `svc backup`: damaged, truncated, foreign and hostile archives are rejected."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from svc.errors import CommandFailed
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
            archive, sources, svc_version="1", created="now", schema_version=7, on_bytes=ignore_progress
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
        b'{"format_version":2,"svc_version":"","created":"","schema_version":7,"files":[]}',
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
