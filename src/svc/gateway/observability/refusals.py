"""Requests that ended with an error before any attempt at a provider. The ledger has no entries of them.

Each process keeps the newest in memory, and appends all to a file of its own in the state folder. The other processes
of the machine and the commands read the files, also after the process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from svc.gateway.accounting.record import RequestRecord
from svc.gateway.observability.access_log import AccessLogEntry
from svc.gateway.observability.observer import RequestObserver
from svc.wire.limit_state import LimitState

log = logging.getLogger("svc.gateway")

REFUSALS_FOLDER: Final = "refusals"
"""The folder in the state folder."""
MAX_REFUSALS: Final = 1000
"""Refused requests with a known key that a worker keeps."""
MAX_REFUSALS_WITHOUT_KEY: Final = 200
"""Refused requests without a valid key. They are apart, so that a scan with wrong keys does not displace the others."""
MAX_LISTED_BYTES: Final = 128 * 1024
"""The newest bytes of each other process's file that a list reads."""
MAX_REFUSAL_FILE_BYTES: Final = 4 * 1024 * 1024
"""A file that reaches this size becomes the process's previous file, of which there is one."""
MAX_REFUSAL_FILES: Final = 128
"""The files that are kept, the newest ones."""
MAX_UNWRITTEN_REFUSALS: Final = 5000
"""Refused requests that wait for the next write at most. Later ones are only in memory."""
REFUSALS_WRITE_SECONDS: Final = 1.0
MAX_REFUSAL_MESSAGE_CHARACTERS: Final = 500


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that ended with an error before any attempt at a provider."""

    time: str
    """When the response ended: ISO 8601, UTC, with milliseconds."""
    request_id: str
    """The gateway's request id, as in the header `x-request-id`."""
    client_request_id: str | None
    """The request id that the client sent in `x-request-id`."""
    key_id: str | None
    """The id of the key that the client sent. Null if it sent no valid key."""
    key_name: str | None
    """The name of that key."""
    tags: dict[str, str] = {}
    """The tags of that key when the request was refused."""
    endpoint: str
    """The path of the request."""
    model_asked: str | None
    """The model that the client requested, if the gateway had read it."""
    status: str = "refused"
    """Always `refused`."""
    http_status: int
    """The HTTP status of the response."""
    code: str
    """The code of the error."""
    limit: str | None
    """The limit: `rpm`, `tpm`, `concurrency`, `budget`, `queue` or `upstream`. Null for another error."""
    message: str
    """The message of the error, as the client received it."""
    latency_ms: float | None
    """Milliseconds from the request's arrival to the response."""
    limit_state: LimitState | None = None
    """The use of that limit of the key at this time. Null for `queue`, `upstream` and other errors."""


class RefusalLog(RequestObserver):
    """Keeps refused requests. `folder` has the files of the processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._with_key: deque[RefusedRequest] = deque(maxlen=MAX_REFUSALS)
        self._without_key: deque[RefusedRequest] = deque(maxlen=MAX_REFUSALS_WITHOUT_KEY)
        self._unwritten: list[RefusedRequest] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to write the file."""
        self._task = asyncio.get_running_loop().create_task(self._write_regularly(), name="refusals")

    async def close(self) -> None:
        """Write the rest, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._write, self._take_unwritten())

    def on_refusal(self, record: RequestRecord) -> None:
        self._add(
            RefusedRequest(
                time=record.time,
                request_id=record.request_id,
                client_request_id=record.client_request_id,
                key_id=record.key.id,
                key_name=record.key.name,
                tags=record.key.tags,
                endpoint=record.endpoint,
                model_asked=record.requested_model,
                http_status=record.http_status,
                code=record.code or "",
                limit=record.limit_name or None,
                message=record.error_message[:MAX_REFUSAL_MESSAGE_CHARACTERS],
                latency_ms=round(record.duration_seconds * 1000, 3),
                limit_state=record.limit_state,
            )
        )

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        if entry.code is None:
            return
        self._add(
            RefusedRequest(
                time=entry.time,
                request_id=entry.request_id,
                client_request_id=entry.client_request_id,
                key_id=entry.key_id,
                key_name=entry.key_name,
                tags=entry.tags or {},
                endpoint=entry.endpoint,
                model_asked=None,
                http_status=entry.http_status,
                code=entry.code,
                limit=limit_name or None,
                message=(entry.message or "")[:MAX_REFUSAL_MESSAGE_CHARACTERS],
                latency_ms=entry.latency_ms,
            )
        )

    def _add(self, refused: RefusedRequest) -> None:
        (self._without_key if refused.key_id is None else self._with_key).append(refused)
        if len(self._unwritten) < MAX_UNWRITTEN_REFUSALS:
            self._unwritten.append(refused)

    async def list_newest_first(self) -> list[RefusedRequest]:
        """Return the refused requests of this process, and the newest ones of the others."""
        own = [*self._with_key, *self._without_key]
        others = await asyncio.to_thread(lambda: list(self._read_others()))
        return sorted([*own, *others], key=lambda refused: (refused.time, refused.request_id), reverse=True)

    async def find(self, request_id: str) -> RefusedRequest | None:
        """Return the request with that id, or None. It can be in a file of another process, or of an earlier one."""
        for refused in (*self._with_key, *self._without_key):
            if refused.request_id == request_id:
                return refused
        return await asyncio.to_thread(find_refused, self.folder, request_id)

    def _read_others(self) -> Iterator[RefusedRequest]:
        for path in _list_files(self.folder):
            if path != self._path:
                yield from _decode_lines(_read_tail(path, MAX_LISTED_BYTES))

    async def _write_regularly(self) -> None:
        while True:
            await asyncio.sleep(REFUSALS_WRITE_SECONDS)
            if self._unwritten:
                await asyncio.to_thread(self._write, self._take_unwritten())

    def _take_unwritten(self) -> list[RefusedRequest]:
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    def _write(self, refused: list[RefusedRequest]) -> None:
        """Append lines to the file. Its previous file is replaced when it is full."""
        if not refused:
            return
        try:
            if not self._path.exists():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _prune_files(self.folder)
            elif self._path.stat().st_size >= MAX_REFUSAL_FILE_BYTES:
                self._path.replace(self._path.with_suffix(".old.jsonl"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with open(os.open(self._path, flags, 0o600), "ab") as file:
                file.write(b"".join([msgspec.json.encode(each) + b"\n" for each in refused]))
        except OSError as error:
            log.warning("refused requests could not be written to %s: %s", self.folder, error)


def find_refused(folder: Path, request_id: str) -> RefusedRequest | None:
    """Return the refused request with that id from the files in `folder`, or None. Blocks."""
    needle = b'"request_id":' + msgspec.json.encode(request_id)
    for path in _list_files(folder):
        content = _read_tail(path, 2 * MAX_REFUSAL_FILE_BYTES)
        position = content.find(needle)
        while position >= 0:
            start, end = content.rfind(b"\n", 0, position) + 1, content.find(b"\n", position)
            for refused in _decode_lines(content[start : end + 1]):
                if refused.request_id == request_id:
                    return refused
            position = content.find(needle, position + 1)
    return None


def count_refused(folder: Path, key_id: str, since: str, until: str) -> int:
    """Return how many requests of a key were refused between two times, without those refused by `rpm`. Blocks."""
    return sum(
        refused.key_id == key_id and since <= refused.time < until and refused.limit != "rpm"
        for path in _list_files(folder)
        for refused in _decode_lines(_read_tail(path, MAX_LISTED_BYTES))
    )


def _list_files(folder: Path) -> list[Path]:
    """Return the files, the newest first."""
    times: list[tuple[float, Path]] = []
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            times.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(times, reverse=True)]


def _read_tail(path: Path, max_bytes: int) -> bytes:
    """Return the complete lines in the last bytes of a file."""
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - max_bytes)
            file.seek(start)
            content = file.read(max_bytes)
    except OSError:
        return b""
    content = content[: content.rfind(b"\n") + 1]
    return content[content.find(b"\n") + 1 :] if start else content


def _decode_lines(content: bytes) -> Iterator[RefusedRequest]:
    for line in content.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):  # of another version
            yield _decoder.decode(line)


_decoder: Final = msgspec.json.Decoder(RefusedRequest)


def _prune_files(folder: Path) -> None:
    for path in _list_files(folder)[MAX_REFUSAL_FILES - 1 :]:
        path.unlink(missing_ok=True)
