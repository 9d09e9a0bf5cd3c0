"""Download and verify a bundle. A download resumes after interruptions and crashes.

<folder>/<x>.part    the bytes received so far
<folder>/<x>.json    which bundle they belong to: etag, size, sha256

One thread reads and writes, another hashes, so that neither waits for the other for long.
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

from svc.bundles.disk_space import translate_disk_full_errors
from svc.bundles.registry_client import RegistryClient, RegistryUnreachable
from svc.errors import BundleNotFound, RegistryFailed
from svc.resilience import Backoff
from svc.wire.bundle import BundleEntry

DOWNLOAD_BUFFER_BYTES = 256 << 10
"""Bytes per write. The kernel stores writes of this size in small pages, which it has at hand. Writes of 1 MiB use
large pages, which a virtual machine must often request from its host: 0.7 to 1.0 s of CPU per GB instead of 0.2 s.
"""
DOWNLOAD_BUFFER_COUNT = 16
MAX_EMPTY_DOWNLOAD_ATTEMPTS = 7
"""Consecutive attempts without a single byte, after which a download fails."""
DOWNLOAD_BACKOFF = Backoff(0.05, 3.0)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

DownloadProgress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


class DownloadState(msgspec.Struct):
    """The content of the .json file."""

    size: int
    sha256: str | None
    etag: str | None = None


class HashThread:
    """Hashes buffers in a thread. `free_buffers` is the queue of buffers that can be filled."""

    def __init__(self) -> None:
        self.free_buffers: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        for _ in range(DOWNLOAD_BUFFER_COUNT):
            self.free_buffers.put(bytearray(DOWNLOAD_BUFFER_BYTES))
        self._filled_buffers: queue.SimpleQueue[tuple[bytearray, int] | None] = queue.SimpleQueue()
        self._hash = hashlib.sha256()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def submit(self, buffer: bytearray, length: int) -> None:
        """Queue the first `length` bytes of a buffer. The buffer returns through `free_buffers`."""
        self._filled_buffers.put((buffer, length))

    def finish(self) -> str:
        """Return the hash of all submitted bytes."""
        self._filled_buffers.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def _run(self) -> None:
        while (item := self._filled_buffers.get()) is not None:
            buffer, length = item
            self._hash.update(memoryview(buffer)[:length])
            self.free_buffers.put(buffer)


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
        while True:
            buffer = self.hasher.free_buffers.get()
            length = os.readv(self._fd, [buffer])
            self.hasher.submit(buffer, length)
            self.size += length
            if length == 0:
                return
            self._report_progress()

    def restart(self) -> None:
        """Truncate the file and start again at offset 0."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.hasher.finish()
        self.hasher = HashThread()
        self.size = 0

    def fill_from(self, read: Callable[[memoryview], int], max_bytes: int) -> int:
        """Fill one buffer from `read`, up to `max_bytes`. Bytes that arrived before an error are kept."""
        buffer = self.hasher.free_buffers.get()
        view, filled = memoryview(buffer)[:max_bytes], 0
        try:
            while filled < len(view) and (length := read(view[filled:])):
                filled += length
        finally:
            self._write(view[:filled])
            self.hasher.submit(buffer, filled)
        return filled

    def _write(self, view: memoryview) -> None:
        with translate_disk_full_errors("The disk is full; the bytes received so far are kept."):
            while view:
                written = os.write(self._fd, view)
                view = view[written:]
                self.size += written
        self._report_progress()

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.size, self.state.size)

    def close(self) -> str:
        """Return the hash of the whole file."""
        os.close(self._fd)
        return self.hasher.finish()


class HttpBundleSource:
    """Downloads from a registry over HTTP."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        headers = {}
        if start:
            headers["range"] = f"bytes={start}-"
            if state.etag:
                headers["if-range"] = state.etag
        with self._client.request("GET", self._client.bundle_path(entry), headers) as response:
            if response.status == 416:  # the file is shorter than before
                partial_file.restart()
                raise ConnectionError("the registry has a different file now")
            if 500 <= response.status <= 599:
                raise ConnectionError(f"the registry returned status {response.status}")
            self._client.check_status(response, 200, 206)
            if response.status == 200 and start:
                partial_file.restart()
            elif response.status == 206:
                _check_range(response, partial_file.size, entry.size_bytes)
            tag = response.headers.get("etag")
            state.etag = tag if tag and tag.startswith('"') else None
            partial_file.save_state()
            receive_rest(response, entry.size_bytes, partial_file)


def _check_range(response: http.client.HTTPResponse, start: int, size: int) -> None:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None or (int(match[1]), int(match[3])) != (start, size):
        raise RegistryFailed("The registry sent a range that was not requested.")


def receive_rest(response: http.client.HTTPResponse, size: int, partial_file: PartialFile) -> None:
    """Write the rest of the file from a response that starts at the current offset. Raises OSError on interruption."""
    # With a known length, use one system call per read: a read that fails halfway would lose bytes already received.
    read = response.readinto if response.length is None or response.chunked else response.fp.readinto1
    while partial_file.size < size:
        if not partial_file.fill_from(read, size - partial_file.size):
            raise ConnectionError("the registry closed the connection early")


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
        except (OSError, http.client.HTTPException, RegistryUnreachable) as error:
            failures = 0 if partial_file.size > size_before else failures + 1
            if failures >= MAX_EMPTY_DOWNLOAD_ATTEMPTS:
                reason = error.message if isinstance(error, RegistryUnreachable) else f"{error or type(error).__name__}"
                raise RegistryFailed(f"The download of {entry.key} failed: {reason}") from error
            time.sleep(DOWNLOAD_BACKOFF.exponential(failures))
