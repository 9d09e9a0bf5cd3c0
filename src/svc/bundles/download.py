"""Download and verify a bundle. A download resumes after interruptions and crashes.

<folder>/<x>.part    the bytes received so far
<folder>/<x>.json    which bundle they belong to: etag, size, sha256

One thread receives and writes, another hashes, so that neither waits for the other for long.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from svc.bundles.disk_space import translate_disk_full_errors
from svc.errors import BundleNotFound, InsufficientStorage, RegistryFailed, RegistryUnreachable
from svc.resilience import Backoff
from svc.wire.bundle import BundleEntry

REGISTRY_TIMEOUT_SECONDS = 60.0
"""The longest wait for a byte from a registry."""
DOWNLOAD_BLOCK_BYTES = 256 << 10
"""Bytes per write, which are then hashed. Fewer writes and handovers to the hash take less CPU time."""
DOWNLOAD_BLOCK_CHUNKS = 512
"""Chunks per write. Linux accepts 1024."""
HASH_QUEUE_BLOCKS = 16
"""Blocks that may wait for the hash."""
MAX_EMPTY_DOWNLOAD_ATTEMPTS = 7
"""Consecutive attempts without a single byte, after which a download fails."""
DOWNLOAD_BACKOFF = Backoff(0.05, 3.0)

DownloadProgress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


class DownloadState(msgspec.Struct):
    """The content of the .json file."""

    size: int
    sha256: str | None
    etag: str | None = None


class HashThread:
    """Hashes blocks in a thread. A block is a list of chunks."""

    def __init__(self) -> None:
        self._blocks: queue.Queue[list[bytes] | None] = queue.Queue(HASH_QUEUE_BLOCKS)
        self._hash = hashlib.sha256()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def submit(self, block: list[bytes]) -> None:
        """Queue a block. Waits while the queue is full."""
        self._blocks.put(block)

    def finish(self) -> str:
        """Return the hash of all submitted blocks."""
        self._blocks.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            for chunk in block:
                self._hash.update(chunk)


class BundleSource(Protocol):
    """A source that can send a bundle's bytes from any offset."""

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        """Write the bytes from `start` on, or from 0 after `restart()`. Raises OSError on interruption."""
        ...


class PartialFile:
    """The .part file and its running hash."""

    def __init__(
        self, part: Path, state_file: Path, state: DownloadState, on_progress: DownloadProgress | None
    ) -> None:
        self._state_file = state_file
        self.state = state
        self._on_progress = on_progress
        self._fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = 0
        self.hasher = HashThread()

    def save_state(self) -> None:
        """Write the .json file."""
        temporary = self._state_file.with_suffix(".json.new")
        with translate_disk_full_errors("The disk is full."):
            temporary.write_bytes(msgspec.json.encode(self.state))
            os.replace(temporary, self._state_file)

    def hash_existing(self) -> None:
        """Hash the bytes that an earlier attempt downloaded."""
        while chunk := os.read(self._fd, DOWNLOAD_BLOCK_BYTES):
            self.hasher.submit([chunk])
            self.size += len(chunk)
            self._report_progress()

    def restart(self) -> None:
        """Truncate the file and start again at offset 0."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.hasher.finish()
        self.hasher = HashThread()
        self.size = 0

    def receive(self, chunks: Iterable[bytes]) -> None:
        """Write chunks until the file is complete. Raises ConnectionError if they end before that."""
        block: list[bytes] = []
        block_bytes = 0
        try:
            for chunk in chunks:
                block.append(chunk[: self.state.size - self.size - block_bytes])
                block_bytes += len(block[-1])
                if self.size + block_bytes >= self.state.size:
                    return
                if block_bytes >= DOWNLOAD_BLOCK_BYTES or len(block) >= DOWNLOAD_BLOCK_CHUNKS:
                    self._write(block)
                    block, block_bytes = [], 0
        finally:  # bytes that arrived before an error are kept
            self._write(block)
        raise ConnectionError("the registry closed the connection early")

    def _write(self, block: list[bytes]) -> None:
        with translate_disk_full_errors("The disk is full; the bytes received so far are kept."):
            written = os.writev(self._fd, block) if block else 0
            self.size += written
            if written < sum(map(len, block)):
                rest = memoryview(b"".join(block))[written:]
                while rest:
                    written = os.write(self._fd, rest)
                    self.size += written
                    rest = rest[written:]
        self.hasher.submit(block)
        self._report_progress()

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.size, self.state.size)

    def close(self) -> str:
        """Return the hash of the whole file."""
        os.close(self._fd)
        return self.hasher.finish()


def download(
    entry: BundleEntry, source: BundleSource, folder: Path, name: str, on_progress: DownloadProgress | None = None
) -> tuple[Path, str]:
    """Return the path of the verified file, and its hash. Hold a lock on the name.

    The caller moves the file away, then calls `remove_partial_files`. After an error, received bytes stay for the
    next call unless they are wrong. Raises RegistryFailed when no more bytes arrive or the hash differs from the
    index, BundleNotFound, and InsufficientStorage.
    """
    part, state_file = folder / f"{name}.part", folder / f"{name}.json"
    state = _load_state(part, state_file, entry)
    _check_free_space(part, entry)
    partial_file = PartialFile(part, state_file, state, on_progress)
    try:
        partial_file.save_state()
        partial_file.hash_existing()
        _fetch_all(entry, source, state, partial_file)
    except BaseException:
        partial_file.close()
        raise
    size = partial_file.size
    digest = partial_file.close()
    if size != entry.size_bytes or (entry.sha256 is not None and digest != entry.sha256):
        remove_partial_files(folder, name)
        raise RegistryFailed(f"The bytes of {entry.key} do not match the index of the registry; they were deleted.")
    return part, digest


def _check_free_space(part: Path, entry: BundleEntry) -> None:
    """Raise InsufficientStorage if the rest cannot fit, before it takes the space that other programs need."""
    disk = shutil.disk_usage(part.parent)
    missing_bytes = entry.size_bytes - (part.stat().st_size if part.exists() else 0)
    if disk.total and missing_bytes > disk.free:
        raise InsufficientStorage(
            f"The disk of {part.parent} has {disk.free} bytes free, and {entry.key} needs {missing_bytes} more."
        )


def remove_partial_files(folder: Path, name: str) -> None:
    """Remove the files of a download."""
    for suffix in (".part", ".json", ".json.new"):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


def _load_state(part: Path, state_file: Path, entry: BundleEntry) -> DownloadState:
    """Load the .json file if it describes the same bundle. Otherwise start a new download."""
    try:
        state = msgspec.json.decode(state_file.read_bytes(), type=DownloadState)
    except (OSError, msgspec.DecodeError):
        state = DownloadState(-1, None)
    is_identified = state.sha256 is not None or state.etag is not None
    if (state.size, state.sha256) != (entry.size_bytes, entry.sha256) or not is_identified:
        state = DownloadState(entry.size_bytes, entry.sha256)
        part.unlink(missing_ok=True)
    elif part.exists() and part.stat().st_size > entry.size_bytes:
        part.unlink()
    return state


def _fetch_all(entry: BundleEntry, source: BundleSource, state: DownloadState, partial_file: PartialFile) -> None:
    failures = 0
    while partial_file.size < entry.size_bytes:
        size_before = partial_file.size
        try:
            source.fetch(entry, partial_file.size, state, partial_file)
        except BundleNotFound:
            raise
        except (OSError, RegistryUnreachable) as error:
            failures = 0 if partial_file.size > size_before else failures + 1
            if failures >= MAX_EMPTY_DOWNLOAD_ATTEMPTS:
                reason = error.message if isinstance(error, RegistryUnreachable) else f"{error or type(error).__name__}"
                raise RegistryFailed(f"The download of {entry.key} failed: {reason}") from error
            time.sleep(DOWNLOAD_BACKOFF.exponential(failures))
