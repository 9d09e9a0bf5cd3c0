"""Read the tar+zstd format of bundles in two passes: check all members, then extract. Writing is not supported."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import zstandard

from svc.bundles.archive import ARCHIVE_READ_BYTES, ArchiveLimits, check_limits
from svc.bundles.member_names import MemberNames, normalize_member_name
from svc.errors import InvalidBundle

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_TAR_HEADER_BYTES = 1 << 20
_TAR_ERRORS = (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, OverflowError, RecursionError)


class ForwardOnlyStream:
    """A decompressed stream for tarfile. It only moves forward, up to the limit, and bounds the size of one read."""

    def __init__(self, raw: IO[bytes], max_bytes: int) -> None:
        self._source = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, read_across_frames=True)
        self._position = 0
        self._max_bytes = max_bytes

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence or offset < self._position:
            raise tarfile.ReadError("the position is behind the stream")
        while self._position < offset and self._read_bounded(min(ARCHIVE_READ_BYTES, offset - self._position)):
            pass
        return self._position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_TAR_HEADER_BYTES:
            raise tarfile.ReadError("a header is too large")
        chunks = []
        while size and (chunk := self._read_bounded(size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes. Raises InvalidBundle if there are fewer."""
        while size and (chunk := self.read(min(size, ARCHIVE_READ_BYTES))):
            size -= len(chunk)
            yield chunk
        if size:
            raise InvalidBundle("The bundle is damaged: it ends too early.")

    def check_end(self) -> None:
        """Read the padding after the end of the tar, up to the checksum of the last frame. Raises InvalidBundle.

        The decompressor raises ZstdError for bytes after the last frame that are no frame (RFC 8878, section 3).
        """
        while chunk := self._read_bounded(ARCHIVE_READ_BYTES):
            if chunk.strip(b"\0"):
                raise InvalidBundle("The bundle is damaged: it has bytes after its end.")

    def _read_bounded(self, size: int) -> bytes:
        chunk = self._source.read(size)
        self._position += len(chunk)
        if self._position > self._max_bytes:
            raise InvalidBundle(
                "The bundle is rejected: it unpacks to more than SVC_BUNDLE_MAX_RATIO or SVC_BUNDLE_MAX_BYTES allow."
            )
        return chunk


def iter_members(raw: IO[bytes], max_bytes: int) -> Iterator[tuple[tarfile.TarInfo, ForwardOnlyStream]]:
    """Yield each member of a compressed tar, and the stream at its first byte. Raises InvalidBundle."""
    stream = ForwardOnlyStream(raw, max_bytes)
    try:
        with tarfile.TarFile(fileobj=stream, mode="r") as tar:  # type: ignore[arg-type]
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every member otherwise
                if not (member.isreg() or member.isdir()) or member.issparse():
                    kind = "a sparse file; pack it without --sparse" if member.issparse() else "a link or a device"
                    raise InvalidBundle(f"The bundle is rejected: its member {member.name[:80]!r} is {kind}.")
                yield member, stream
        stream.check_end()
    except _TAR_ERRORS as error:
        raise InvalidBundle(f"The bundle is not a valid tar+zstd: {error}.") from error


class TarArchive:
    """A tar+zstd archive. The constructor checks all members in a first pass."""

    kind = "tar+zstd"

    def __init__(self, path: Path, limits: ArchiveLimits) -> None:
        self._path = path
        size = path.stat().st_size
        # Headers and padding add to the size of the files.
        self._max_bytes = int(
            min(limits.max_total_bytes, max(limits.ratio_exempt_bytes, limits.max_ratio * size)) * 1.05
        ) + (64 << 20)
        names = MemberNames()
        sizes: dict[str, int] = {}
        for member, _ in self._iter_members():
            member_path = normalize_member_name(member.name)
            if member_path:
                names.add(member_path, is_folder=member.isdir())
            if not member.isdir():
                sizes[member_path] = member.size
            if len(sizes) > limits.max_members:
                break
        check_limits(sizes, size, limits)
        self.file_sizes = sizes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Each pass opens and closes the file itself."""

    def _iter_members(self) -> Iterator[tuple[tarfile.TarInfo, ForwardOnlyStream]]:
        """Yield each member, and the stream at its first byte."""
        with self._path.open("rb") as raw:
            yield from iter_members(raw, self._max_bytes)

    def _iter_chunks(self, member: tarfile.TarInfo, stream: ForwardOnlyStream) -> Iterator[bytes]:
        stream.seek(member.offset_data)
        yield from stream.iter_chunks(member.size)

    def read(self, path: str, limit: int) -> bytes:
        if self.file_sizes.get(path, limit + 1) > limit:
            raise InvalidBundle(f"The bundle's {path} is missing or larger than {limit} bytes.")
        for member, stream in self._iter_members():
            if normalize_member_name(member.name) == path and not member.isdir():
                return b"".join(self._iter_chunks(member, stream))
        raise InvalidBundle(f"The bundle's {path} is missing.")

    def verify(self) -> None:
        for member, stream in self._iter_members():
            for _ in self._iter_chunks(member, stream):
                pass

    def unpack(self, folder: Path, *, trusted: bool) -> None:
        for member, stream in self._iter_members():
            destination = folder / normalize_member_name(member.name)
            if member.isdir():
                continue
            destination.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            with os.fdopen(fd, "wb") as output:
                for chunk in self._iter_chunks(member, stream):
                    output.write(chunk)
