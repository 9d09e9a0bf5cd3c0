"""The tar+zstd form of a bundle: read only, since some existing bundles are. Two passes: look at all, then write."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import zstandard

from svc.bundles.archive import BLOCK, Limits, check_totals
from svc.bundles.names import Names, clean
from svc.errors import InvalidBundle

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_HEADER = 1 << 20
_DAMAGE = (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, OverflowError, RecursionError)


class Forward:
    """The decompressed bytes, for tarfile: it can only go forward, and not past the limit. `header` bounds a read."""

    def __init__(self, raw: IO[bytes], most: int) -> None:
        self._source = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, read_across_frames=True)
        self._at = 0
        self._most = most

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence or offset < self._at:
            raise tarfile.ReadError("it leads backwards")
        while self._at < offset and self._take(min(BLOCK, offset - self._at)):
            pass
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER:
            raise tarfile.ReadError("a header is too large")
        pieces = []
        while size and (piece := self._take(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yields the next `size` bytes. Raises InvalidBundle when there are fewer."""
        while size and (piece := self.read(min(size, BLOCK))):
            size -= len(piece)
            yield piece
        if size:
            raise InvalidBundle("The bundle is damaged: it ends too early.")

    def _take(self, size: int) -> bytes:
        piece = self._source.read(size)
        self._at += len(piece)
        if self._at > self._most:
            raise InvalidBundle("The bundle is refused: it unpacks to more than its limits allow.")
        return piece


def walk(raw: IO[bytes], most: int) -> Iterator[tuple[tarfile.TarInfo, Forward]]:
    """Every member of a compressed tar, with the stream standing at its first byte. Raises InvalidBundle."""
    stream = Forward(raw, most)
    try:
        with tarfile.TarFile(fileobj=stream, mode="r") as tar:  # type: ignore[arg-type]
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # they would be kept, all of them
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise InvalidBundle(
                        f"The bundle is refused: its member {member.name[:80]!r} is a link or a device."
                    )
                yield member, stream
    except _DAMAGE as error:
        raise InvalidBundle(f"The bundle is not a valid tar+zstd: {error}.") from error


class TarArchive:
    """A tar+zstd whose members were all checked, in a first pass over it."""

    kind = "tar+zstd"

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        size = path.stat().st_size
        # Headers and padding come on top of what the files hold.
        self._most = int(min(limits.total, max(limits.free, limits.ratio * size)) * 1.05) + (64 << 20)
        names = Names()
        sizes: dict[str, int] = {}
        for member, _ in self._walk():
            path_in = clean(member.name)
            if path_in:
                names.add(path_in, folder=member.isdir())
            if not member.isdir():
                sizes[path_in] = member.size
            if len(sizes) > limits.members:
                break
        check_totals(sizes, size, limits)
        self.files = sizes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every pass opens and closes the file by itself."""

    def _walk(self) -> Iterator[tuple[tarfile.TarInfo, Forward]]:
        """Every member, with the stream standing at its first byte."""
        with self._path.open("rb") as raw:
            yield from walk(raw, self._most)

    def _pieces(self, member: tarfile.TarInfo, stream: Forward) -> Iterator[bytes]:
        stream.seek(member.offset_data)
        yield from stream.pieces(member.size)

    def read(self, path: str, limit: int) -> bytes:
        if self.files.get(path, limit + 1) > limit:
            raise InvalidBundle(f"The bundle's {path} is missing or larger than {limit} bytes.")
        for member, stream in self._walk():
            if clean(member.name) == path and not member.isdir():
                return b"".join(self._pieces(member, stream))
        raise InvalidBundle(f"The bundle's {path} is missing.")

    def verify(self) -> None:
        for member, stream in self._walk():
            for _ in self._pieces(member, stream):
                pass

    def unpack(self, folder: Path, *, trusted: bool) -> None:
        for member, stream in self._walk():
            target = folder / clean(member.name)
            if member.isdir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            with os.fdopen(fd, "wb") as output:
                for piece in self._pieces(member, stream):
                    output.write(piece)
