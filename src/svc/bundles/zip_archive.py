"""Read the zip format of bundles, with strict checks. Stored members of a trusted archive are copied by the kernel."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from svc.bundles.archive import ARCHIVE_READ_BYTES, ArchiveLimits, check_limits
from svc.bundles.member_names import MemberNames, normalize_member_name
from svc.bundles.zip_end_record import read_end_record
from svc.errors import InvalidBundle

ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ALLOWED_COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, ValueError, RuntimeError)


class ZipArchive:
    """An open zip archive. The constructor checks all members."""

    kind = "zip"

    def __init__(self, path: Path, limits: ArchiveLimits) -> None:
        self._file = path.open("rb")
        try:
            fd = self._file.fileno()
            end = read_end_record(lambda start, length: os.pread(fd, length, start), os.fstat(fd).st_size, limits)
            self._zip = zipfile.ZipFile(self._file)
            if len(self._zip.infolist()) != end.entry_count:
                raise InvalidBundle("The bundle is rejected: its end record has a different number of members.")
            self._members, self.file_sizes = self._check_members(limits)
        except _ZIP_ERRORS as error:
            self._file.close()
            raise InvalidBundle(f"The bundle is not a valid zip: {error}.") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()
        self._file.close()

    def _check_members(self, limits: ArchiveLimits) -> tuple[dict[str, zipfile.ZipInfo], dict[str, int]]:
        names, members, sizes = MemberNames(), {}, {}
        infos = self._zip.infolist()
        for info in infos:
            if not info.filename:
                raise InvalidBundle("The bundle is rejected: a member has no name.")
            path = normalize_member_name(info.orig_filename)
            _check_member_type(info)
            if path:
                names.add(path, is_folder=info.is_dir())
            if not info.is_dir():
                members[path], sizes[path] = info, info.file_size
        size = os.fstat(self._file.fileno()).st_size
        check_limits(sizes, size, limits)
        self._check_layout(infos, self._zip.start_dir)
        return members, sizes

    def _check_layout(self, infos: list[zipfile.ZipInfo], directory_offset: int) -> None:
        """Check that members do not overlap each other or the directory."""
        previous_end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.header_offset < previous_end:
                raise InvalidBundle("The bundle is rejected: its members overlap.")
            previous_end = self._data_offset(info) + info.compress_size
        if previous_end > directory_offset:
            raise InvalidBundle("The bundle is rejected: its members overlap its directory.")

    def _data_offset(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of the member's data. Its local header must have the same name (APPNOTE 4.3.7)."""
        header = os.pread(self._file.fileno(), _LOCAL_HEADER.size, info.header_offset)
        if len(header) < _LOCAL_HEADER.size or header[:4] != ZIP_MAGIC[0]:
            raise InvalidBundle("The bundle is not a valid zip: a member has no header.")
        fields = _LOCAL_HEADER.unpack(header)
        name = os.pread(self._file.fileno(), fields[9], info.header_offset + _LOCAL_HEADER.size)
        if name != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace"):
            raise InvalidBundle("The bundle is rejected: a member has two names.")
        return info.header_offset + _LOCAL_HEADER.size + int(fields[9]) + int(fields[10])

    def read(self, path: str, limit: int) -> bytes:
        info = self._members.get(path)
        if info is None or info.file_size > limit:
            raise InvalidBundle(f"The bundle's {path} is missing or larger than {limit} bytes.")
        return b"".join(self._iter_chunks(info))

    def verify(self) -> None:
        for info in self._members.values():
            if info.compress_type == zipfile.ZIP_STORED:
                self._verify_stored(info)
                continue
            for _ in self._iter_chunks(info):
                pass

    def _verify_stored(self, info: zipfile.ZipInfo) -> None:
        """Check the CRC of a stored member without zipfile, which is slower."""
        offset, bytes_left, crc, buffer = self._data_offset(info), info.file_size, 0, bytearray(ARCHIVE_READ_BYTES)
        with memoryview(buffer) as view:
            while bytes_left:
                length = os.preadv(self._file.fileno(), [view[: min(bytes_left, ARCHIVE_READ_BYTES)]], offset)
                if not length:
                    raise InvalidBundle("The bundle is damaged: it ends too early.")
                crc = zlib.crc32(view[:length], crc)
                offset, bytes_left = offset + length, bytes_left - length
        if crc != info.CRC:
            raise InvalidBundle(f"The bundle is damaged: the CRC of {info.filename[:80]!r} is wrong.")

    def _iter_chunks(self, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the member's bytes, and check size and CRC."""
        bytes_left = info.file_size
        try:
            with self._zip.open(info) as source:
                while chunk := source.read(ARCHIVE_READ_BYTES):
                    bytes_left -= len(chunk)
                    yield chunk
        except _ZIP_ERRORS as error:
            raise InvalidBundle(f"The bundle is damaged: {error}.") from error
        if bytes_left:
            raise InvalidBundle(f"The bundle is damaged: {info.filename!r} is shorter than its header says.")

    def unpack(self, folder: Path, *, trusted: bool) -> None:
        for path, info in self._members.items():
            destination = folder / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            try:
                if trusted and info.compress_type == zipfile.ZIP_STORED:
                    _copy_range(self._file.fileno(), self._data_offset(info), fd, info.file_size)
                else:
                    for chunk in self._iter_chunks(info):
                        _write_all(fd, chunk)
            finally:
                os.close(fd)


def _check_member_type(info: zipfile.ZipInfo) -> None:
    mode = info.external_attr >> 16
    file_type = stat.S_IFMT(mode) if info.create_system == 3 else 0
    if file_type not in (0, stat.S_IFREG, stat.S_IFDIR) or (file_type == stat.S_IFDIR) > info.is_dir():
        raise InvalidBundle(f"The bundle is rejected: its member {info.filename[:80]!r} is a link or a device.")
    if _has_unicode_path_override(info):
        raise InvalidBundle(f"The bundle is rejected: its member {info.orig_filename[:80]!r} has two names.")
    if info.flag_bits & 0x1:
        raise InvalidBundle(f"The bundle is rejected: its member {info.filename[:80]!r} is encrypted.")
    if info.compress_type not in _ALLOWED_COMPRESSION_METHODS:
        raise InvalidBundle(f"The bundle is rejected: {info.filename[:80]!r} is neither stored nor deflated.")
    stored = info.compress_type == zipfile.ZIP_STORED
    if (stored and info.compress_size != info.file_size) or (info.is_dir() and info.file_size):
        raise InvalidBundle(f"The bundle is rejected: {info.filename[:80]!r} has contradictory sizes.")


def _has_unicode_path_override(info: zipfile.ZipInfo) -> bool:
    """Return whether an Info-ZIP Unicode path (APPNOTE 4.6.9), which some readers prefer, changes the member's name."""
    offset = 0
    while offset + 4 <= len(info.extra):
        field_id, length = struct.unpack_from("<2H", info.extra, offset)
        if field_id == 0x7075 and info.extra[offset + 9 : offset + 4 + length] != info.orig_filename.encode():
            return True
        offset += 4 + length
    return False


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _copy_range(source_fd: int, offset: int, target_fd: int, size: int) -> None:
    """Copy a byte range in the kernel, or with read and write where the file system does not support it."""
    kernel_copy: Callable[[int, int, int, int], int] | None = (
        _kernel_copy_range if hasattr(os, "copy_file_range") else None
    )
    while size:
        copied = 0
        if kernel_copy is not None:
            try:
                copied = kernel_copy(source_fd, target_fd, min(size, 64 << 20), offset)
            except OSError:
                kernel_copy = None
                continue
        else:
            data = os.pread(source_fd, min(size, ARCHIVE_READ_BYTES), offset)
            _write_all(target_fd, data)
            copied = len(data)
        if copied == 0:
            raise InvalidBundle("The bundle is damaged: it ends too early.")
        offset, size = offset + copied, size - copied


def _kernel_copy_range(source_fd: int, target_fd: int, size: int, offset: int) -> int:
    return os.copy_file_range(source_fd, target_fd, size, offset_src=offset)
