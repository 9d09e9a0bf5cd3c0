"""Downloads a bundle: resumed over any number of interruptions and deaths, and verified before it is anything.

<folder>/<x>.part    what has come so far
<folder>/<x>.json    of what it is a part: etag, size, sha256

Reading and writing happen in one thread, hashing in another: neither waits for the other for long.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from svc.bundles.remote import Remote, Unreachable
from svc.bundles.room import room
from svc.errors import BundleNotFound, RegistryFailed
from svc.wire.bundle import Entry

BUFFER = 256 << 10
"""The kernel caches a write of this size in small pieces of memory, which it has at hand. For one of 1 MiB it takes
large pieces, which a virtual machine has often given back to its host: a gigabyte costs 0.7 to 1.0 s of CPU, not 0.2.
"""
BUFFERS = 16
ATTEMPTS = 7
"""So often in a row may nothing at all come."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

Report = Callable[[int, int], None]
"""Bytes done, of how many."""


class Side(msgspec.Struct):
    """The side file."""

    size: int
    sha256: str | None
    etag: str | None = None


class Hasher:
    """Hashes buffers in its own thread. `free` has the buffers that may be filled."""

    def __init__(self) -> None:
        self.free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self.free.put(bytearray(BUFFER))
        self._full: queue.SimpleQueue[tuple[bytearray, int] | None] = queue.SimpleQueue()
        self._hash = hashlib.sha256()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def put(self, buffer: bytearray, length: int) -> None:
        """The buffer comes back through `free`."""
        self._full.put((buffer, length))

    def finish(self) -> str:
        """The hash of everything."""
        self._full.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def _run(self) -> None:
        while (item := self._full.get()) is not None:
            buffer, length = item
            self._hash.update(memoryview(buffer)[:length])
            self.free.put(buffer)


class Source(Protocol):
    """Where a bundle's bytes come from, starting anywhere."""

    def fetch(self, entry: Entry, start: int, side: Side, sink: Sink) -> None:
        """Feeds the sink from `start` on, or from 0 after `sink.restart()`. Raises OSError when it breaks off."""
        ...


class Sink:
    """The .part file and its hash."""

    def __init__(self, part: Path, side_file: Path, side: Side, report: Report | None) -> None:
        self._side_file = side_file
        self.side = side
        self._report = report
        self._fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = 0
        self.hasher = Hasher()

    def note(self) -> None:
        """Writes the side file."""
        temporary = self._side_file.with_suffix(".json.new")
        with room("The disk is full."):
            temporary.write_bytes(msgspec.json.encode(self.side))
            os.replace(temporary, self._side_file)

    def reread(self) -> None:
        """Hashes what is there already."""
        while True:
            buffer = self.hasher.free.get()
            length = os.readv(self._fd, [buffer])
            self.hasher.put(buffer, length)
            self.size += length
            if length == 0:
                return
            self._tell()

    def restart(self) -> None:
        """From 0."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.hasher.finish()
        self.hasher = Hasher()
        self.size = 0

    def fill(self, read: Callable[[memoryview], int], most: int) -> int:
        """One buffer from `read`, at most so many bytes; what has come is kept even if it fails."""
        buffer = self.hasher.free.get()
        view, filled = memoryview(buffer)[:most], 0
        try:
            while filled < len(view) and (length := read(view[filled:])):
                filled += length
        finally:
            self._write(view[:filled])
            self.hasher.put(buffer, filled)
        return filled

    def _write(self, view: memoryview) -> None:
        with room("The disk is full; what has come so far is kept."):
            while view:
                done = os.write(self._fd, view)
                view = view[done:]
                self.size += done
        self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            self._report(self.size, self.side.size)

    def close(self) -> str:
        """The hash of everything."""
        os.close(self._fd)
        return self.hasher.finish()


class HttpSource:
    """A registry over HTTP."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def fetch(self, entry: Entry, start: int, side: Side, sink: Sink) -> None:
        headers = {}
        if start:
            headers["range"] = f"bytes={start}-"
            if side.etag:
                headers["if-range"] = side.etag
        with self._remote.ask("GET", self._remote.address(entry), headers) as answer:
            if answer.status == 416:  # it is shorter than it was
                sink.restart()
                raise ConnectionError("the registry has another file now")
            if 500 <= answer.status <= 599:
                raise ConnectionError(f"the registry answers with status {answer.status}")
            self._remote.expect(answer, 200, 206)
            if answer.status == 200 and start:
                sink.restart()
            elif answer.status == 206:
                _check_range(answer, sink.size, entry.size_bytes)
            tag = answer.headers.get("etag")
            side.etag = tag if tag and tag.startswith('"') else None
            sink.note()
            receive(answer, entry.size_bytes, sink)


def _check_range(answer: http.client.HTTPResponse, start: int, size: int) -> None:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if match is None or (int(match[1]), int(match[3])) != (start, size):
        raise RegistryFailed("The registry sent another part than was asked for.")


def receive(answer: http.client.HTTPResponse, size: int, sink: Sink) -> None:
    """The rest of the file, from an answer that begins where the sink ends. Raises OSError when it breaks off."""
    # One call of the system per read where the length is known: a read that fails half-way would lose what has come.
    read = answer.readinto if answer.length is None or answer.chunked else answer.fp.readinto1
    while sink.size < size:
        if not sink.fill(read, size - sink.size):
            raise ConnectionError("the registry broke off")


def download(entry: Entry, source: Source, folder: Path, name: str, report: Report | None = None) -> tuple[Path, str]:
    """The whole, verified file and its hash; the caller moves it away, then calls `forget`. Hold a lock on the name.

    Raises RegistryFailed when nothing comes any more or what came is not what the index promises, BundleNotFound,
    InsufficientStorage. What has come stays for the next call, unless it is wrong.
    """
    part, side_file = folder / f"{name}.part", folder / f"{name}.json"
    side = _resume(part, side_file, entry)
    sink = Sink(part, side_file, side, report)
    try:
        sink.note()
        sink.reread()
        _fetch_all(entry, source, side, sink)
    except BaseException:
        sink.close()
        raise
    size = sink.size
    digest = sink.close()
    if size != entry.size_bytes or (entry.sha256 is not None and digest != entry.sha256):
        forget(folder, name)
        raise RegistryFailed(
            f"What the registry sent for {entry.key} is not what its index promises; nothing was kept."
        )
    return part, digest


def forget(folder: Path, name: str) -> None:
    """Removes what a download leaves."""
    for suffix in (".part", ".json", ".json.new"):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


def _resume(part: Path, side_file: Path, entry: Entry) -> Side:
    """The side file's content if it is of this very bundle; else everything is begun anew."""
    try:
        side = msgspec.json.decode(side_file.read_bytes(), type=Side)
    except (OSError, msgspec.DecodeError):
        side = Side(-1, None)
    known = side.sha256 is not None or side.etag is not None
    if (side.size, side.sha256) != (entry.size_bytes, entry.sha256) or not known:
        side = Side(entry.size_bytes, entry.sha256)
        part.unlink(missing_ok=True)
    elif part.exists() and part.stat().st_size > entry.size_bytes:
        part.unlink()
    return side


def _fetch_all(entry: Entry, source: Source, side: Side, sink: Sink) -> None:
    failures = 0
    while sink.size < entry.size_bytes:
        before = sink.size
        try:
            source.fetch(entry, sink.size, side, sink)
        except BundleNotFound:
            raise
        except (OSError, http.client.HTTPException, Unreachable) as error:
            failures = 0 if sink.size > before else failures + 1
            if failures >= ATTEMPTS:
                reason = error.message if isinstance(error, Unreachable) else f"{error or type(error).__name__}"
                raise RegistryFailed(f"The download of {entry.key} does not go on: {reason}") from error
            time.sleep(min(0.05 * 2**failures, 3.0))
