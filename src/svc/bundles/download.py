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

from svc.bundles.disk_space import translate_disk_full_errors
from svc.bundles.registry_client import RegistryClient, RegistryUnreachable
from svc.errors import BundleNotFound, RegistryFailed
from svc.resilience import Backoff
from svc.wire.bundle import BundleEntry

DOWNLOAD_BUFFER_BYTES = 256 << 10
"""The kernel caches a write of this size in small pieces of memory, which it has at hand. For one of 1 MiB it takes
large pieces, which a virtual machine has often given back to its host: a gigabyte costs 0.7 to 1.0 s of CPU, not 0.2.
"""
DOWNLOAD_BUFFER_COUNT = 16
MAX_EMPTY_DOWNLOAD_ATTEMPTS = 7
DOWNLOAD_BACKOFF = Backoff(0.05, 3.0)
"""So often in a row may nothing at all come."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

DownloadProgress = Callable[[int, int], None]
"""Bytes done, of how many."""


class DownloadState(msgspec.Struct):
    """The side file."""

    size: int
    sha256: str | None
    etag: str | None = None


class HashThread:
    """Hashes buffers in its own thread. `free` has the buffers that may be filled."""

    def __init__(self) -> None:
        self.free_buffers: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        for _ in range(DOWNLOAD_BUFFER_COUNT):
            self.free_buffers.put(bytearray(DOWNLOAD_BUFFER_BYTES))
        self._filled_buffers: queue.SimpleQueue[tuple[bytearray, int] | None] = queue.SimpleQueue()
        self._hash = hashlib.sha256()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def submit(self, buffer: bytearray, length: int) -> None:
        """The buffer comes back through `free`."""
        self._filled_buffers.put((buffer, length))

    def finish(self) -> str:
        """The hash of everything."""
        self._filled_buffers.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def _run(self) -> None:
        while (item := self._filled_buffers.get()) is not None:
            buffer, length = item
            self._hash.update(memoryview(buffer)[:length])
            self.free_buffers.put(buffer)


class BundleSource(Protocol):
    """Where a bundle's bytes come from, starting anywhere."""

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        """Feeds the sink from `start` on, or from 0 after `sink.restart()`. Raises OSError when it breaks off."""
        ...


class PartialFile:
    """The .part file and its hash."""

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
        """Writes the side file."""
        temporary = self._state_file.with_suffix(".json.new")
        with translate_disk_full_errors("The disk is full."):
            temporary.write_bytes(msgspec.json.encode(self.state))
            os.replace(temporary, self._state_file)

    def hash_existing(self) -> None:
        """Hashes what is there already."""
        while True:
            buffer = self.hasher.free_buffers.get()
            length = os.readv(self._fd, [buffer])
            self.hasher.submit(buffer, length)
            self.size += length
            if length == 0:
                return
            self._report_progress()

    def restart(self) -> None:
        """From 0."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.hasher.finish()
        self.hasher = HashThread()
        self.size = 0

    def fill_from(self, read: Callable[[memoryview], int], max_bytes: int) -> int:
        """One buffer from `read`, at most so many bytes; what has come is kept even if it fails."""
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
        with translate_disk_full_errors("The disk is full; what has come so far is kept."):
            while view:
                written = os.write(self._fd, view)
                view = view[written:]
                self.size += written
        self._report_progress()

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.size, self.state.size)

    def close(self) -> str:
        """The hash of everything."""
        os.close(self._fd)
        return self.hasher.finish()


class HttpBundleSource:
    """A registry over HTTP."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        headers = {}
        if start:
            headers["range"] = f"bytes={start}-"
            if state.etag:
                headers["if-range"] = state.etag
        with self._client.request("GET", self._client.bundle_path(entry), headers) as response:
            if response.status == 416:  # it is shorter than it was
                partial_file.restart()
                raise ConnectionError("the registry has another file now")
            if 500 <= response.status <= 599:
                raise ConnectionError(f"the registry answers with status {response.status}")
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
        raise RegistryFailed("The registry sent another part than was asked for.")


def receive_rest(response: http.client.HTTPResponse, size: int, partial_file: PartialFile) -> None:
    """The rest of the file, from an answer that begins where the sink ends. Raises OSError when it breaks off."""
    # One call of the system per read where the length is known: a read that fails half-way would lose what has come.
    read = response.readinto if response.length is None or response.chunked else response.fp.readinto1
    while partial_file.size < size:
        if not partial_file.fill_from(read, size - partial_file.size):
            raise ConnectionError("the registry broke off")


def download(
    entry: BundleEntry, source: BundleSource, folder: Path, name: str, on_progress: DownloadProgress | None = None
) -> tuple[Path, str]:
    """The whole, verified file and its hash; the caller moves it away, then calls `forget`. Hold a lock on the name.

    Raises RegistryFailed when nothing comes any more or what came is not what the index promises, BundleNotFound,
    InsufficientStorage. What has come stays for the next call, unless it is wrong.
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
        raise RegistryFailed(
            f"What the registry sent for {entry.key} is not what its index promises; nothing was kept."
        )
    return part, digest


def remove_partial_files(folder: Path, name: str) -> None:
    """Removes what a download leaves."""
    for suffix in (".part", ".json", ".json.new"):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


def _load_state(part: Path, state_file: Path, entry: BundleEntry) -> DownloadState:
    """The side file's content if it is of this very bundle; else everything is begun anew."""
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
                raise RegistryFailed(f"The download of {entry.key} does not go on: {reason}") from error
            time.sleep(DOWNLOAD_BACKOFF.exponential(failures))
