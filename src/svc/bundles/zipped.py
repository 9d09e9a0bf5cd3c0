"""The zip form of a bundle, read with suspicion. Stored members are copied by the kernel where the hash is known."""

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

from svc.bundles.archive import BLOCK, Limits, check_totals
from svc.bundles.names import Names, clean
from svc.bundles.zipend import read_end
from svc.errors import InvalidBundle

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_LOCAL = struct.Struct("<4s5H3L2H")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, ValueError, RuntimeError)


class ZipArchive:
    """An open zip whose members were all checked."""

    kind = "zip"

    def __init__(self, path: Path, limits: Limits) -> None:
        self._file = path.open("rb")
        try:
            fd = self._file.fileno()
            end = read_end(lambda start, length: os.pread(fd, length, start), os.fstat(fd).st_size, limits)
            self._zip = zipfile.ZipFile(self._file)
            if len(self._zip.infolist()) != end.entries:
                raise InvalidBundle("The bundle is refused: its end record says another number of members.")
            self._members, self.files = self._check(limits)
        except _DAMAGE as error:
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

    def _check(self, limits: Limits) -> tuple[dict[str, zipfile.ZipInfo], dict[str, int]]:
        names, members, sizes = Names(), {}, {}
        infos = self._zip.infolist()
        for info in infos:
            if not info.filename:
                raise InvalidBundle("The bundle is refused: a member has no name.")
            path = clean(info.orig_filename)
            _check_kind(info)
            if path:
                names.add(path, folder=info.is_dir())
            if not info.is_dir():
                members[path], sizes[path] = info, info.file_size
        size = os.fstat(self._file.fileno()).st_size
        check_totals(sizes, size, limits)
        self._check_places(infos, self._zip.start_dir)
        return members, sizes

    def _check_places(self, infos: list[zipfile.ZipInfo], end: int) -> None:
        """Members lie one after the other, before the directory, and none in another."""
        reached = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.header_offset < reached:
                raise InvalidBundle("The bundle is refused: its members overlap.")
            reached = self._start(info) + info.compress_size
        if reached > end:
            raise InvalidBundle("The bundle is refused: its members overlap its directory.")

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where the member's bytes begin, by its own header, which must bear the same name."""
        head = os.pread(self._file.fileno(), _LOCAL.size, info.header_offset)
        if len(head) < _LOCAL.size or head[:4] != MAGIC[0]:
            raise InvalidBundle("The bundle is not a valid zip: a member has no header.")
        fields = _LOCAL.unpack(head)
        name = os.pread(self._file.fileno(), fields[9], info.header_offset + _LOCAL.size)
        if name != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace"):
            raise InvalidBundle("The bundle is refused: a member has two names.")
        return info.header_offset + _LOCAL.size + int(fields[9]) + int(fields[10])

    def read(self, path: str, limit: int) -> bytes:
        info = self._members.get(path)
        if info is None or info.file_size > limit:
            raise InvalidBundle(f"The bundle's {path} is missing or larger than {limit} bytes.")
        return b"".join(self._pieces(info))

    def verify(self) -> None:
        for info in self._members.values():
            if info.compress_type == zipfile.ZIP_STORED:
                self._verify_stored(info)
                continue
            for _ in self._pieces(info):
                pass

    def _verify_stored(self, info: zipfile.ZipInfo) -> None:
        """The CRC of bytes that are stored as they are, at the speed of zlib."""
        at, left, crc, buffer = self._start(info), info.file_size, 0, bytearray(BLOCK)
        with memoryview(buffer) as view:
            while left:
                length = os.preadv(self._file.fileno(), [view[: min(left, BLOCK)]], at)
                if not length:
                    raise InvalidBundle("The bundle is damaged: it ends too early.")
                crc = zlib.crc32(view[:length], crc)
                at, left = at + length, left - length
        if crc != info.CRC:
            raise InvalidBundle(f"The bundle is damaged: the CRC of {info.filename[:80]!r} is wrong.")

    def _pieces(self, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """The member's bytes, checked against its size and CRC."""
        left = info.file_size
        try:
            with self._zip.open(info) as source:
                while piece := source.read(BLOCK):
                    left -= len(piece)
                    yield piece
        except _DAMAGE as error:
            raise InvalidBundle(f"The bundle is damaged: {error}.") from error
        if left:
            raise InvalidBundle(f"The bundle is damaged: {info.filename!r} is shorter than it says.")

    def unpack(self, folder: Path, *, trusted: bool) -> None:
        for path, info in self._members.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            try:
                if trusted and info.compress_type == zipfile.ZIP_STORED:
                    _copy(self._file.fileno(), self._start(info), fd, info.file_size)
                else:
                    for piece in self._pieces(info):
                        _write(fd, piece)
            finally:
                os.close(fd)


def _check_kind(info: zipfile.ZipInfo) -> None:
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode) if info.create_system == 3 else 0
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > info.is_dir():
        raise InvalidBundle(f"The bundle is refused: its member {info.filename[:80]!r} is a link or a device.")
    if _has_other_name(info):
        raise InvalidBundle(f"The bundle is refused: its member {info.orig_filename[:80]!r} has two names.")
    if info.flag_bits & 0x1:
        raise InvalidBundle(f"The bundle is refused: its member {info.filename[:80]!r} is encrypted.")
    if info.compress_type not in _METHODS:
        raise InvalidBundle(f"The bundle is refused: {info.filename[:80]!r} is neither stored nor deflated.")
    stored = info.compress_type == zipfile.ZIP_STORED
    if (stored and info.compress_size != info.file_size) or (info.is_dir() and info.file_size):
        raise InvalidBundle(f"The bundle is refused: the size of {info.filename[:80]!r} contradicts itself.")


def _has_other_name(info: zipfile.ZipInfo) -> bool:
    """Whether an Info-ZIP Unicode path (APPNOTE 4.6.9) gives the member a name of its own, which some readers take."""
    at = 0
    while at + 4 <= len(info.extra):
        kind, length = struct.unpack_from("<2H", info.extra, at)
        if kind == 0x7075 and info.extra[at + 9 : at + 4 + length] != info.orig_filename.encode():
            return True
        at += 4 + length
    return False


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _copy(source: int, offset: int, target: int, size: int) -> None:
    """Copies within the kernel; falls back to reading where the file system cannot."""
    copier: Callable[[int, int, int, int], int] | None = _kernel_copy if hasattr(os, "copy_file_range") else None
    while size:
        done = 0
        if copier is not None:
            try:
                done = copier(source, target, min(size, 64 << 20), offset)
            except OSError:
                copier = None
                continue
        else:
            data = os.pread(source, min(size, BLOCK), offset)
            _write(target, data)
            done = len(data)
        if done == 0:
            raise InvalidBundle("The bundle is damaged: it ends too early.")
        offset, size = offset + done, size - done


def _kernel_copy(source: int, target: int, size: int, offset: int) -> int:
    return os.copy_file_range(source, target, size, offset_src=offset)
